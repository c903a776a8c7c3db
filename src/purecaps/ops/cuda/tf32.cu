// Products in TF32, and copies into shared memory that go on while a thread does other things.

struct alignas(8) Pair { float x, y; };
struct alignas(16) Quad { float x, y, z, w; };

#ifndef EMULATED
// c += a b of 16 x 8 x 8, in TF32: the last 13 bits of a and b are not looked at. See the PTX manual, mma.m16n8k8.
DEVICE void multiply(float (&c)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

DEVICE void begin_copy(float* shared, const float* global) {  // of 16 bytes
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int YOUNGEST>
DEVICE void wait_for_copies() {  // of all groups but the youngest so many
    asm volatile("cp.async.wait_group %0;" ::"n"(YOUNGEST) : "memory");
}
#endif
