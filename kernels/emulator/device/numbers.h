// Host twins of the conversions and of the few mathematical operations that kernels use.
//
// Conversions give the device's bits. pk_exp2 and pk_log2 are the host's, more exact than ex2.approx and lg2.approx.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "types.h"

inline float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline int __float_as_int(float value) {
    int bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    return __int_as_float(int(bits));
}

inline unsigned __float_as_uint(float value) {
    return unsigned(__float_as_int(value));
}

// Byte i of the result is byte selector[4i + 2 .. 4i] of the eight bytes of `high` and `low`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    uint64_t bytes = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned from = selector >> (4 * i) & 7;
        result |= unsigned(bytes >> (8 * from) & 0xff) << (8 * i);
    }
    return result;
}

float pk_f16_to_f32(uint16_t bits);
uint16_t pk_f32_to_f16(float value);
float pk_bf16_to_f32(uint16_t bits);
uint16_t pk_f32_to_bf16(float value);

// Two values in one register, the first in the low half.
unsigned pk_pack_bf16(float low, float high);
unsigned pk_pack_f16(float low, float high);
unsigned pk_mul_f16x2(unsigned a, unsigned b);
unsigned pk_e4m3x2_to_f16x2(unsigned short pair);
unsigned short pk_f32x2_to_e4m3x2(float low, float high);

inline float pk_exp2(float x) {
    return x < -126.0f ? 0.0f : exp2f(x);  // results below the normal numbers are flushed to zero
}

inline float pk_log2(float x) {
    return log2f(fabsf(x) < 1.17549435e-38f ? 0.0f * x : x);  // so are arguments
}

inline float pk_max(float a, float b) {
    return fmaxf(a, b);
}
