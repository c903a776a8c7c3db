// Numbers of 16 bits, two to a word: float16, or bfloat16 where BFLOAT16 is defined.

#ifndef EMULATED
#ifdef BFLOAT16
#define PACKED "bf16x2"
#else
#define PACKED "f16x2"
#endif

DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn." PACKED ".f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE float half_of(u32 word, int which) {
#ifdef BFLOAT16
    return __uint_as_float(which ? word & 0xFFFF0000u : word << 16);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)(which ? word >> 16 : word)));
    return value;
#endif
}
#endif
