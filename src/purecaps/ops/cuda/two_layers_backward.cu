// The gradients of a network's first two layers in one kernel: of the second layer's kernels and input, from there through
// the first layer's activation, and, with IMAGE_N, of the first layer's kernels.
//
// The second layer's rows (c, n) have 8 numbers, or 4, which stand as 8 here with zeros behind them; four rows m make a
// pixel. One block has an image: its input map u and the gradient G of its output lie whole in shared memory, because
// each of nine kernel positions reads them again, and from the cache that took most of the time. Numbers that are
// products' operands are cut to TF32 by the product itself. With HALVES maps and kernels are halves in memory and floats
// here: TF32 has all their digits.
//
// Input gradient: a warp has a row of pixels. With 8 columns a product would be short, so the three kernel positions of
// a kernel row stand side by side as 24 columns: of the gradient G at x they make what it brings to the pixels x, x + 1
// and x + 2. These are brought together at the end, in registers: a thread has the pixels 2 q and 2 q + 1 by turns, so
// what comes from one further on is with the neighbour of the other parity, and from two further on with itself.
//
// Weight gradients: k is pixels times m, or pixels for the first layer. Warps share out the pixels, and their sums are
// added up in shared memory, in order; those of blocks by sum_parts.py.
//
// Sizes come from two_layers.py as constants before this text. H, W: of the second layer's input; REAL_WIDTH: its rows'
// numbers; OUT_WIDTH: columns of all of its output capsules, (o, p). An image has IMAGE_FLOATS numbers, IMAGE_N to a
// pixel; IMAGE_DOWN, IMAGE_ACROSS and IMAGE_DEEP are how far apart neighbours lie.

#ifdef HALVES
typedef u16 Number;
#else
typedef float Number;
#endif
constexpr int THREADS = 32 * WARPS, ROWS = 4, WIDTH = 8;
constexpr int OUT_H = H - 2, OUT_W = W - 2, PIXELS = H * W, OUT_PIXELS = OUT_H * OUT_W;
constexpr int WEIGHTS = 9 * REAL_WIDTH * OUT_WIDTH;
constexpr int TILES = (OUT_W + 3) / 4, ACROSS = (W + 1) / 2;  // tiles of 4 pixels in a row of G; pairs of pixels in one of u
// The second layer's weight gradient: where its columns are many, two warps share them.
constexpr int SHARES = OUT_WIDTH >= 32 ? 2 : 1, SPLITS = WARPS / SHARES, OWN_COLUMNS = OUT_WIDTH / (8 * SHARES);
static_assert(WARPS % SHARES == 0 && OUT_WIDTH % (8 * SHARES) == 0, "the weight gradient's share of a warp");

// Rows of G lie 8 or 24 beyond a multiple of 32 apart, so that 4 threads of k and 8 of rows or columns find different
// banks; so do those pixels of the input gradient that stay here, 32 numbers each.
constexpr int G_PITCH = OUT_WIDTH % 16 == 8 ? OUT_WIDTH : OUT_WIDTH + 8;
#ifdef IMAGE_N
constexpr int MAP_WIDTH = WIDTH, PIXEL_PITCH = ROWS * WIDTH + 8, MAP_FLOATS = PIXELS * PIXEL_PITCH;
constexpr int FIRST_ROWS = 9 * IMAGE_N, FIRST_TILES = (FIRST_ROWS + 15) / 16, IMAGE_SIZE = IMAGE_FLOATS;
#else
constexpr int MAP_WIDTH = REAL_WIDTH, PIXEL_PITCH = ROWS * REAL_WIDTH, MAP_FLOATS = 0, FIRST_TILES = 0, IMAGE_SIZE = 0;
#endif
constexpr int most(int a, int b) { return a > b ? a : b; }
constexpr int KERNEL_FLOATS = 9 * WIDTH * G_PITCH, G_FLOATS = OUT_PIXELS * ROWS * G_PITCH, U_FLOATS = PIXELS * ROWS * WIDTH;
constexpr int BEYOND = (4 * TILES - OUT_W) * ROWS * G_PITCH;  // what the last row's tiles read, and do not use
constexpr int SUM_FLOATS = SPLITS * 9 * WIDTH * G_PITCH, FIRST_SUM_FLOATS = WARPS * FIRST_TILES * 16 * PIXEL_PITCH;
constexpr int MAPS_FLOATS = G_FLOATS + most(BEYOND, U_FLOATS + MAP_FLOATS + IMAGE_SIZE);
constexpr int SHARED_FLOATS = KERNEL_FLOATS + most(MAPS_FLOATS, SUM_FLOATS + FIRST_SUM_FLOATS);

