// What all kernels here are written in: the few things that are CUDA's and not C++'s. tests/ops/cuda_emulator.h has the
// same for a CPU.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

struct alignas(16) Four { u32 x, y, z, w; };
struct alignas(8) Two { u32 x, y; };

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#ifndef BLOCKS_AT_ONCE  // on a multiprocessor
#define BLOCKS_AT_ONCE 1
#endif
#define KERNEL extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS_AT_ONCE)

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float divide_fast(float a, float b) { return __fdividef(a, b); }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE float from_neighbour(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
DEVICE int from_neighbour(int x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
DEVICE void wait_for_warp() { __syncwarp(); }
DEVICE void wait_for_block() { __syncthreads(); }
DEVICE int thread_number() { return threadIdx.x; }
DEVICE int block_number() { return blockIdx.x; }
DEVICE int block_count() { return gridDim.x; }
DEVICE char* shared_memory() {
    extern __shared__ Four memory[];
    return (char*)memory;
}
#endif

DEVICE int smaller(int a, int b) { return a < b ? a : b; }
