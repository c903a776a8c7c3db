// Telling ink from its ground in an image file: dark on light or light on dark, with uneven light. Pure functions.

const LEAST_CONTRAST = 0.12;
const NOISE = 0.004; // a spread of the ground that only a camera or a lossy format makes

/**
 * The ink in a grey image: how much each pixel stands out from the ground, 0 to 1. Null where nothing does.
 *
 * The ground is a plane through the image's border, so that light may fall off to one side. Ink is whichever stands out
 * further, darker or lighter pixels. A drawing keeps its grey levels; of a photograph the fainter half is taken for paper.
 * @param {import("./preprocess.js").Grey} grey
 * @returns {import("./preprocess.js").Grey | null}
 */
export function findInk({ width, height, data }) {
  const { plane, spread } = ground({ width, height, data });
  const difference = Float32Array.from(data, (value, at) => value - plane(at % width, Math.floor(at / width)));
  let lightest = 0, darkest = 0;
  for (const value of difference) {
    lightest = Math.max(lightest, value);
    darkest = Math.max(darkest, -value);
  }
  const sign = lightest > darkest ? 1 : -1;
  const peak = Math.max(lightest, darkest);
  if (peak < LEAST_CONTRAST || peak < 6 * spread) return null;
  const low = spread > NOISE ? Math.max(3 * spread, 0.4 * peak) : 0;
  const full = spread > NOISE ? 0.7 * peak : peak;
  const ink = difference.map((value) => Math.min(Math.max((sign * value - low) / (full - low), 0), 1));
  return { width, height, data: ink };
}

/** The plane through the border by least squares, without what stands out of it, and the spread around it. */
function ground(grey) {
  const border = borderOf(grey);
  const values = border.map(([, , value]) => value).sort((a, b) => a - b);
  const middle = values[values.length >> 1];
  const near = border.filter(([, , value]) => Math.abs(value - middle) < 0.25);
  const plane = fitPlane(near, grey, middle);
  const square = near.reduce((sum, [x, y, value]) => sum + (value - plane(x, y)) ** 2, 0) / near.length;
  return { plane, spread: Math.sqrt(square) };
}

function borderOf({ width, height, data }) {
  const depth = Math.max(1, Math.round(0.03 * Math.min(width, height)));
  const found = [];
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      if (x < depth || y < depth || x >= width - depth || y >= height - depth) found.push([x, y, data[y * width + x]]);
  return found;
}

/** value = level + a (x - middle) + b (y - middle). The border is symmetric, so the three are found one by one. */
function fitPlane(points, { width, height }, middle) {
  const cx = (width - 1) / 2, cy = (height - 1) / 2;
  let xx = 0, yy = 0, xv = 0, yv = 0, total = 0;
  for (const [x, y, value] of points) {
    xx += (x - cx) ** 2;
    yy += (y - cy) ** 2;
    xv += (x - cx) * (value - middle);
    yv += (y - cy) * (value - middle);
    total += value - middle;
  }
  const a = xx ? xv / xx : 0, b = yy ? yv / yy : 0, level = middle + total / points.length;
  return (x, y) => level + a * (x - cx) + b * (y - cy);
}