// Where four numbers of rows of LENGTH lie, of which GROUP in a row have room for WIDTH.
template <int LENGTH, int PITCH, int GROUP>
DEVICE float* place(float* shared, int quad) {
    const int row = quad / (LENGTH / 4), column = quad % (LENGTH / 4) * 4;
    return shared + (row / GROUP * WIDTH + row % GROUP) * PITCH + column;
}

template <int COUNT, int LENGTH, int PITCH, int GROUP>
DEVICE void begin_rows(float* shared, const float* global) {
    for (int i = thread_number(); i < COUNT * LENGTH / 4; i += THREADS)
        begin_copy(place<LENGTH, PITCH, GROUP>(shared, i), global + i * 4);
}

// Of halves, which the copying engine cannot make floats of: several loads of a thread are under way at once instead.
template <int COUNT, int LENGTH, int PITCH, int GROUP>
DEVICE void begin_rows(float* shared, const u16* global) {
    constexpr int PIECES = COUNT * LENGTH / 8, LOADS = 4;
    for (int first = thread_number(); first < PIECES; first += LOADS * THREADS) {
        Four words[LOADS];
        UNROLL for (int each = 0; each < LOADS; each++)
            words[each] = *(const Four*)(global + 8 * smaller(first + each * THREADS, PIECES - 1));
        UNROLL for (int each = 0; each < LOADS; each++) {
            const int i = first + each * THREADS;
            const Four w = words[each];
            if (i >= PIECES) continue;
            *(Quad*)place<LENGTH, PITCH, GROUP>(shared, 2 * i) =
                Quad{half_of(w.x, 0), half_of(w.x, 1), half_of(w.y, 0), half_of(w.y, 1)};
            *(Quad*)place<LENGTH, PITCH, GROUP>(shared, 2 * i + 1) =
                Quad{half_of(w.z, 0), half_of(w.z, 1), half_of(w.w, 0), half_of(w.w, 1)};
        }
    }
}

// Zeros behind the real numbers: of kernels these are whole rows, of the map u a row's second half.
template <int COUNT, int LENGTH, int PITCH, int STEP>
DEVICE void clear_rows(float* shared) {
    for (int i = thread_number(); i < COUNT * LENGTH / 4; i += THREADS)
        *(Quad*)(shared + i / (LENGTH / 4) * PITCH * STEP + i % (LENGTH / 4) * 4) = Quad{0.0f, 0.0f, 0.0f, 0.0f};
}

DEVICE void put(float* to, Pair two) { *(Pair*)to = two; }
DEVICE void put(u16* to, Pair two) { *(u32*)to = pack(two.x, two.y); }

// The way back through squash and leaky ReLU; the same arithmetic as activation_gradient in ops/triton/parts.py, without
// its exact variant: with e = exp(-r), f = (1 - e) / r and what follows from it, by series where differences cancel.
struct Activation {
    float factor, along;

    // `dot` is the sum of y times its gradient over the capsule, r the capsule's length before squashing.
    DEVICE Activation(float r, float dot) {
        const bool known = r > 3e-10f, near = r < 0.25f;
        r = larger(r, 3e-10f);
        const float e = exp2_fast(r * -1.44269504f);
        const float series = 1.0f - r * (1.0f / 2 - r * (1.0f / 6 - r * (1.0f / 24 - r * (1.0f / 120))));
        const float length = near ? r * series : 1.0f - e;
        factor = near ? series : divide_fast(length, r);
        const float outward = divide_fast(1.0f, length);
        const float gap = r * (r * (1.0f / 3 - r * (1.0f / 8 - r * (1.0f / 30 - r * (1.0f / 144)))) - 1.0f / 2);
        along = known ? (near ? gap : e - factor) * outward * outward * dot : 0.0f;
    }

    DEVICE float operator()(float y, float gradient, float slope) const {
        const float before = y * along + gradient * factor;
        return y > 0.0f ? before : before * slope;
    }
};

// Over the 16 threads that have a capsule: those whose numbers differ in the last four bits.
DEVICE float sum_of_pixel(float x) {
    UNROLL for (int distance = 1; distance < 16; distance *= 2) x += from_neighbour(x, distance);
    return x;
}

DEVICE constexpr int real_tile(int tile) { return tile < 0 ? 0 : tile < TILES ? tile : TILES - 1; }

