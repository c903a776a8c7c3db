// Runs a kernel of src/purecaps/ops/cuda on a CPU: threads of a block are contexts of one thread that take turns, and
// change over wherever threads of a warp meet. Shared memory begins as NaN.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define EMULATED
#define DEVICE inline
#define UNROLL
#define KERNEL static void

namespace emulator {

constexpr int STACK = 64 * 1024;
constexpr const char* BLOCK = "block";

struct Copy {
    float *to;
    const float *from;
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK);
    const char* meeting = "start";
    bool done = false;
    uint32_t words[6];
    std::vector<std::vector<Copy>> copies = std::vector<std::vector<Copy>>(1);  // groups of them, the last one open
};

std::vector<Thread> threads;
std::vector<char> shared;
ucontext_t scheduler;
int thread = 0, block = 0, blocks = 0;

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: %s\n", what);
    std::abort();
}

inline void meet(const char* where) {
    threads[thread].meeting = where;
    swapcontext(&threads[thread].context, &scheduler);
}

inline Thread& neighbour(int lane) { return threads[(thread & ~31) + lane]; }

inline float widened(uint32_t half) {
#ifdef BFLOAT16
    uint32_t bits = half << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
#else
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp((float)fraction, -24));
#endif
}

inline uint32_t narrowed(float value) {
#ifdef BFLOAT16
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return std::isnan(value) ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
#else
    if (std::isnan(value)) return 0x7FFF;
    const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (size == 0.0f) return sign;
    if (size >= 65520.0f) return sign | 0x7C00;
    int exponent;
    std::frexp(size, &exponent);
    const int least = exponent < -13 ? -24 : exponent - 11;  // the value of the last bit, as a power of two
    const float units = std::nearbyint(std::ldexp(size, -least));
    if (least == -24) return sign | (uint32_t)units;
    return sign | (((uint32_t)(least + 24) << 10) + (uint32_t)units);  // units begin with the implied 1024
#endif
}

inline float half_of(uint32_t word, int which) { return widened(which ? word >> 16 : word & 0xFFFF); }

// c += a b, of 16 rows and 8 columns; a thread has two words, of two numbers of k each, of two rows and of a column.
template <class Words>
void multiply(float (&c)[4], const Words& a, uint32_t b0, uint32_t b1) {
    const int group = (thread & 31) >> 2, quad = thread & 3;
    const uint32_t own[6] = {a.x, a.y, a.z, a.w, b0, b1};
    std::memcpy(threads[thread].words, own, sizeof own);
    meet("product");
    for (int i = 0; i < 4; i++) {
        const int row = i >> 1, column = 2 * quad + (i & 1);
        double sum = c[i];
        for (int word = 0; word < 2; word++)
            for (int k = 0; k < 4; k++)
                for (int e = 0; e < 2; e++)
                    sum += (double)half_of(neighbour(4 * group + k).words[2 * word + row], e) *
                           half_of(neighbour(4 * column + k).words[4 + word], e);
        c[i] = (float)sum;
    }
    meet("product done");
}

inline float truncated(uint32_t word) {  // what a product in TF32 looks at
    const uint32_t bits = word & 0xFFFFE000;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// c += a b, of 16 rows and 8 columns; a thread has two rows of a and one column of b, with two numbers of k each.
inline void multiply(float (&c)[4], const float (&a)[4], float b0, float b1) {
    const int group = (thread & 31) >> 2, quad = thread & 3;
    const float own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    std::memcpy(threads[thread].words, own, sizeof own);
    meet("product");
    for (int i = 0; i < 4; i++) {
        const int row = i >> 1, column = 2 * quad + (i & 1);
        double sum = c[i];
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < 4; k++)
                sum += (double)truncated(neighbour(4 * group + k).words[2 * half + row]) *
                       truncated(neighbour(4 * column + k).words[4 + half]);
        c[i] = (float)sum;
    }
    meet("product done");
}

