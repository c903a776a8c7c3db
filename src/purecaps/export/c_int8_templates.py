"""The C that `export.c_int8` fills in."""

from purecaps.export.c_convolution import convolve_at

HEADER = r"""/* $about, in 8-bit integers. Written by purecaps $version; do not edit.
 *
 * Usage:
 *     uint8_t image[${NAME}_CHANNELS * ${NAME}_HEIGHT * ${NAME}_WIDTH];    channel by channel, row by row, 0 to 255
 *     int16_t found = ${name}_classify(image);
 *     puts(${name}_class_name(found));
 *
 * Not reentrant: the maps lie in one static buffer. Integers only; needs no library.
 */
#ifndef ${NAME}_H
#define ${NAME}_H

#include <stdint.h>

#define ${NAME}_CHANNELS ${channels}
#define ${NAME}_HEIGHT ${height}
#define ${NAME}_WIDTH ${width}
#define ${NAME}_CLASSES ${classes}

#ifdef __cplusplus
extern "C" {
#endif

/* A number for each class, from 0 up; the likelier, the larger.
 * $score_meaning */
void ${name}_scores(const uint8_t *image, int32_t scores[${NAME}_CLASSES]);

/* The class with the largest score; the first one where several are equally large. */
int16_t ${name}_classify(const uint8_t *image);

/* What a class is called; "" for a number that is no class. */
const char *${name}_class_name(int16_t number);

#ifdef __cplusplus
}
#endif

#endif
"""