// A row of the input gradient, on through the activation that made the input.
template <class To>
DEVICE void row_gradient(int y, const float* kernels, const float* g, const float* u, const float* lengths,
                         To* gradient, float slope) {
    const int lane = thread_number() & 31, group = lane >> 2, quad = lane & 3;
    const int odd = group >> 2;  // of the pixels 2 q and 2 q + 1 the thread has the second
    float length[ACROSS];
    UNROLL for (int q = 0; q < ACROSS; q++) length[q] = lengths[y * W + smaller(2 * q + odd, W - 1)];
    float acc[TILES][3][4];
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int j = 0; j < 3; j++)
            UNROLL for (int i = 0; i < 4; i++) acc[tile][j][i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        if (y - i < 0 || y - i >= OUT_H) continue;
        const float* from = g + ((y - i) * OUT_W * ROWS + group) * G_PITCH + 2 * quad;
        const float* kernel = kernels + (i * 3 * WIDTH + group) * G_PITCH + 2 * quad;
#pragma unroll 4
        for (int k = 0; k < OUT_WIDTH; k += 8) {
            Pair b[3];
            UNROLL for (int j = 0; j < 3; j++) b[j] = *(const Pair*)(kernel + j * (WIDTH * G_PITCH) + k);
            UNROLL for (int tile = 0; tile < TILES; tile++) {
                const Pair top = *(const Pair*)(from + 16 * tile * G_PITCH + k);
                const Pair bottom = *(const Pair*)(from + (16 * tile + 8) * G_PITCH + k);
                const float a[4] = {top.x, bottom.x, top.y, bottom.y};
                UNROLL for (int j = 0; j < 3; j++) multiply(acc[tile][j], a, b[j].x, b[j].y);
            }
        }
    }
    UNROLL for (int q = 0; q < ACROSS; q++) {
        float sum[2];
        UNROLL for (int e = 0; e < 2; e++) {
            float brought[3][2];  // by position j: to the pixels 2 q, and 2 q - 2
            UNROLL for (int j = 0; j < 3; j++)
                UNROLL for (int back = 0; back < 2; back++) {
                    const int pair = q - back;
                    const bool real = pair >= 0 && 2 * pair + odd < OUT_W;
                    brought[j][back] = real ? acc[real_tile(pair / 2)][j][(pair & 1) * 2 + e] : 0.0f;
                }
            const float other = from_neighbour(odd ? brought[1][1] : brought[1][0], 16);
            sum[e] = brought[0][0] + other + brought[2][1];
        }
        const bool real = 2 * q + odd < W;
        const int row = (y * W + (real ? 2 * q + odd : 0)) * ROWS + (group & 3);
        const Pair value = *(const Pair*)(u + row * WIDTH + 2 * quad);
        const Activation back(length[q], sum_of_pixel(value.x * sum[0] + value.y * sum[1]));
        const Pair out = {back(value.x, sum[0], slope), back(value.y, sum[1], slope)};
        if (real && 2 * quad < MAP_WIDTH)
            put(gradient + row / ROWS * PIXEL_PITCH + row % ROWS * MAP_WIDTH + 2 * quad, out);
    }
}

// The second layer's weight gradient, of those pixels that the warp has.
DEVICE void second_weights(const float* g, const float* u, float (&acc)[5][OWN_COLUMNS][4]) {
    const int lane = thread_number() & 31, warp = thread_number() >> 5, group = lane >> 2, quad = lane & 3;
    const int first_column = warp % SHARES * OWN_COLUMNS * 8, split = warp / SHARES;
    // Rows g and g + 8 of a product are two numbers side by side, of one position for g < 4 and of the next for the others.
    int windows[5];
    UNROLL for (int two = 0; two < 5; two++) {
        const int position = smaller(2 * two + (group >> 2), 8);  // the tenth's sum is not used
        windows[two] = (position / 3 * W + position % 3) * (ROWS * WIDTH) + quad * WIDTH + 2 * (group & 3);
    }
    UNROLL for (int two = 0; two < 5; two++)
        UNROLL for (int column = 0; column < OWN_COLUMNS; column++)
            UNROLL for (int i = 0; i < 4; i++) acc[two][column][i] = 0.0f;
#pragma unroll 2
    for (int pixel = 2 * split; pixel < OUT_PIXELS; pixel += 2 * SPLITS) {
        const float* seen[2];
        float columns[OWN_COLUMNS][2];  // one by one: two at a time they would not lie as products want them
        UNROLL for (int i = 0; i < 2; i++) {
            const bool real = pixel + i < OUT_PIXELS;
            const int at = real ? pixel + i : 0, y = at / OUT_W, x = at - y * OUT_W;
            seen[i] = u + (y * W + x) * (ROWS * WIDTH);
            UNROLL for (int column = 0; column < OWN_COLUMNS; column++) {
                const float given = g[(at * ROWS + quad) * G_PITCH + first_column + 8 * column + group];
                columns[column][i] = real ? given : 0.0f;
            }
        }
        UNROLL for (int two = 0; two < 5; two++) {
            const Pair left = *(const Pair*)(seen[0] + windows[two]), right = *(const Pair*)(seen[1] + windows[two]);
            const float a[4] = {left.x, left.y, right.x, right.y};
            UNROLL for (int column = 0; column < OWN_COLUMNS; column++)
                multiply(acc[two][column], a, columns[column][0], columns[column][1]);
        }
    }
}

