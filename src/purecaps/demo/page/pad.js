// The drawing area: strokes by pointer or by keyboard, and images, one above the other; each can be undone.

const PEN = 36; // of 448 pixels: a digit that fills the pad has strokes some 2 of 20 wide, as MNIST's are
const CELLS = 28; // steps of the keyboard's cursor across the pad

export class Pad {
  #ink;
  #context;
  #overlay;
  #items = []; // strokes {points} and images {picture}, oldest first
  #history = []; // earlier #items
  #stroke = null;
  #cursor = { x: CELLS / 2, y: CELLS / 2 };
  #keyboard = false;

  /**
   * @param {HTMLCanvasElement} ink where the drawing is
   * @param {HTMLCanvasElement} overlay where the keyboard's cursor is
   * @param {{changed: () => void, spoken: (text: string) => void}} tell
   */
  constructor(ink, overlay, tell) {
    this.#ink = ink;
    this.#context = ink.getContext("2d", { willReadFrequently: true });
    this.#overlay = overlay.getContext("2d");
    this.tell = tell;
    ink.addEventListener("pointerdown", (event) => this.#press(event));
    ink.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) ink.addEventListener(name, (event) => this.#lift(event));
    ink.addEventListener("keydown", (event) => this.#key(event));
    ink.addEventListener("blur", () => this.#leave());
  }

  get isEmpty() {
    return this.#items.length === 0;
  }

  get canUndo() {
    return this.#history.length > 0;
  }

  /**
   * How much ink is where: the alpha channel, for the colour is the theme's.
   * @returns {import("./preprocess.js").Grey}
   */
  ink() {
    const { width, height } = this.#ink;
    const { data: pixels } = this.#context.getImageData(0, 0, width, height);
    const data = new Float32Array(width * height);
    for (let at = 0; at < data.length; at++) data[at] = pixels[4 * at + 3] / 255;
    return { width, height, data };
  }

  undo() {
    if (!this.canUndo) return;
    this.#stroke = null;
    this.#items = this.#history.pop();
    this.repaint();
    this.tell.changed();
  }

  clear() {
    this.#stroke = null;
    if (this.isEmpty) return;
    this.#remember();
    this.#items = [];
    this.repaint();
    this.tell.changed();
  }

  /** Lays an image over an empty pad, as large as it fits; its alpha channel is the ink. */
  show(picture) {
    this.#remember();
    this.#items = [{ picture }];
    this.repaint();
    this.tell.changed();
  }

  /** Draws everything anew, in the colour of the theme. */
  repaint() {
    const context = this.#context;
    const { width, height } = this.#ink;
    context.clearRect(0, 0, width, height);
    for (const { picture, points } of this.#items)
      if (picture) paintPicture(context, picture);
      else paintLine(context, points, 0);
    context.globalCompositeOperation = "source-in";
    context.fillStyle = this.#colour;
    context.fillRect(0, 0, width, height);
    context.globalCompositeOperation = "source-over";
    this.#showCursor();
  }

  get #colour() {
    return getComputedStyle(this.#ink).color;
  }

  #remember() {
    this.#history.push([...this.#items]);
  }

  #begin(point) {
    this.#remember();
    this.#stroke = { points: [point] };
    this.#items = [...this.#items, this.#stroke];
    this.#line(0);
    this.tell.changed();
  }

  #extend(points) {
    const from = this.#stroke.points.length - 1;
    this.#stroke.points.push(...points);
    this.#line(from);
    this.tell.changed();
  }

  #line(from) {
    this.#context.strokeStyle = this.#colour;
    paintLine(this.#context, this.#stroke.points, from);
  }

  #press(event) {
    if (event.button !== 0 || !event.isPrimary) return;
    this.#keyboard = false;
    this.#showCursor();
    this.#ink.setPointerCapture(event.pointerId);
    this.#begin(this.#point(event));
  }

  #move(event) {
    if (!this.#stroke || this.#keyboard || !event.isPrimary) return;
    const events = event.getCoalescedEvents?.() ?? [];
    this.#extend((events.length ? events : [event]).map((each) => this.#point(each)));
  }

  #lift(event) {
    if (event.isPrimary && !this.#keyboard) this.#stroke = null;
  }

  #point(event) {
    const box = this.#ink.getBoundingClientRect();
    const across = this.#ink.width / box.width;
    return { x: (event.clientX - box.left) * across, y: (event.clientY - box.top) * across };
  }

  #key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) this.#step(steps[event.key], event.shiftKey ? 4 : 1);
    else if (event.key === " ") this.#togglePen();
    else if (event.key === "Escape" && this.#stroke) this.#penUp();
    else if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else return;
    event.preventDefault(); // the page does not scroll
    this.#keyboard = true;
    this.#showCursor();
  }

  #step([x, y], count) {
    const within = (value) => Math.min(Math.max(value, 1), CELLS - 1);
    this.#cursor = { x: within(this.#cursor.x + x * count), y: within(this.#cursor.y + y * count) };
    if (this.#stroke) this.#extend([this.#place()]);
    this.tell.spoken(`column ${this.#cursor.x}, row ${this.#cursor.y}`);
  }

  #togglePen() {
    if (this.#stroke) return this.#penUp();
    this.#begin(this.#place());
    this.tell.spoken("pen down");
  }

  #penUp() {
    this.#stroke = null;
    this.tell.spoken("pen up");
  }

  #leave() {
    if (this.#keyboard) this.#stroke = null;
    this.#keyboard = false;
    this.#showCursor();
  }

  #place() {
    const cell = this.#ink.width / CELLS;
    return { x: this.#cursor.x * cell, y: this.#cursor.y * cell };
  }

  /** The cursor is a ring as wide as the pen, filled while it is down. */
  #showCursor() {
    const context = this.#overlay;
    context.clearRect(0, 0, context.canvas.width, context.canvas.height);
    if (!this.#keyboard) return;
    const { x, y } = this.#place();
    const style = getComputedStyle(context.canvas);
    context.beginPath();
    context.arc(x, y, PEN / 2 + 2, 0, 2 * Math.PI);
    context.lineWidth = 7;
    context.strokeStyle = style.backgroundColor;
    context.stroke();
    context.lineWidth = 4;
    context.strokeStyle = context.fillStyle = style.color;
    context.stroke();
    if (this.#stroke) context.fill();
  }
}

function paintLine(context, points, from) {
  context.lineWidth = PEN;
  context.lineCap = context.lineJoin = "round";
  context.beginPath();
  context.moveTo(points[from].x, points[from].y);
  context.lineTo(points[from].x + 0.01, points[from].y); // a click is a dot: a line of no length would not be drawn
  for (const { x, y } of points.slice(from)) context.lineTo(x, y);
  context.stroke();
}

/** As large as it fits. */
function paintPicture(context, picture) {
  const { width, height } = context.canvas;
  const scale = Math.min(width / picture.width, height / picture.height);
  const [wide, high] = [picture.width * scale, picture.height * scale];
  // Small images keep their pixels: those of an MNIST digit come out of the pad as they went in.
  context.imageSmoothingEnabled = Math.max(picture.width, picture.height) > 64;
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, (width - wide) / 2, (height - high) / 2, wide, high);
}
