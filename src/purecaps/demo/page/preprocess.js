// From ink on a pad to the 28 x 28 pixels of a network's input, as MNIST's digits were made. Pure functions: arrays in and out.

export const SIDE = 28;
const BOX = 20;
const CENTRE = 14; // the pixel that the centre of mass of every MNIST digit rounds to

/**
 * @typedef {{width: number, height: number, data: Float32Array}} Grey  rows of numbers in 0 to 1
 */

/**
 * Ink of any size as a network's input; null where there is no ink.
 * A digit of MNIST comes out as it went in, up to the rounding of its brightest pixel, 254 or 255, to 1.
 * @param {Grey} ink
 * @returns {Float32Array | null} SIDE x SIDE, rows first
 */
export function normalise(ink) {
  const box = bounds(ink);
  if (!box) return null;
  const scale = BOX / Math.max(box.width, box.height);
  const width = Math.max(1, Math.round(box.width * scale));
  const height = Math.max(1, Math.round(box.height * scale));
  const digit = resize(ink, box, width, height);
  const peak = digit.reduce((most, value) => Math.max(most, value), 0);
  const mass = centreOfMass(digit, width, height);
  const left = place(mass.x, width);
  const top = place(mass.y, height);
  const image = new Float32Array(SIDE * SIDE);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) image[(top + y) * SIDE + left + x] = digit[y * width + x] / peak;
  return image;
}

/** The smallest rectangle around all ink. @param {Grey} ink */
export function bounds({ width, height, data }) {
  let left = width, right = -1, top = height, bottom = -1;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      if (data[y * width + x] > 0) {
        left = Math.min(left, x);
        right = Math.max(right, x);
        top = Math.min(top, y);
        bottom = y;
      }
  return right < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

/** A rectangle of `ink` at another size: means over areas where it shrinks, lines between pixels where it grows. */
function resize(ink, box, width, height) {
  const across = weights(box.width, width);
  const down = weights(box.height, height);
  const rows = new Float32Array(box.height * width);
  for (let y = 0; y < box.height; y++)
    for (let x = 0; x < width; x++)
      for (const [from, share] of across[x])
        rows[y * width + x] += share * ink.data[(box.top + y) * ink.width + box.left + from];
  const out = new Float32Array(width * height);
  for (let y = 0; y < height; y++)
    for (const [from, share] of down[y])
      for (let x = 0; x < width; x++) out[y * width + x] += share * rows[from * width + x];
  return out;
}

/** For each of `to` pixels, which of `from` pixels it is made of: [index, share] pairs whose shares add up to 1. */
function weights(from, to) {
  const step = from / to;
  return Array.from({ length: to }, (_, index) => {
    if (step < 1) {
      const centre = Math.min(Math.max((index + 0.5) * step - 0.5, 0), from - 1);
      const low = Math.floor(centre);
      return low + 1 < from ? [[low, low + 1 - centre], [low + 1, centre - low]] : [[low, 1]];
    }
    const begin = index * step, end = Math.min(begin + step, from), pairs = [];
    for (let at = Math.floor(begin); at < end; at++)
      pairs.push([at, (Math.min(at + 1, end) - Math.max(at, begin)) / (end - begin)]);
    return pairs;
  });
}

function centreOfMass(data, width, height) {
  let sum = 0, x = 0, y = 0;
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++) {
      const value = data[row * width + column];
      sum += value;
      x += value * column;
      y += value * row;
    }
  return { x: x / sum, y: y / sum };
}

/** Where a digit's first pixel goes, so that its mass is in the middle and none of it outside. */
function place(mass, size) {
  return Math.min(Math.max(CENTRE - Math.round(mass), 0), SIDE - size);
}
