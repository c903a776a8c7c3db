// Numbers as pictures: grey images, and signed numbers in two colours that fade out at zero.

/** Paints grey levels, 0 to 1, as ink on paper. */
export function paintGrey(canvas, values) {
  const ink = themeColour("--ink");
  paint(canvas, (at) => [...ink, 255 * values[at]]);
}

/** Paints signed numbers; `limit` is full colour, NaN is left out. */
export function paintSigned(canvas, values, limit) {
  const [plus, minus, zero] = ["--plus", "--minus", "--tile"].map(themeColour);
  paint(canvas, (at) => {
    if (Number.isNaN(values[at])) return [0, 0, 0, 0];
    const colour = values[at] > 0 ? plus : minus;
    const share = Math.min(Math.abs(values[at]) / (limit || 1), 1);
    return [...zero.map((from, channel) => from + share * (colour[channel] - from)), 255];
  });
}

/**
 * Paints a block of small pictures, with a pixel between them unless they are single pixels themselves.
 * @param {{rows: number, columns: number, height: number, width: number,
 *          value: (row: number, column: number, y: number, x: number) => number}} tiles
 *   rows and columns of pictures, height and width of one, and the number at each of its pixels
 */
export function paintTiles(canvas, { rows, columns, height, width, value }, limit) {
  const gap = height * width > 1 ? 1 : 0;
  canvas.height = rows * (height + gap) - gap;
  canvas.width = columns * (width + gap) - gap;
  const values = new Float32Array(canvas.height * canvas.width).fill(NaN);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      for (let y = 0; y < height; y++)
        for (let x = 0; x < width; x++)
          values[(row * (height + gap) + y) * canvas.width + column * (width + gap) + x] = value(row, column, y, x);
  paintSigned(canvas, values, limit);
}

/** The largest absolute value. */
export function largest(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** A colour of the style sheet, which has them as #rrggbb. */
function themeColour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

function paint(canvas, colour) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let at = 0; at < canvas.width * canvas.height; at++) image.data.set(colour(at), 4 * at);
  context.putImageData(image, 0, 0);
}
