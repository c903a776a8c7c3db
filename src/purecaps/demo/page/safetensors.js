// Reading a safetensors file: eight bytes with the header's size, the header as JSON, then the numbers.

const KINDS = { F32: Float32Array, I8: Int8Array };

/**
 * @param {ArrayBuffer} buffer
 * @returns {Map<string, {shape: number[], data: Float32Array}>} the tensors of float32 and of int8 by name
 */
export function readTensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const tensors = new Map();
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(header)) {
    const Kind = KINDS[dtype];
    if (!Kind) continue;
    // A copy, for a view would have to begin at a multiple of four bytes.
    const numbers = new Kind(buffer.slice(8 + size + offsets[0], 8 + size + offsets[1]));
    tensors.set(name, { shape, data: Float32Array.from(numbers) });
  }
  return tensors;
}