// Into shared memory: rows (position, n), columns (o, p), for each share of the pixels.
DEVICE void keep_second(float* sums, const float (&acc)[5][OWN_COLUMNS][4]) {
    const int lane = thread_number() & 31, warp = thread_number() >> 5, group = lane >> 2, quad = lane & 3;
    UNROLL for (int two = 0; two < 5; two++) {
        const int position = 2 * two + (group >> 2);
        if (position < 9)
            UNROLL for (int half = 0; half < 2; half++)
                UNROLL for (int column = 0; column < OWN_COLUMNS; column++) {
                    const int row = (warp / SHARES * 9 + position) * WIDTH + 2 * (group & 3) + half;
                    *(Pair*)(sums + row * G_PITCH + (warp % SHARES * OWN_COLUMNS + column) * 8 + 2 * quad) =
                        Pair{acc[two][column][2 * half], acc[two][column][2 * half + 1]};
                }
    }
}

// Sums of COUNT shares, APART from each other in shared memory, added to a block's part of a gradient.
template <int COUNT, int APART>
DEVICE void add_up(const float* sums, float* to, bool first) {
    Quad sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!first) sum = *(const Quad*)to;
    UNROLL for (int share = 0; share < COUNT; share++) {
        const Quad one = *(const Quad*)(sums + share * APART);
        sum = Quad{sum.x + one.x, sum.y + one.y, sum.z + one.z, sum.w + one.w};
    }
    *(Quad*)to = sum;
}

DEVICE void add_second(const float* sums, float* part, bool first) {
    for (int i = thread_number(); i < WEIGHTS / 4; i += THREADS) {
        const int row = i / (OUT_WIDTH / 4), column = i % (OUT_WIDTH / 4) * 4;
        const float* own = sums + (row / REAL_WIDTH * WIDTH + row % REAL_WIDTH) * G_PITCH + column;
        add_up<SPLITS, 9 * WIDTH * G_PITCH>(own, part + 4 * i, first);
    }
}

#ifdef IMAGE_N
// The first layer's weight gradient, of those pixels that the warp has: rows (position, n), columns (m, n) of its output.
DEVICE void first_weights(const float* image, const float* gradient, float (&acc)[FIRST_TILES][4][4]) {
    const int lane = thread_number() & 31, warp = thread_number() >> 5, group = lane >> 2, quad = lane & 3;
    int windows[FIRST_TILES][2];
    UNROLL for (int tile = 0; tile < FIRST_TILES; tile++)
        UNROLL for (int half = 0; half < 2; half++) {
            const int row = smaller(16 * tile + 8 * half + group, FIRST_ROWS - 1), position = row / IMAGE_N;
            windows[tile][half] = position / 3 * IMAGE_DOWN + position % 3 * IMAGE_ACROSS + row % IMAGE_N * IMAGE_DEEP;
            UNROLL for (int column = 0; column < 4; column++) acc[tile][column][2 * half] = acc[tile][column][2 * half + 1] = 0.0f;
        }
    for (int pixel = 8 * warp; pixel < PIXELS; pixel += 8 * WARPS) {
        const float *seen[2], *upstream[2];
        bool real[2];
        UNROLL for (int i = 0; i < 2; i++) {
            const int own = pixel + quad + 4 * i;
            real[i] = own < PIXELS;
            const int at = real[i] ? own : 0, y = at / W, x = at - y * W;
            seen[i] = image + (y * IMAGE_DOWN + x * IMAGE_ACROSS) * IMAGE_STRIDE;
            upstream[i] = gradient + at * PIXEL_PITCH + group;
        }
        UNROLL for (int tile = 0; tile < FIRST_TILES; tile++) {
            const float a[4] = {seen[0][windows[tile][0]], seen[0][windows[tile][1]], seen[1][windows[tile][0]],
                                seen[1][windows[tile][1]]};
            UNROLL for (int column = 0; column < 4; column++)
                multiply(acc[tile][column], a, real[0] ? upstream[0][8 * column] : 0.0f,
                         real[1] ? upstream[1][8 * column] : 0.0f);
        }
    }
}

