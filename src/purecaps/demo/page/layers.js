// Every layer's filters and capsules as small pictures.

import { largest, paintTiles } from "./pictures.js";

const WRAP = 8; // pictures side by side, of a matrix that has only one row
const MANY = 1500; // kernels of a layer that need scrolling

export class Layers {
  #parent;
  #layers = [];

  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.#parent = parent;
  }

  /** Shows a network's filters, and places for its capsules. @param {{shape: number[], data: Float32Array}[]} filters */
  open(filters) {
    this.#layers = filters.map((weight, index) => {
      const section = element("section", "layer");
      const title = element("h3", "", `Layer ${index + 1}`);
      const about = element("p", "note about");
      const pair = element("div", "pair");
      const last = index === filters.length - 1;
      const left = figure("filters"), right = figure(last ? "classes" : "capsules");
      pair.append(left.figure, right.figure);
      section.append(title, about, pair);
      paintFilters(left, weight, index + 1);
      return { section, about, capsules: right, last };
    });
    this.#parent.replaceChildren(...this.#layers.map(({ section }) => section));
  }

  /** @param {{dims: readonly number[], data: Float32Array}[]} maps capsules [1, O, H, W, g, m, p], first layer first */
  show(maps, best) {
    maps.forEach((map, index) => {
      const layer = this.#layers[index];
      layer.about.textContent = describe(map.dims);
      paintCapsules(layer, map, index + 1, best);
    });
  }
}

/** One block for each output capsule: (C g n) rows and p columns of kh x kw pictures. */
function paintFilters({ blocks, caption }, { shape, data }, number) {
  const [kh, kw, C, O, g, n, p] = shape;
  const limit = largest(data);
  const { rows, columns } = arrange(C * g * n, p);
  const value = (out, row, column, y, x) => {
    const at = row * columns + column; // of the C g n p kernels of this output capsule
    return data[((y * kw + x) * C + Math.floor(at / (g * n * p))) * O * g * n * p + out * g * n * p + (at % (g * n * p))];
  };
  const canvases = Array.from({ length: O }, (_, out) => {
    const canvas = element("canvas");
    const tiles = { rows, columns, height: kh, width: kw, value: (...where) => value(out, ...where) };
    paintTiles(canvas, tiles, limit);
    label(canvas, `Layer ${number}, filters of capsule ${out + 1}: ${C * g * n} by ${p} kernels of ${kh} by ${kw}`);
    enlarge(canvas, O === 1 ? 7 : rows > 16 ? 1 : 3);
    return block(canvas);
  });
  blocks.replaceChildren(...canvases);
  if (rows * columns * O > MANY) scrollable(blocks, `Filters of layer ${number}`);
  caption.textContent = `${kh} × ${kw} kernels, ${times(C, n)} → ${times(O, p)}, ±${scale(limit)}`;
}

function paintCapsules({ capsules: { blocks, caption }, last }, { dims, data }, number, best) {
  const [, O, H, W, g, m, p] = dims;
  const { rows, columns } = arrange(g * m, p);
  const limit = largest(data);
  if (blocks.children.length !== O) {
    const names = Array.from({ length: O }, (_, out) => block(element("canvas"), last ? out : O > 1 ? out + 1 : null));
    blocks.replaceChildren(...names);
    blocks.style.setProperty("--columns", p > 8 ? 2 : 5);
  }
  for (let out = 0; out < O; out++) {
    const holder = blocks.children[out], canvas = holder.querySelector("canvas");
    const start = out * H * W;
    paintTiles(canvas, {
      rows,
      columns,
      height: H,
      width: W,
      value: (row, column, y, x) => data[(start + y * W + x) * g * m * p + row * columns + column],
    }, limit);
    holder.classList.toggle("best", last && out === best);
    label(canvas, `Layer ${number}, capsule ${last ? `of class ${out}` : out + 1}: ${rows} by ${columns} pictures of ${H} by ${W}`);
    const size = O === 1 ? 56 : O === 2 ? 52 : 26; // of one picture, with two blocks of many side by side
    enlarge(canvas, H * W === 1 ? 14 : Math.round((2 * size) / (W + 1)) / 2);
  }
  caption.textContent = `${O === 1 ? "capsule" : "capsules"}, ±${limit.toFixed(2)}`;
}

/** A single row of many pictures goes on below. */
function arrange(rows, columns) {
  return rows === 1 && columns % WRAP === 0 ? { rows: columns / WRAP, columns: WRAP } : { rows, columns };
}

function describe([, O, H, W, g, m, p]) {
  const shape = g === 1 ? `${m} × ${p}` : `${g} × ${m} × ${p}`;
  const where = H * W === 1 ? "one position" : `each of ${H} × ${W} positions`;
  return `${O === 1 ? "One capsule" : `${O} capsules`} of ${shape} numbers at ${where}`;
}

/** 127 is a weight of 8 bits. */
const scale = (limit) => (Number.isInteger(limit) ? limit : limit.toFixed(2));

const times = (count, size) => (count === 1 ? `${size}` : `${count} × ${size}`);

function figure(name) {
  const holder = element("figure", name), caption = element("figcaption"), blocks = element("div", "blocks");
  holder.append(caption, blocks);
  return { figure: holder, caption, blocks };
}

function block(canvas, name = null) {
  const holder = element("div", "block");
  holder.append(canvas);
  if (name !== null) holder.append(element("span", "name", name));
  return holder;
}

/** Filters that do not fit can be scrolled, by keyboard too. */
function scrollable(blocks, name) {
  blocks.tabIndex = 0;
  blocks.setAttribute("role", "group");
  blocks.setAttribute("aria-label", name);
}

function label(canvas, text) {
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", text);
}

function enlarge(canvas, times) {
  canvas.style.width = `${canvas.width * times}px`;
}

function element(tag, className = "", textContent = "") {
  return Object.assign(document.createElement(tag), { className, textContent });
}
