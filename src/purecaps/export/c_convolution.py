"""The loop over a kernel's positions, in C: the same for numbers in float and in 8 bits."""

from __future__ import annotations

_TEXT = r"""/* One output capsule, at (y, x), into `sums`. */
static void convolve_at(const layer_t *l, const NUMBER *in, size_t y, size_t x, size_t o)
{
    const size_t in_size = (size_t)l->g * l->m * l->n;
    const size_t out_size = (size_t)l->g * l->m * l->p;
    const size_t kernel_size = (size_t)l->g * l->n * l->p;
    size_t i;
    size_t j;
    size_t c;
    for (i = 0U; i < out_size; i++) {
        sums[i] = ZERO;
    }
    for (i = 0U; i < l->kernel_h; i++) {
        const size_t h = (y * l->stride_h) + i;
        for (j = 0U; j < l->kernel_w; j++) {
            const size_t v = (x * l->stride_w) + j;
            if ((h >= l->padding_h) && (v >= l->padding_w)) {
                const size_t row = h - l->padding_h;
                const size_t column = v - l->padding_w;
                if ((row < l->in_h) && (column < l->in_w)) {
                    for (c = 0U; c < l->in_caps; c++) {
                        const size_t from = (((row * l->in_w) + column) * l->in_caps) + c;
                        const size_t kernel = (((((i * l->kernel_w) + j) * l->in_caps) + c) * l->out_caps) + o;
                        multiply_add(l, &in[from * in_size], &l->weights[kernel * kernel_size]);
                    }
                }
            }
        }
    }
THEN}
"""


def convolve_at(number: str, zero: str, then: str = "") -> str:
    """`convolve_at`, which leaves one output capsule in `sums`.

    Args:
        number: the type of a map's numbers.
        zero: what sums begin with.
        then: lines to end it with.
    """
    return _TEXT.replace("NUMBER", number).replace("ZERO", zero).replace("THEN", then)