// Copies are made as late as they may be, when they are waited for.
inline void begin_copy(float* to, const float* from) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) fail("a copy of 16 bytes from or to elsewhere than a multiple of 16");
    threads[thread].copies.back().push_back({to, from});
}
inline void end_group() { threads[thread].copies.emplace_back(); }
template <int YOUNGEST>
void wait_for_copies() {
    auto& groups = threads[thread].copies;
    while (groups.size() > YOUNGEST + 1) {
        for (const Copy& each : groups.front()) std::memcpy(each.to, each.from, 16);
        groups.erase(groups.begin());
    }
}

inline bool any_of_warp(bool mine) {
    threads[thread].words[0] = mine;
    meet("vote");
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any = any || neighbour(lane).words[0];
    meet("vote done");
    return any;
}

template <class T>
T exchange(T value, int distance) {
    std::memcpy(threads[thread].words, &value, 4);
    meet("exchange");
    T other;
    std::memcpy(&other, neighbour((thread & 31) ^ distance).words, 4);
    meet("exchange done");
    return other;
}

template <class Function>
void run(Function kernel, int count, int bytes, int grid) {
    static Function body = nullptr;
    body = kernel;
    blocks = grid;
    for (block = 0; block < grid; block++) {
        shared.assign(bytes + 16, (char)0xFF);
        threads.assign(count, Thread());
        for (auto& each : threads) {
            getcontext(&each.context);
            each.context.uc_stack.ss_sp = each.stack.data();
            each.context.uc_stack.ss_size = STACK;
            each.context.uc_link = &scheduler;
            makecontext(&each.context, [] { body(); threads[thread].done = true; }, 0);
        }
        for (bool some = true; some;) {
            some = false;
            bool all = true;  // have come to where the block meets, and none has left
            for (const auto& each : threads) all = all && !each.done && !std::strcmp(each.meeting, BLOCK);
            for (thread = 0; thread < count; thread++)
                if (!threads[thread].done && (all || std::strcmp(threads[thread].meeting, BLOCK))) {
                    swapcontext(&scheduler, &threads[thread].context);
                    some = true;
                }
            if (!some)
                for (const auto& each : threads)
                    if (!each.done) fail("threads wait for others of their block that have left");
            for (int i = 0; i < count; i++) {
                const Thread &one = threads[i], &first = threads[i & ~31];
                if (one.done != first.done || std::strcmp(one.meeting, first.meeting))
                    fail("threads of a warp wait for each other in different places");
            }
        }
    }
}

}  // namespace emulator

using emulator::any_of_warp;
using emulator::begin_copy;
using emulator::end_group;
using emulator::half_of;
using emulator::multiply;
using emulator::wait_for_copies;
inline uint32_t pack(float low, float high) { return emulator::narrowed(low) | emulator::narrowed(high) << 16; }
inline float exp2_fast(float x) { return std::exp2(x); }
inline float divide_fast(float a, float b) { return a / b; }
inline float rsqrt_fast(float x) { return 1.0f / std::sqrt(x); }
inline float of_byte(uint32_t word, int which) { return (float)(word >> 8 * which & 255); }
inline float as_float(uint32_t word) {
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}
inline float larger(float a, float b) { return std::fmax(a, b); }
inline float from_neighbour(float x, int distance) { return emulator::exchange(x, distance); }
inline int from_neighbour(int x, int distance) { return emulator::exchange(x, distance); }
inline void wait_for_warp() { emulator::meet("warp"); }
inline void wait_for_block() { emulator::meet(emulator::BLOCK); }
inline int thread_number() { return emulator::thread; }
inline int block_number() { return emulator::block; }
inline int block_count() { return emulator::blocks; }
inline char* shared_memory() {
    const auto at = reinterpret_cast<uintptr_t>(emulator::shared.data());
    return reinterpret_cast<char*>((at + 15) & ~uintptr_t(15));
}
