// A whole small network of capsules in one kernel: images in, class lengths or classes out.
//
// A warp takes an image through all layers by itself; its maps stay in shared memory, where no other warp looks, so
// that nothing waits but for its own warp. Capsules have four rows, m, and rows of N = 4 or 8 numbers, padded with
// zeros. Eight positions of a map are multiplied at once, with two products of 16 rows each: a thread holds the four
// rows m of one position in its four rows of the two products, so that squash adds up what it has in registers and asks
// at most three neighbours.
//
// Where k and the columns of a product lie is free, as long as the weights lie alike. A step of 16 k is four units, one
// for each of four threads: a kernel position, an input capsule, and four numbers of its rows. Of a unit a thread reads
// the rows m = 0 and 1 with one load, in the order in which the product wants them, and the other two with another.
//
// What is known of the network comes from layout.py: constants before this text, the maps in the place of MAPS, and
// after it the function that calls the layers one by one. Emulated on a CPU, the primitives are those of the emulator.

#ifndef EMULATED
#ifdef BFLOAT16
#define OPERANDS "f32.bf16.bf16.f32"
#else
#define OPERANDS "f32.f16.f16.f32"
#endif

// c += a b: rows of a are the thread's group and that plus 8, k its pairs; see the PTX manual, mma.m16n8k16.
DEVICE void multiply(float (&c)[4], Four a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col." OPERANDS " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

DEVICE float rsqrt_fast(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float of_byte(u32 word, int which) {  // without the slow unit that converts: 2^23 + byte, less 2^23
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440 + which)) - 8388608.0f;
}

DEVICE float as_float(u32 word) { return __uint_as_float(word); }
#endif

// What squash multiplies a capsule with, (1 - exp(-r)) / r, and the length that it gives, from r squared. At zero they
// are 1 and 0, without 0 / 0.
struct Squash {
    float factor, length;
    DEVICE Squash(float squares) {
        const float inverse = rsqrt_fast(larger(squares, 1e-36f)), r = squares * inverse;
        const float far = (1.0f - exp2_fast(r * -1.44269504f)) * inverse;
        factor = r < 0.0078125f ? 1.0f - 0.5f * r : far;
        length = r * factor;
    }
};

DEVICE float leaky(float x, float slope) { return larger(x, x * slope); }  // a slope in [0, 1]

// Where a map's numbers lie in shared memory, for the layer that reads them with a stride: in planes, one for each four
// numbers of a capsule's rows and each half of the four rows. A plane has 16 bytes a position: the first two numbers of
// either row, then the others. With a stride of 2 its even columns lie before the odd ones, so that neighbouring
// windows lie side by side. Eight threads read 16 bytes each at a time: gaps keep most of these in different banks.
template <int C_, int N_, int H_, int W_, int READ_BY, int BYTES_>
struct Map {
    static constexpr int C = C_, N = N_, H = H_, W = W_, QUADS = N / 4, SLOT = 16;
    static constexpr int ACROSS = READ_BY == 2 ? (W + 1) / 2 : W;
    static constexpr int apart(int bytes) { return bytes + (192 - bytes % 128) % 128; }  // 64 beyond a multiple of 128
    static constexpr int EVEN = apart(H * ACROSS * SLOT);  // bytes of even columns
    static constexpr int PLANE = (READ_BY == 2 ? EVEN : 0) + H * ACROSS * SLOT;
    // What is written at once is two halves for N = 4, and for N = 8 two quads, which lie two halves apart.
    static constexpr int HALF = N == 4 ? apart(PLANE) : PLANE + (96 - PLANE % 64) % 64;
    static constexpr int QUAD = 2 * HALF, CAPSULE = QUADS * QUAD, BYTES = C * CAPSULE;
    static constexpr int STEPS = (9 * C * QUADS + 3) / 4;  // of k, of the layer that reads it
    static_assert(BYTES == BYTES_, "the size of a map, here and in layout.py");

    static DEVICE int slot(int y, int x) {
        return READ_BY == 2 ? (x & 1) * EVEN + (y * ACROSS + x / 2) * SLOT : (y * W + x) * SLOT;
    }
    static DEVICE int corner(int y, int x) {  // of the window of an output position
        return READ_BY == 2 ? (2 * y * ACROSS + x) * SLOT : (y * W + x) * SLOT;
    }
};

// MAPS

// Weights of a layer: for each step of k and each tile of 8 columns two words a thread.
template <int STEPS, int TILES>
struct Held {
    u32 words[STEPS][TILES][2];
    DEVICE Held(const u32* weights, int lane) {
        UNROLL for (int step = 0; step < STEPS; step++)
            UNROLL for (int tile = 0; tile < TILES; tile++)
                UNROLL for (int half = 0; half < 2; half++)
                    words[step][tile][half] = weights[((step * TILES + tile) * 2 + half) * 32 + lane];
    }
    DEVICE u32 operator()(int step, int tile, int half) const { return words[step][tile][half]; }
};

