// An image file as a picture for the pad. What cannot be used is an ImageError, whose message is for the reader.

import { findInk } from "./paper.js";

const MOST_BYTES = 25e6;
const MOST_PIXELS = 50e6;
const MOST_SIDE = 448; // larger images are scaled down

export class ImageError extends Error {}

/**
 * @param {File} file
 * @returns {Promise<HTMLCanvasElement>} whose alpha channel is the image's ink
 */
export async function readImage(file) {
  if (file.size > MOST_BYTES)
    throw new ImageError(`${file.name} has ${megas(file.size)} MB; this page takes up to ${megas(MOST_BYTES)} MB.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new ImageError(`${file.name} is not an image that this browser can read. PNG and JPEG work everywhere.`);
  }
  const { width, height } = bitmap;
  try {
    if (width * height > MOST_PIXELS)
      throw new ImageError(
        `${file.name} is ${width} × ${height} pixels; this page takes up to ${megas(MOST_PIXELS)} million.`,
      );
    const ink = findInk(greyOf(bitmap));
    if (!ink) throw new ImageError(`No digit stands out from the ground in ${file.name}.`);
    return asPicture(ink);
  } finally {
    bitmap.close();
  }
}

function greyOf(bitmap) {
  const scale = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(1, Math.round(bitmap.width * scale));
  const height = Math.max(1, Math.round(bitmap.height * scale));
  const context = sheet(width, height);
  context.fillStyle = "white"; // under what is transparent
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const { data: pixels } = context.getImageData(0, 0, width, height);
  const data = new Float32Array(width * height);
  for (let at = 0; at < data.length; at++)
    data[at] = (0.299 * pixels[4 * at] + 0.587 * pixels[4 * at + 1] + 0.114 * pixels[4 * at + 2]) / 255;
  return { width, height, data };
}

function asPicture({ width, height, data }) {
  const context = sheet(width, height);
  const pixels = context.createImageData(width, height);
  data.forEach((value, at) => (pixels.data[4 * at + 3] = Math.round(255 * value)));
  context.putImageData(pixels, 0, 0);
  return context.canvas;
}

function sheet(width, height) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  return canvas.getContext("2d", { willReadFrequently: true });
}

const megas = (count) => Math.round(count / 1e5) / 10;
