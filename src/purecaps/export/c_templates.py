"""The C that `export.c` fills in."""

from purecaps.export.c_convolution import convolve_at

HEADER = r"""/* $about. Written by purecaps $version; do not edit.
 *
 * Usage:
 *     uint8_t image[${NAME}_CHANNELS * ${NAME}_HEIGHT * ${NAME}_WIDTH];    channel by channel, row by row, 0 to 255
 *     int16_t found = ${name}_classify(image);
 *     puts(${name}_class_name(found));
 *
 * Not reentrant: the maps lie in one static buffer. Needs sqrtf and expm1f of <math.h>.
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

/* The length of each class's capsule, in [0, 1). */
void ${name}_lengths(const uint8_t *image, float lengths[${NAME}_CLASSES]);

/* The class with the longest capsule; the first one where several are equally long. */
int16_t ${name}_classify(const uint8_t *image);

/* What a class is called; "" for a number that is no class. */
const char *${name}_class_name(int16_t number);

#ifdef __cplusplus
}
#endif

#endif
"""

SOURCE = (
    r"""/* $about. Written by purecaps $version; do not edit. See ${name}.h. */
#include "${name}.h"

#include <math.h>
#include <stddef.h>

#define LAYERS ${layer_count}U
#define INPUT ${input}U
#define ARENA ${arena}U
#define CAPSULE ${capsule}U
#define POOL_MAX ${pool_max}

/* A layer: maps of in_h x in_w x in_caps capsules to out_h x out_w x out_caps. A capsule is read as g matrices of m x n
 * and written as g matrices of m x p; weights are [kernel_h][kernel_w][in_caps][out_caps][g][n][p]. */
typedef struct {
    uint16_t in_h, in_w, in_caps;
    uint16_t out_h, out_w, out_caps;
    uint16_t kernel_h, kernel_w;
    uint16_t stride_h, stride_w;
    uint16_t padding_h, padding_w;
    uint16_t g, m, n, p;
    uint16_t chunk;
    float slope;
    const float *weights;
} layer_t;

${weights}

static const layer_t layers[LAYERS] = {
${layers}
};

static const float input_scale[${NAME}_CHANNELS] = {${scale}};
static const float input_shift[${NAME}_CHANNELS] = {${shift}};

static const char *const class_names[${NAME}_CLASSES] = {
${class_names}
};

/* Maps lie at alternating ends: a layer reads from one and writes to the other, and the two may overlap. */
static float arena[ARENA];
static float sums[CAPSULE];

static float length_of(const float *numbers, size_t count)
{
    float squares = 0.0F;
    size_t i;
    for (i = 0U; i < count; i++) {
        squares += numbers[i] * numbers[i];
    }
    return sqrtf(squares);
}

/* Leaky ReLU, then (1 - exp(-r)) / r times each run of `chunk` numbers, r being its length; 1 times it at r = 0. */
static void activate(float *capsule, size_t count, size_t chunk, float slope)
{
    size_t start;
    size_t i;
    for (i = 0U; i < count; i++) {
        if (capsule[i] < 0.0F) {
            capsule[i] *= slope;
        }
    }
    for (start = 0U; start < count; start += chunk) {
        const float r = length_of(&capsule[start], chunk);
        if (r > 0.0F) {
            const float factor = -expm1f(-r) / r;
            for (i = 0U; i < chunk; i++) {
                capsule[start + i] *= factor;
            }
        }
    }
}

/* Adds one input capsule times one kernel capsule: for each of the g matrices, (m x n) (n x p). */
static void multiply_add(const layer_t *l, const float *u, const float *w)
{
    size_t g;
    size_t m;
    size_t n;
    size_t p;
    for (g = 0U; g < l->g; g++) {
        for (m = 0U; m < l->m; m++) {
            const float *row = &u[((g * l->m) + m) * l->n];
            float *out = &sums[((g * l->m) + m) * l->p];
            for (n = 0U; n < l->n; n++) {
                const float *columns = &w[((g * l->n) + n) * l->p];
                for (p = 0U; p < l->p; p++) {
                    out[p] += row[n] * columns[p];
                }
            }
        }
    }
}

"""
    + convolve_at("float", "0.0F")
    + r"""
/* Capsules first to last, or last to first: the output grows into the place of input that is no longer read. */
static void run_layer(const layer_t *l, const float *in, float *out, int backwards)
{
    const size_t size = (size_t)l->g * l->m * l->p;
    const size_t capsules = (size_t)l->out_h * l->out_w * l->out_caps;
    size_t step;
    size_t i;
    for (step = 0U; step < capsules; step++) {
        const size_t at = (backwards != 0) ? (capsules - 1U - step) : step;
        const size_t position = at / l->out_caps;
        convolve_at(l, in, position / l->out_w, position % l->out_w, at % l->out_caps);
        activate(sums, size, l->chunk, l->slope);
        for (i = 0U; i < size; i++) {
            out[(at * size) + i] = sums[i];
        }
    }
}

/* The image's crop as the first layer's capsules [y][x][channel]. */
static void read_image(const uint8_t *image, float *in)
{
    size_t y;
    size_t x;
    size_t c;
    for (y = 0U; y < ${in_height}U; y++) {
        for (x = 0U; x < ${in_width}U; x++) {
            for (c = 0U; c < ${channels}U; c++) {
                const size_t from = (((c * ${height}U) + y + ${crop_top}U) * ${width}U) + x + ${crop_left}U;
                in[(((y * ${in_width}U) + x) * ${channels}U) + c] =
                    ((float)image[from] * input_scale[c]) + input_shift[c];
            }
        }
    }
}

void ${name}_lengths(const uint8_t *image, float lengths[${NAME}_CLASSES])
{
    const layer_t *last = &layers[LAYERS - 1U];
    const size_t size = (size_t)last->g * last->m * last->p;
    const size_t positions = (size_t)last->out_h * last->out_w;
    float *in = &arena[ARENA - INPUT];
    size_t index;
    size_t k;
    read_image(image, in);
    for (index = 0U; index < LAYERS; index++) {
        const layer_t *l = &layers[index];
        const size_t numbers = (size_t)l->out_h * l->out_w * l->out_caps * l->g * l->m * l->p;
        const int backwards = (int)(index % 2U);
        float *out = (backwards != 0) ? &arena[ARENA - numbers] : arena;
        run_layer(l, in, out, backwards);
        in = out;
    }
    for (k = 0U; k < ${NAME}_CLASSES; k++) {
        float pooled = 0.0F;
        for (index = 0U; index < positions; index++) {
            const float length = length_of(&in[((index * ${NAME}_CLASSES) + k) * size], size);
#if POOL_MAX
            pooled = (length > pooled) ? length : pooled;
#else
            pooled += length / (float)positions;
#endif
        }
        lengths[k] = pooled;
    }
}

int16_t ${name}_classify(const uint8_t *image)
{
    static float lengths[${NAME}_CLASSES];
    int16_t best = 0;
    int16_t k;
    ${name}_lengths(image, lengths);
    for (k = 1; k < ${NAME}_CLASSES; k++) {
        if (lengths[k] > lengths[best]) {
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