// The same, read when they are needed: more than registers hold.
template <int STEPS, int TILES>
struct Read {
    const u32* weights;
    DEVICE Read(const u32* all, int lane) : weights(all + lane) {}
    DEVICE u32 operator()(int step, int tile, int half) const {
        return weights[((step * TILES + tile) * 2 + half) * 32];
    }
};

template <bool YES, class A, class B> struct Choice { typedef A Type; };
template <class A, class B> struct Choice<false, A, B> { typedef B Type; };

// The products of eight windows with a layer's kernels. `base` is the thread's own window, of the position that its
// group stands for. acc[tile][0] has rows m = 0 and 1, acc[tile][1] rows 2 and 3.
template <class In, int TILES>
struct Windows {
    static constexpr int STEPS = In::STEPS, WORDS = STEPS * TILES * 64;
    static constexpr bool HOLDS = STEPS * TILES * 2 <= 80;
    typedef typename Choice<HOLDS, Held<STEPS, TILES>, Read<STEPS, TILES>>::Type Weights;

    Weights weights;
    int offsets[STEPS];  // where the thread's unit of each step lies in a window

    DEVICE Windows(const u32* all, int lane) : weights(all, lane) {
        UNROLL for (int step = 0; step < STEPS; step++) offsets[step] = all[WORDS + 4 * step + (lane & 3)];
    }

    DEVICE void operator()(float (&acc)[TILES][2][4], const char* base) const {
        UNROLL for (int tile = 0; tile < TILES; tile++)
            UNROLL for (int i = 0; i < 4; i++) acc[tile][0][i] = acc[tile][1][i] = 0.0f;
        UNROLL for (int step = 0; step < STEPS; step++) {
            const Four top = *(const Four*)(base + offsets[step]);
            const Four bottom = *(const Four*)(base + offsets[step] + In::HALF);
            UNROLL for (int tile = 0; tile < TILES; tile++) {
                const u32 b0 = weights(step, tile, 0), b1 = weights(step, tile, 1);
                multiply(acc[tile][0], top, b0, b1);
                multiply(acc[tile][1], bottom, b0, b1);
            }
        }
    }
};

// Leaky ReLU of a thread's eight numbers of a capsule, and the squares of the whole capsule: P = 8 lies in four
// threads, P = 4 in two.
template <int P>
DEVICE float activate(float (&acc)[2][4], float slope) {
    float squares = 0.0f;
    UNROLL for (int half = 0; half < 2; half++)
        UNROLL for (int i = 0; i < 4; i++) {
            acc[half][i] = leaky(acc[half][i], slope);
            squares += acc[half][i] * acc[half][i];
        }
    squares += from_neighbour(squares, 1);
    if (P == 8) squares += from_neighbour(squares, 2);
    return squares;
}

template <class In, class Out>
DEVICE void hidden_layer(const char* in, char* out, const u32* all, int lane, float slope) {
    constexpr int TILES = (Out::C * Out::N + 7) / 8, POSITIONS = Out::H * Out::W;
    const int group = lane >> 2, quad = lane & 3;
    const Windows<In, TILES> windows(all, lane);
#pragma unroll 2
    for (int first = 0; first < POSITIONS; first += 8) {
        const int position = first + group, real = smaller(position, POSITIONS - 1);
        const int y = real / Out::W, x = real - y * Out::W;
        float acc[TILES][2][4];
        windows(acc, in + In::corner(y, x));
        char* slot = out + Out::slot(y, x) + 8 * (quad & 1);
        UNROLL for (int tile = 0; tile < TILES; tile++) {
            const float factor = Squash(activate<Out::N>(acc[tile], slope)).factor;
            const Two top = {pack(acc[tile][0][0] * factor, acc[tile][0][1] * factor),
                             pack(acc[tile][0][2] * factor, acc[tile][0][3] * factor)};
            const Two bottom = {pack(acc[tile][1][0] * factor, acc[tile][1][1] * factor),
                                pack(acc[tile][1][2] * factor, acc[tile][1][3] * factor)};
            // Two threads have four numbers of a row: those of another capsule, or of the same one.
            const int capsule = Out::N == 8 ? tile : 2 * tile + (quad >> 1);
            const int plane = Out::N == 8 ? tile * Out::CAPSULE + (quad >> 1) * Out::QUAD : capsule * Out::CAPSULE;
            if (position < POSITIONS && capsule < Out::C) {
                *(Two*)(slot + plane) = top;
                *(Two*)(slot + plane + Out::HALF) = bottom;
            }
        }
    }
}