SOURCE = (
    r"""/* $about, in 8-bit integers. Written by purecaps $version; do not edit. See ${name}.h. */
#include "${name}.h"

#include <stddef.h>

#define LAYERS ${layer_count}U
#define INPUT ${input}U
#define ARENA ${arena}U
#define CAPSULE ${capsule}U
#define ADDS_LENGTHS ${adds_lengths}
#define LIMIT ${limit}
#define SCORE_LIMIT ${score_limit}

/* A layer: maps of in_h x in_w x in_caps capsules to out_h x out_w x out_caps. A capsule is read as g matrices of m x n
 * and written as g matrices of m x p; weights are [kernel_h][kernel_w][in_caps][out_caps][g][n][p] and multipliers
 * [out_caps][g][p]. A stored number stands for itself less the map's zero. */
typedef struct {
    uint16_t in_h, in_w, in_caps;
    uint16_t out_h, out_w, out_caps;
    uint16_t kernel_h, kernel_w;
    uint16_t stride_h, stride_w;
    uint16_t padding_h, padding_w;
    uint16_t g, m, n, p;
    uint16_t chunk;
    uint16_t slope;
    uint16_t gain;
    uint8_t shift, gain_shift;
    uint8_t in_zero, out_zero;
    const int8_t *weights;
    const uint16_t *multipliers;
} layer_t;

${weights}

static const layer_t layers[LAYERS] = {
${layers}
};

/* A pixel is stored as (pixel * factor + summand) / 2^16. */
static const uint32_t pixel_factors[${NAME}_CHANNELS] = {${pixel_factors}};
static const uint32_t pixel_summands[${NAME}_CHANNELS] = {${pixel_summands}};

/* By squared length: ${segments} pieces in each octave. The first table is squash's factor, times 2^15. */
${tables}

static const char *const class_names[${NAME}_CLASSES] = {
${class_names}
};

/* Maps lie at alternating ends: a layer reads from one and writes to the other, and the two may overlap. */
static uint8_t arena[ARENA];
static int32_t sums[CAPSULE];

/* value / 2^bits to the nearest, halves away from zero. Only what is not negative is shifted. */
static int64_t round_shift(int64_t value, uint32_t bits)
{
    const uint64_t half = (uint64_t)1U << (bits - 1U);
    const uint64_t size = (uint64_t)((value < 0) ? -value : value);
    const int64_t rounded = (int64_t)((size + half) >> bits);
    return (value < 0) ? -rounded : rounded;
}

/* The table's value for a sum of squares from 2^${first_bits} to below 2^${beyond_bits}: a line between two entries. */
static int32_t look_up(const uint16_t *table, uint32_t squares)
{
    uint32_t shift = 0U;
    uint32_t kept;
    uint32_t index;
    int32_t step;
    while ((squares >> shift) >= ${kept}U) {
        shift++;
    }
    kept = squares >> shift;
    index = ((shift - ${first_shift}U) * ${segments}U) + (kept >> ${blend_bits}U) - ${segments}U;
    step = (int32_t)table[index + 1U] - (int32_t)table[index];
    step *= (int32_t)(kept & ${blend_mask}U);
    return (int32_t)table[index] + (int32_t)round_shift(step, ${blend_bits}U);
}

static uint64_t squares_of(const int32_t *numbers, size_t count)
{
    uint64_t squares = 0U;
    size_t i;
    for (i = 0U; i < count; i++) {
        squares += (uint64_t)((int64_t)numbers[i] * numbers[i]);
    }
    return squares;
}

/* Accumulators of output capsule o, in `sums`, to fixed point; negative ones shrink: leaky ReLU. */
static void rescale(const layer_t *l, size_t o)
{
    const uint16_t *multipliers = &l->multipliers[o * l->g * l->p];
    size_t g;
    size_t m;
    size_t p;
    for (g = 0U; g < l->g; g++) {
        for (m = 0U; m < l->m; m++) {
            int32_t *row = &sums[((g * l->m) + m) * l->p];
            for (p = 0U; p < l->p; p++) {
                if (row[p] != 0) {
                    uint32_t multiplier = multipliers[(g * l->p) + p];
                    int64_t t;
                    if (row[p] < 0) {
                        multiplier = ((multiplier * l->slope) + ${slope_half}U) >> ${slope_bits}U;
                    }
                    t = round_shift((int64_t)row[p] * (int32_t)multiplier, l->shift);
                    t = (t > LIMIT) ? LIMIT : t;
                    row[p] = (int32_t)((t < -LIMIT) ? -LIMIT : t);
                }
            }
        }
    }
}

/* Each run of `chunk` numbers of the capsule in `sums` times its squash factor, as the map stores them. */
static void squash(const layer_t *l, uint8_t *out)
{
    const size_t count = (size_t)l->g * l->m * l->p;
    const int64_t zero = l->out_zero;
    size_t start;
    size_t i;
    for (start = 0U; start < count; start += l->chunk) {
        uint64_t squares = squares_of(&sums[start], l->chunk);
        uint32_t bits = l->gain_shift;
        int32_t factor = (int32_t)squash_factors[0];
        while (squares >= ${beyond}U) {
            squares >>= 2U;
            bits++;
        }
        if (squares >= ${first}U) {
            factor = look_up(squash_factors, (uint32_t)squares);
        }
        factor = (int32_t)((((uint32_t)factor * l->gain) + ${gain_half}U) >> ${gain_bits}U);
        for (i = 0U; i < l->chunk; i++) {
            int64_t y = zero;
            if (sums[start + i] != 0) {
                y += round_shift((int64_t)sums[start + i] * factor, bits);
                y = (y < 0) ? 0 : y;
                y = (y > 255) ? 255 : y;
            }
            out[start + i] = (uint8_t)y;
        }
    }
}

static int is_zero(const uint8_t *numbers, size_t count, uint8_t zero)
{
    size_t i = 0U;
    while ((i < count) && (numbers[i] == zero)) {
        i++;
    }
    return (i == count) ? 1 : 0;
}

/* Adds one input capsule times one kernel capsule: for each of the g matrices, (m x n) (n x p). Four columns at a time,
 * so that their sums stay in registers. Blank parts of an image give rows of zeros, which add nothing. */
static void multiply_add(const layer_t *l, const uint8_t *u, const int8_t *w)
{
    const size_t p = l->p;
    const size_t n = l->n;
    const int32_t zero = l->in_zero;
    size_t row;
    size_t i;
    for (row = 0U; row < ((size_t)l->g * l->m); row++) {
        const uint8_t *numbers = &u[row * n];
        const int8_t *matrix = &w[(row / l->m) * n * p];
        int32_t *out = &sums[row * p];
        size_t column = (is_zero(numbers, n, l->in_zero) != 0) ? p : 0U;
        while ((column + 4U) <= p) {
            const int8_t *columns = &matrix[column];
            int32_t a = out[column];
            int32_t b = out[column + 1U];
            int32_t c = out[column + 2U];
            int32_t d = out[column + 3U];
            for (i = 0U; i < n; i++) {
                const int32_t number = (int32_t)numbers[i] - zero;
                a += number * columns[0];
                b += number * columns[1];
                c += number * columns[2];
                d += number * columns[3];
                columns = &columns[p];
            }
            out[column] = a;
            out[column + 1U] = b;
            out[column + 2U] = c;
            out[column + 3U] = d;
            column += 4U;
        }
        for (; column < p; column++) {
            for (i = 0U; i < n; i++) {
                out[column] += ((int32_t)numbers[i] - zero) * matrix[(i * p) + column];
            }
        }
    }
}

"""
    + convolve_at("uint8_t", "0", "    rescale(l, o);\n")
    + r"""
/* Capsules first to last, or last to first: the output grows into the place of input that is no longer read. */
static void run_layer(const layer_t *l, const uint8_t *in, uint8_t *out, int backwards)
{
    const size_t size = (size_t)l->g * l->m * l->p;
    const size_t capsules = (size_t)l->out_h * l->out_w * l->out_caps;
    size_t step;
    for (step = 0U; step < capsules; step++) {
        const size_t at = (backwards != 0) ? (capsules - 1U - step) : step;
        const size_t position = at / l->out_caps;
        convolve_at(l, in, position / l->out_w, position % l->out_w, at % l->out_caps);
        squash(l, &out[at * size]);
    }
}

/* The last layer: its capsules are measured, not squashed. */
static void measure(const layer_t *l, const uint8_t *in, int32_t scores[${NAME}_CLASSES])
{
    const size_t size = (size_t)l->g * l->m * l->p;
    const size_t positions = (size_t)l->out_h * l->out_w;
    size_t at;
    size_t k;
    for (k = 0U; k < ${NAME}_CLASSES; k++) {
        scores[k] = 0;
        for (at = 0U; at < positions; at++) {
            uint64_t squares;
            convolve_at(l, in, at / l->out_w, at % l->out_w, k);
            squares = squares_of(sums, size);
#if ADDS_LENGTHS
            squares = (squares < ${beyond}U) ? squares : (${beyond}U - 1U);
            if (squares >= ${first}U) {
                scores[k] += look_up(squash_lengths, (uint32_t)squares);
            } else {
                scores[k] += (int32_t)((squash_lengths[0] * (uint32_t)squares) >> ${first_bits}U);
            }
#else
            squares = (squares < SCORE_LIMIT) ? squares : SCORE_LIMIT;
            scores[k] = ((int32_t)squares > scores[k]) ? (int32_t)squares : scores[k];
#endif
        }
    }
}

/* The image's crop as the first layer's capsules [y][x][channel]. */
static void read_image(const uint8_t *image, uint8_t *in)
{
    size_t y;
    size_t x;
    size_t c;
    for (y = 0U; y < ${in_height}U; y++) {
        for (x = 0U; x < ${in_width}U; x++) {
            for (c = 0U; c < ${channels}U; c++) {
                const size_t from = (((c * ${height}U) + y + ${crop_top}U) * ${width}U) + x + ${crop_left}U;
                const uint32_t pixel = ((image[from] * pixel_factors[c]) + pixel_summands[c]) >> ${pixel_bits}U;
                in[(((y * ${in_width}U) + x) * ${channels}U) + c] = (uint8_t)((pixel > 255U) ? 255U : pixel);
            }
        }
    }
}

void ${name}_scores(const uint8_t *image, int32_t scores[${NAME}_CLASSES])
{
    uint8_t *in = &arena[ARENA - INPUT];
    size_t index;
    read_image(image, in);
    for (index = 1U; index < LAYERS; index++) {
        const layer_t *l = &layers[index - 1U];
        const size_t numbers = (size_t)l->out_h * l->out_w * l->out_caps * l->g * l->m * l->p;
        const int backwards = (int)((index - 1U) % 2U);
        uint8_t *out = (backwards != 0) ? &arena[ARENA - numbers] : arena;
        run_layer(l, in, out, backwards);
        in = out;
    }
    measure(&layers[LAYERS - 1U], in, scores);
}

int16_t ${name}_classify(const uint8_t *image)
{
    static int32_t scores[${NAME}_CLASSES];
    int16_t best = 0;
    int16_t k;
    ${name}_scores(image, scores);
    for (k = 1; k < ${NAME}_CLASSES; k++) {
        if (scores[k] > scores[best]) {
            best = k;
        }
    }
    return best;
}

const char *${name}_class_name(int16_t number)
{
    return ((number >= 0) && (number < ${NAME}_CLASSES)) ? class_names[number] : "";
}
"""
)
