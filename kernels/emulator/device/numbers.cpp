#include "numbers.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {

// The values of e4m3: sign, four bits of exponent of bias 7, three of mantissa, no infinity, and NaN as 0x7f.
float e4m3_to_f32(unsigned bits) {
    int exponent = int(bits >> 3 & 15);
    float mantissa = float(bits & 7) / 8.0f;
    float magnitude = exponent ? ldexpf(1.0f + mantissa, exponent - 7) : ldexpf(mantissa, -6);
    if ((bits & 0x7f) == 0x7f) {
        magnitude = NAN;
    }
    return bits & 0x80 ? -magnitude : magnitude;
}

// Nearest, ties to even; beyond 448 saturated; NaN becomes 0x7f.
unsigned f32_to_e4m3(float value) {
    if (value != value) {
        return 0x7f;
    }
    unsigned sign = std::signbit(value) ? 0x80 : 0;
    float magnitude = fabsf(value);
    if (magnitude >= 448.0f) {
        return sign | 0x7e;
    }
    int exponent;
    frexpf(magnitude, &exponent);
    exponent = exponent - 1 < -6 ? -6 : exponent - 1;
    // In units of the last place, 2^(exponent - 3): below 8 the number is subnormal, 16 has carried.
    int units = int(nearbyintf(ldexpf(magnitude, 3 - exponent)));
    if (units == 16) {
        units = 8;
        exponent++;
    }
    return sign | (units < 8 ? unsigned(units) : unsigned((exponent + 7) << 3 | (units - 8)));
}

#ifndef __F16C__

float f16_to_f32(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    unsigned mantissa = bits & 1023;
    if (exponent == 31) {
        // NaNs become quiet, as with the instruction.
        unsigned quiet = mantissa ? 0x400000u : 0;
        return __int_as_float(int(unsigned(bits & 0x8000) << 16 | 0x7f800000u | quiet | mantissa << 13));
    }
    float magnitude = exponent ? ldexpf(float(1024 + mantissa), exponent - 25) : ldexpf(float(mantissa), -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t f32_to_f16(float value) {
    unsigned bits = unsigned(__float_as_int(value));
    unsigned sign = bits >> 16 & 0x8000;
    unsigned magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    }
    if (magnitude >= 0x477ff000) {
        return uint16_t(sign | 0x7c00);  // 65520 and above round to infinity
    }
    if (magnitude < 0x38800000) {
        // Below 2^-14 numbers are multiples of 2^-24, which is the last place of floats near 0.5.
        float rounded = __int_as_float(int(magnitude)) + 0.5f;
        return uint16_t(sign | (unsigned(__float_as_int(rounded)) - 0x3f000000u));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return uint16_t(sign | ((magnitude - 0x38000000u) >> 13));
}

#endif

}  // namespace

float pk_f16_to_f32(uint16_t bits) {
#ifdef __F16C__
    return _cvtsh_ss(bits);
#else
    return f16_to_f32(bits);
#endif
}

uint16_t pk_f32_to_f16(float value) {
    // cvt.rn.f16.f32 has one NaN.
    if (value != value) {
        return 0x7fff;
    }
#ifdef __F16C__
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    return f32_to_f16(value);
#endif
}

float pk_bf16_to_f32(uint16_t bits) {
    return __int_as_float(int(unsigned(bits) << 16));
}

uint16_t pk_f32_to_bf16(float value) {
    if (value != value) {
        return 0x7fff;
    }
    unsigned bits = unsigned(__float_as_int(value));
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

unsigned pk_pack_bf16(float low, float high) {
    return pk_f32_to_bf16(low) | unsigned(pk_f32_to_bf16(high)) << 16;
}

unsigned pk_pack_f16(float low, float high) {
    return pk_f32_to_f16(low) | unsigned(pk_f32_to_f16(high)) << 16;
}

unsigned pk_mul_f16x2(unsigned a, unsigned b) {
    // The product of two f16 is exact as a float, so it is rounded once.
    uint16_t low = pk_f32_to_f16(pk_f16_to_f32(uint16_t(a)) * pk_f16_to_f32(uint16_t(b)));
    uint16_t high = pk_f32_to_f16(pk_f16_to_f32(uint16_t(a >> 16)) * pk_f16_to_f32(uint16_t(b >> 16)));
    return low | unsigned(high) << 16;
}

unsigned pk_e4m3x2_to_f16x2(unsigned short pair) {
    return pk_pack_f16(e4m3_to_f32(pair & 0xff), e4m3_to_f32(pair >> 8));
}

unsigned short pk_f32x2_to_e4m3x2(float low, float high) {
    return uint16_t(f32_to_e4m3(low) | f32_to_e4m3(high) << 8);
}