// The first layer: windows of pixels, which are one number each, so that a row of a product is a position. Thread 0 to
// 2 of four has a row of the window, of four pixels with the last one's weight zero.
template <class Out>
DEVICE void first_layer(const char* pixels, char* out, const u32* all, const float* bias, int lane, float slope) {
    constexpr int TILES = Out::N / 2, POSITIONS = Out::H * Out::W;
    const int group = lane >> 2, quad = lane & 3, row = quad == 3 ? 0 : quad;
    const Held<1, TILES> weights(all, lane);
    float start[TILES][2];
    UNROLL for (int tile = 0; tile < TILES; tile++) {
        start[tile][0] = bias[tile * 8 + 2 * quad];
        start[tile][1] = bias[tile * 8 + 2 * quad + 1];
    }
#pragma unroll 2
    for (int first = 0; first < POSITIONS; first += 16) {
        u32 window[2][2];
        int position[2], slot[2];
        UNROLL for (int i = 0; i < 2; i++) {
            position[i] = first + group + 8 * i;
            const int real = smaller(position[i], POSITIONS - 1), y = real / Out::W, x = real - y * Out::W;
            slot[i] = Out::slot(y, x);
            const char* at = pixels + 2 * ((y * STRIDE + row) * IMAGE_W + x * STRIDE);
            if (STRIDE % 2 == 0 && IMAGE_W % 2 == 0) {
                window[i][0] = *(const u32*)at;
                window[i][1] = *(const u32*)(at + 4);
            } else {
                const u16* halves = (const u16*)at;
                window[i][0] = halves[0] | (u32)halves[1] << 16;
                window[i][1] = halves[2];
            }
        }
        float acc[TILES][4];
        UNROLL for (int tile = 0; tile < TILES; tile++) {
            UNROLL for (int i = 0; i < 4; i++) acc[tile][i] = start[tile][i & 1];
            multiply(acc[tile], Four{window[0][0], window[1][0], window[0][1], window[1][1]}, weights(0, tile, 0),
                     weights(0, tile, 1));
        }
        float squares[2] = {0.0f, 0.0f};
        UNROLL for (int tile = 0; tile < TILES; tile++)
            UNROLL for (int i = 0; i < 4; i++) {
                acc[tile][i] = leaky(acc[tile][i], slope);
                squares[i >> 1] += acc[tile][i] * acc[tile][i];
            }
        // Two capsules lie in four threads each: even threads add up and squash the one, odd threads the other.
        const bool odd = quad & 1;
        float mine = odd ? squares[1] : squares[0];
        mine += from_neighbour(odd ? squares[0] : squares[1], 1);
        mine += from_neighbour(mine, 2);
        const float own = Squash(mine).factor, other = from_neighbour(own, 1);
        const float factors[2] = {odd ? other : own, odd ? own : other};
        UNROLL for (int i = 0; i < 2; i++) {
            u32 words[TILES];
            UNROLL for (int tile = 0; tile < TILES; tile++)
                words[tile] = pack(acc[tile][2 * i] * factors[i], acc[tile][2 * i + 1] * factors[i]);
            char* at = out + slot[i] + 8 * (quad & 1) + (quad >> 1) * (Out::N == 4 ? Out::HALF : Out::QUAD);
            if (position[i] < POSITIONS) {
                UNROLL for (int tile = 0; tile < TILES; tile += 2)
                    *(Two*)(at + tile / 2 * Out::HALF) = Two{words[tile], words[tile + 1]};
            }
        }
    }
}

// The last layer, of one window: rows of a product are the four rows m, twice over. Its weights are the most of all, and
// stay in memory and the cache.
template <class In, int P>
DEVICE void last_layer(const char* in, OUTPUT* out, const u32* all, int lane, float slope) {
    constexpr int TILES = (CLASSES * P + 7) / 8, STEPS = In::STEPS;
    const int group = lane >> 2, quad = lane & 3;
    const char* row = in + (group >> 1 & 1) * In::HALF + 4 * (group & 1);
    const Read<STEPS, TILES> weights(all, lane);
    float acc[TILES][4];
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int i = 0; i < 4; i++) acc[tile][i] = 0.0f;
    UNROLL for (int step = 0; step < STEPS; step++) {
        const char* at = row + all[STEPS * TILES * 64 + 4 * step + quad];
        const u32 low = *(const u32*)at, high = *(const u32*)(at + 8);
        UNROLL for (int tile = 0; tile < TILES; tile++)
            multiply(acc[tile], Four{low, low, high, high}, weights(step, tile, 0), weights(step, tile, 1));
    }
    float most = -1.0f;
    int best = 0;
    UNROLL for (int tile = 0; tile < TILES; tile++) {
        float squares = 0.0f;
        UNROLL for (int i = 0; i < 2; i++) squares += leaky(acc[tile][i], slope) * leaky(acc[tile][i], slope);
        squares += from_neighbour(squares, 1);
        if (P == 8) squares += from_neighbour(squares, 2);
        squares += from_neighbour(squares, 4);
        squares += from_neighbour(squares, 8);
        const int kind = P == 8 ? tile : 2 * tile + (quad >> 1);
        if (kind < CLASSES) {
            if (squares > most) {
                most = squares;
                best = kind;
            }
#ifndef CLASS_OUT
            if (group == 0 && (P == 8 ? quad == 0 : (quad & 1) == 0)) out[kind] = Squash(squares).length;
#endif
        }
    }
