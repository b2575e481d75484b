// The portability header: what kernels use of the machine, once for the device and once for the host.
//
// On the device a wrapper is one PTX instruction in inline assembly, so that no CUDA header is needed: NVRTC compiles
// the kernels with nothing beside them. In the host build (PK_HOST_EMU) the same names come from the emulator, as do
// the thread indices, barriers, shuffles and votes. What is not an instruction is written once, below, for both.
//
// Beside these, kernels use arithmetic, `fmaf` where a product and a sum are meant to be one rounding, and no other
// function of a mathematical library.
//
// Invariants: PTX ISA 8.0 and sm_80 suffice for everything here; shared memory is dynamic only, because the emulator
// gives every block its own of the exact size.
#pragma once

typedef unsigned char pk_u8;
typedef unsigned short pk_u16;
typedef unsigned int pk_u32;
typedef unsigned long long pk_u64;
typedef long long pk_i64;

#ifdef PK_HOST_EMU
#include "emulator/device/device.h"
#else

#define PK_DEV __device__ __forceinline__
#define PK_EXPORT(fn)
#define PK_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]

// ---- Asynchronous copies from global to shared memory ----

PK_DEV pk_u32 pk_shared_address(const void *pointer) {
    return (pk_u32)__cvta_generic_to_shared(pointer);
}

// Copies `bytes` (0 to 16) from `src` and fills up to 16 with zeros. Both addresses are multiples of 16; with 0 bytes
// `src` is not read.
PK_DEV void pk_cp_async16(void *dst, const void *src, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(pk_shared_address(dst)), "l"(src), "r"(bytes)
                 : "memory");
}

PK_DEV void pk_cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most N of this thread's committed groups are on their way.
template <int N>
PK_DEV void pk_cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- Matrix fragments ----

// Four 8x8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8, 16 bytes at a multiple of 16.
PK_DEV void pk_ldmatrix_x4(pk_u32 to[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(pk_shared_address(row))
                 : "memory");
}

PK_DEV void pk_ldmatrix_x4_trans(pk_u32 to[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(pk_shared_address(row))
                 : "memory");
}

// Transposes the 8x8 matrix of 16-bit elements that the registers of a warp hold.
PK_DEV pk_u32 pk_movmatrix_trans(pk_u32 x) {
    pk_u32 transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(x));
    return transposed;
}