DEVICE void keep_first(float* sums, const float (&acc)[FIRST_TILES][4][4]) {
    const int lane = thread_number() & 31, warp = thread_number() >> 5, group = lane >> 2, quad = lane & 3;
    UNROLL for (int tile = 0; tile < FIRST_TILES; tile++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int column = 0; column < 4; column++)
                *(Pair*)(sums + ((warp * FIRST_TILES + tile) * 16 + 8 * half + group) * PIXEL_PITCH + 8 * column + 2 * quad) =
                    Pair{acc[tile][column][2 * half], acc[tile][column][2 * half + 1]};
}

DEVICE void add_first(const float* sums, float* part, bool first) {
    constexpr int OWN = ROWS * REAL_WIDTH;
    for (int i = thread_number(); i < FIRST_ROWS * OWN / 4; i += THREADS) {
        const int row = i / (OWN / 4), column = i % (OWN / 4) * 4;
        const float* own = sums + row * PIXEL_PITCH + column / REAL_WIDTH * WIDTH + column % REAL_WIDTH;
        add_up<WARPS, FIRST_TILES * 16 * PIXEL_PITCH>(own, part + 4 * i, first);
    }
}
#endif

// `blocks` have the images of a network; `batch` is how many it has. Parts of gradients: rows (position, n), columns
// (o, p), for each block and network.
KERNEL two_layers_backward(const Number* gradient_out, const Number* weights, const Number* input, const float* lengths,
                           const Number* images, Number* gradient, float* parts, float* first_parts, int batch, int blocks,
                           float slope) {
    float* kernels = (float*)shared_memory();
    float *g = kernels + KERNEL_FLOATS, *u = g + G_FLOATS, *sums = g;
    const int network = block_number() / blocks, own = block_number() - network * blocks, warp = thread_number() >> 5;
    const int part = own * (block_count() / blocks) + network;
    if (REAL_WIDTH < WIDTH)
        for (int row = REAL_WIDTH; row < WIDTH; row++)
            clear_rows<9, OUT_WIDTH, G_PITCH, WIDTH>(kernels + row * G_PITCH);
    begin_rows<9 * REAL_WIDTH, OUT_WIDTH, G_PITCH, REAL_WIDTH>(kernels, weights + network * WEIGHTS);
    for (int turn = own; turn < batch; turn += blocks) {
        const long long image = (long long)network * batch + turn;
        begin_rows<OUT_PIXELS * ROWS, OUT_WIDTH, G_PITCH, WIDTH>(g, gradient_out + image * (OUT_PIXELS * ROWS * OUT_WIDTH));
        begin_rows<PIXELS * ROWS, REAL_WIDTH, WIDTH, WIDTH>(u, input + image * (PIXELS * ROWS * REAL_WIDTH));
        if (REAL_WIDTH < WIDTH) clear_rows<PIXELS * ROWS, WIDTH / 2, WIDTH, 1>(u + REAL_WIDTH);
#ifdef IMAGE_N
        float *map = u + U_FLOATS, *pixels = map + MAP_FLOATS;
        begin_rows<1, IMAGE_FLOATS, IMAGE_FLOATS, WIDTH>(pixels, images + image * IMAGE_FLOATS);
#else
        Number* map = gradient + image * (PIXELS * ROWS * REAL_WIDTH);
#endif
        end_group();
        wait_for_copies<0>();
        wait_for_block();
        for (int y = warp; y < H; y += WARPS) row_gradient(y, kernels, g, u, lengths + image * PIXELS, map, slope);
        float second[5][OWN_COLUMNS][4];
        second_weights(g, u, second);
#ifdef IMAGE_N
        wait_for_block();  // all rows of the input gradient are there
        float first[FIRST_TILES][4][4];
        first_weights(pixels, map, first);
#endif
        wait_for_block();  // the maps are no longer read: sums lie where they were
        keep_second(sums, second);
#ifdef IMAGE_N
        keep_first(sums + SUM_FLOATS, first);
#endif
        wait_for_block();
        add_second(sums, parts + (long long)part * WEIGHTS, turn == own);
#ifdef IMAGE_N
        add_first(sums + SUM_FLOATS, first_parts + part * (FIRST_ROWS * ROWS * REAL_WIDTH), turn == own);
#endif
        wait_for_block();
    }
}
