// A network in the browser: onnxruntime-web, the packaged graphs and the packaged weights.

import { readTensors } from "./safetensors.js";

let runtime;

/** Loads onnxruntime-web, once. */
function loadRuntime({ module, wasm }) {
  runtime ??= import(new URL(module, document.baseURI)).then((ort) => {
    ort.env.wasm.numThreads = 1; // more threads would need a page that is isolated from other origins
    ort.env.wasm.wasmPaths = { wasm: new URL(wasm, document.baseURI).href };
    ort.env.logLevel = "error";
    return ort;
  });
  return runtime;
}

/** One variant of the manifest, ready to read images. */
export class Network {
  #ort;
  #reading;
  #direction;
  #feeds;

  /**
   * @param {{shape: number[], data: Float32Array}[]} weights of the graphs, first layer first
   * @param {{shape: number[], data: Float32Array}[]} filters to look at: those of the variant
   */
  constructor(ort, reading, direction, weights, filters) {
    this.#ort = ort;
    this.#reading = reading;
    this.#direction = direction;
    this.filters = filters;
    this.#feeds = weights.map(({ shape, data }) => new ort.Tensor("float32", data, shape));
  }

  static async open(manifest, network, variant) {
    const [ort, reading, direction, weights, filters] = await Promise.all([
      loadRuntime(manifest.runtime),
      fetchBytes(variant.reading),
      fetchBytes(network.direction),
      fetchBytes(network.weights),
      fetchBytes(variant.weights),
    ]);
    // One after the other: the runtime starts up in the first.
    const first = await ort.InferenceSession.create(new Uint8Array(reading));
    const second = await ort.InferenceSession.create(new Uint8Array(direction));
    return new Network(ort, first, second, kernels(weights), kernels(filters));
  }

  /**
   * @param {Float32Array} image 28 x 28
   * @returns {Promise<{lengths: Float32Array, layers: {dims: readonly number[], data: Float32Array}[], milliseconds: number}>}
   */
  async read(image) {
    const feeds = this.#inputs(this.#reading, image);
    const start = performance.now();
    const found = await this.#reading.run(feeds);
    const milliseconds = performance.now() - start;
    const layers = this.#reading.outputNames.filter((name) => name.startsWith("layer")).map((name) => found[name]);
    return { lengths: found.lengths.data, layers, milliseconds };
  }

  /** The sign of the loss's gradient at each pixel, for the class that the network in float gives the image. */
  async direction(image) {
    const found = await this.#direction.run(this.#inputs(this.#direction, image));
    return found.direction.data;
  }

  /** Weights are inputs of the graphs in float, and constants of those in integers. */
  #inputs(session, image) {
    const all = { images: new this.#ort.Tensor("float32", image, [1, 1, 28, 28]) };
    this.#feeds.forEach((weight, index) => (all[`weight${index + 1}`] = weight));
    return Object.fromEntries(session.inputNames.map((name) => [name, all[name]]));
  }
}

/** One step of FGSM, within black and white. */
export function attack(image, direction, epsilon) {
  return image.map((value, at) => Math.min(Math.max(value + epsilon * direction[at], 0), 1));
}

/** The kernels [kh, kw, C, O, g, n, p] of a weights file. */
function kernels(file) {
  const tensors = readTensors(file);
  return [...tensors.keys()].filter((name) => name.endsWith("weight")).sort().map((name) => tensors.get(name));
}

async function fetchBytes(path) {
  const response = await fetch(new URL(path, document.baseURI));
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}