// c += a b with a [16, 16], b [16, 8], c [16, 8], sums in f32.
PK_DEV void pk_mma_bf16(float c[4], const pk_u32 a[4], pk_u32 b0, pk_u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

PK_DEV void pk_mma_f16(float c[4], const pk_u32 a[4], pk_u32 b0, pk_u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Powers and logarithms ----

// 2^x within a relative error of 2^-22; 0 where that would be subnormal; NaN for NaN.
PK_DEV float pk_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// The logarithm to base 2; minus infinity for 0 and for subnormal numbers.
PK_DEV float pk_log2(float x) {
    float logarithm;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
    return logarithm;
}

// The greater of two; where one is NaN, the other.
PK_DEV float pk_max(float a, float b) {
    float greater;
    asm("max.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
}

// ---- Conversions ----
//
// To the nearest, ties to even; beyond the largest number comes infinity, and of a NaN only that it is one is certain.
// `element.cuh` has those that store.

PK_DEV float pk_f16_to_f32(pk_u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

PK_DEV pk_u16 pk_f32_to_f16(float x) {
    pk_u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

PK_DEV float pk_bf16_to_f32(pk_u16 bits) {
    return __int_as_float((int)((pk_u32)bits << 16));
}

PK_DEV pk_u16 pk_f32_to_bf16(float x) {
    pk_u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Two in a register, `low` in the lower half.
PK_DEV pk_u32 pk_pack_bf16(float low, float high) {
    pk_u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

PK_DEV pk_u32 pk_pack_f16(float low, float high) {
    pk_u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

PK_DEV pk_u32 pk_mul_f16x2(pk_u32 a, pk_u32 b) {
    pk_u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

#endif  // PK_HOST_EMU

// ---- E4M3 without instructions of its own ----
//
// Hardware converts from sm_89 on, and PTX ISA 8.0 can say so for sm_90 only. Written once for both sides, so that the
// host's tests reach what sm_80 runs.

// Two codes to two f16, exactly; NaN to NaN. All f16 but the sign are the code's bits one place lower, 2^8 too small,
// because the biases are 15 and 7; of subnormal codes too.
PK_DEV pk_u32 pk_soft_e4m3x2_to_f16x2(pk_u16 codes) {
    const pk_u32 apart = __byte_perm(codes, 0, 0x1404);
    const pk_u32 magnitudes = apart & 0x7f007f00u;
    const pk_u32 scaled = pk_mul_f16x2((apart & 0x80008000u) | (magnitudes >> 1), 0x5c005c00u);
    // Only a magnitude of all ones carries into the sign's place. It came out as 480, 0x5f80, which lacks one bit of
    // the exponent of a NaN.
    const pk_u32 nan = (magnitudes + 0x01000100u) & 0x80008000u;
    return scaled | nan >> 2;
}

// To the nearest, ties to even; 448 beyond it, of infinities too; a NaN keeps its sign.
PK_DEV pk_u32 pk_soft_f32_to_e4m3(float x) {
    const pk_u32 bits = (pk_u32)__float_as_int(x);
    const pk_u32 sign = bits >> 24 & 0x80u;
    const pk_u32 magnitude = bits & 0x7fffffffu;
    const float size = __int_as_float((int)magnitude);
    if (magnitude > 0x7f800000u) {
        return sign | 0x7fu;
    }
    if (size >= 448.0f) {
        return sign | 0x7eu;
    }
    if (size < 0.015625f) {
        // Below 2^-6 a code is a multiple of 2^-9, and so is the last bit of a number around 2^14: adding rounds to it.
        return sign | ((pk_u32)__float_as_int(size + 16384.0f) - 0x46800000u);
    }
    // Twenty bits of mantissa go, with half of the last kept one added before; the biases are 127 and 7.
    const pk_u32 rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return sign | ((rounded >> 20) - (120u << 3));
}

#ifndef PK_HOST_EMU

PK_DEV pk_u32 pk_e4m3x2_to_f16x2(pk_u16 codes) {
#if __CUDA_ARCH__ >= 900
    pk_u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    return halves;
#else
    return pk_soft_e4m3x2_to_f16x2(codes);
#endif
}

// Saturates; the sign of a NaN may be lost.
PK_DEV pk_u16 pk_f32x2_to_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 900
    pk_u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return (pk_u16)(pk_soft_f32_to_e4m3(low) | pk_soft_f32_to_e4m3(high) << 8);
#endif
}

#endif  // PK_HOST_EMU

// ---- Written once ----

#define PK_WARP_LANES 32
#define PK_ALL_LANES 0xffffffffu
#define PK_LOG2_E 1.44269504088896340736f
#define PK_LN_2 0.69314718055994530942f

PK_DEV float pk_minus_infinity() {
    return __int_as_float((int)0xff800000u);
}

// tanh x, odd, within -1 to 1; NaN for NaN. Off by less than 4 x 2^-24 absolutely, 12 x 2^-24 relatively: the
// instruction (tanh.approx) is off by 2^-11, too much for scores.
//
// From 1/4 on (1 - e) / (1 + e) with e = exp(-2 |x|), below, where 1 - e would lose bits, the Taylor series to x^9,
// whose next term is 2 x 10^-9 at 1/4.
PK_DEV float pk_tanh(float x) {
    const float size = __int_as_float(__float_as_int(x) & 0x7fffffff);
    if (size < 0.25f) {
        const float square = x * x;
        float tail = 62.0f / 2835.0f;
        tail = fmaf(tail, square, -17.0f / 315.0f);
        tail = fmaf(tail, square, 2.0f / 15.0f);
        tail = fmaf(tail, square, -1.0f / 3.0f);
        return fmaf(tail * square, x, x);
    }
    const float e = pk_exp2(size * (-2.0f * PK_LOG2_E));
    const float far = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -far : far;
}