#ifdef CLASS_OUT
    if (P == 4) {
        const float theirs = from_neighbour(most, 2);
        const int kind = from_neighbour(best, 2);
        if (theirs > most || (theirs == most && kind < best)) best = kind;
    }
    if (lane == 0) *out = best;
#endif
}

// An image on its way from memory to shared memory: what a thread has of it waits in registers.
struct Pixels {
    static constexpr int COUNT = IMAGE_H * IMAGE_W;
#ifdef BYTES_IN
    static constexpr int EACH = COUNT % 16 == 0 ? 16 : COUNT % 4 == 0 ? 4 : 1;  // pixels that are read at once
#else
    static constexpr int EACH = COUNT % 4 == 0 ? 4 : 1;
#endif
    static constexpr int PIECES = COUNT / EACH, TURNS = (PIECES + 31) / 32;
    static constexpr int WORDS = EACH * (int)sizeof(PIXEL) / 4;
    u32 words[TURNS][WORDS ? WORDS : 1];

    DEVICE void read(const PIXEL* image, int lane) {
        UNROLL for (int turn = 0; turn < TURNS; turn++) {
            const int piece = turn * 32 + lane;
            if (piece < PIECES) {
                if (WORDS == 4) {
                    const Four four = ((const Four*)image)[piece];
                    words[turn][0] = four.x;
                    words[turn][WORDS > 1 ? 1 : 0] = four.y;
                    words[turn][WORDS > 2 ? 2 : 0] = four.z;
                    words[turn][WORDS > 3 ? 3 : 0] = four.w;
                } else if (WORDS == 1) {
                    words[turn][0] = ((const u32*)image)[piece];
                } else {
                    words[turn][0] = image[piece];
                }
            }
        }
    }

    DEVICE float pixel(int turn, int i) const {
#ifdef BYTES_IN
        return of_byte(words[turn][i / 4], i % 4) * (1.0f / 256.0f);  // exact, and so in half precision
#else
        return as_float(words[turn][i]) * (255.0f / 256.0f);
#endif
    }

    DEVICE u32 pair(int turn, int i) const { return pack(pixel(turn, i), pixel(turn, i + 1)); }

    DEVICE void write(char* pixels, int lane) const {
        UNROLL for (int turn = 0; turn < TURNS; turn++) {
            const int piece = turn * 32 + lane;
            if (piece < PIECES) {
                char* to = pixels + 2 * EACH * piece;
                if (EACH == 1) *(u16*)to = (u16)pack(pixel(turn, 0), 0.0f);
                UNROLL for (int i = 0; i + 4 <= EACH; i += 4) *(Two*)(to + 2 * i) = Two{pair(turn, i), pair(turn, i + 2)};
            }
        }
    }
};

// All layers but the last, whose maps lie in two regions of shared memory by turns: written by layout.py.
DEVICE void all_but_last(char* even, char* odd, const u32* weights, const float* bias, int lane, float slope);

KERNEL network(const PIXEL* images, const u32* weights, const float* bias, OUTPUT* out, int batch, float slope) {
    const int lane = thread_number() & 31, warp = thread_number() >> 5;
    char* shared = shared_memory();
    u32* held = (u32*)shared;
    for (int i = thread_number(); i < LAST_WEIGHTS; i += 32 * WARPS) held[i] = weights[i];
    wait_for_block();
    char* even = shared + 4 * LAST_WEIGHTS + warp * WARP_BYTES;
    char* odd = even + EVEN_BYTES;

    // Neighbouring images go to different multiprocessors: a small batch is spread over all of them.
    const long long turn = WARPS * block_count();
    long long image = warp * block_count() + block_number();
    Pixels next;
    if (image < batch) next.read(images + image * Pixels::COUNT, lane);
    for (; image < batch; image += turn) {
        next.write(odd, lane);
        wait_for_warp();
        if (image + turn < batch) next.read(images + (image + turn) * Pixels::COUNT, lane);
        all_but_last(even, odd, held, bias, lane, slope);
        last_layer<Last, LAST_P>(LAST_EVEN ? even : odd, out + image * OUTPUTS, weights + LAST_WEIGHTS, lane, slope);
        wait_for_warp();
    }
}
