// The number formats by their definitions, in double, without a trick: a table of all codes, and a search in it.
#pragma once

#include <algorithm>

#include "harness.h"

namespace test {

// A binary floating-point format of at most 16 bits. Codes from 0 up to `largest` are its finite magnitudes, in order.
class Format {
public:
    Format(int exponent_bits, int mantissa_bits, uint32_t largest, uint32_t quiet, uint32_t payload)
        : sign(1u << (exponent_bits + mantissa_bits)), largest(largest), quiet(quiet), payload(payload),
          mantissa_bits(mantissa_bits) {
        const int bias = (1 << (exponent_bits - 1)) - 1;
        for (uint32_t code = 0; code <= largest; code++) {
            const int exponent = (int)(code >> mantissa_bits);
            const double mantissa = (double)(code & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
            // Subnormal numbers have the exponent of the smallest normal ones, and no leading one.
            magnitudes.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias)
                                               : std::ldexp(1.0 + mantissa, exponent - bias));
        }
    }

    // Of a finite code, or NaN.
    double value(uint32_t code) const {
        const uint32_t magnitude = code & (sign - 1);
        const double size = magnitude <= largest ? magnitudes[magnitude] : std::numeric_limits<double>::quiet_NaN();
        return code & sign ? -size : size;
    }

    // To the nearest, ties to even; the largest beyond it. A NaN is quieted and keeps its sign and its upper payload.
    uint32_t code(float x) const {
        const uint32_t sign_of_x = std::signbit(x) ? sign : 0;
        if (std::isnan(x)) {
            return sign_of_x | quiet | (bits_of(x) >> (23 - mantissa_bits) & payload);
        }
        const double size = std::fabs((double)x);
        const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), size);
        if (above == magnitudes.end()) {
            return sign_of_x | largest;
        }
        const uint32_t high = (uint32_t)(above - magnitudes.begin());
        if (*above == size) {
            return sign_of_x | high;
        }
        const double to_low = size - magnitudes[high - 1];
        const double to_high = *above - size;
        const uint32_t even = high % 2 == 0 ? high : high - 1;
        return sign_of_x | (to_low < to_high ? high - 1 : to_high < to_low ? high : even);
    }

    // A NaN's code, widened: its payload at the top of that of f32, quieted where `quieted` says so.
    float widened(uint32_t code_of, bool quieted) const {
        const uint32_t magnitude = code_of & (sign - 1);
        if (magnitude <= largest) {
            return (float)value(code_of);
        }
        const uint32_t mantissa = (magnitude & payload) << (23 - mantissa_bits);
        const uint32_t sign_bit = code_of & sign ? 0x80000000u : 0;
        const bool infinite = payload != 0 && mantissa == 0;
        return from_bits(sign_bit | 0x7f800000u | mantissa | (quieted && !infinite ? 0x400000u : 0));
    }

private:
    uint32_t sign, largest, quiet, payload;
    int mantissa_bits;
    std::vector<double> magnitudes;
};

inline const Format &format(int dtype) {
    static const Format f16(5, 10, 0x7bff, 0x7e00, 0x3ff);
    static const Format bf16(8, 7, 0x7f7f, 0x7fc0, 0x7f);
    static const Format e4m3(4, 3, 0x7e, 0x7f, 0);
    return dtype == PK_F16 ? f16 : dtype == PK_BF16 ? bf16 : e4m3;
}

// Stores a number of a float type.
inline void put(int dtype, unsigned char *to, float x) {
    const uint32_t bits = dtype == PK_F32 ? bits_of(x) : format(dtype).code(x);
    std::memcpy(to, &bits, (size_t)DTYPE_BYTES[dtype]);
}

// Reads one, as the host's storage widens it: f16 quiets a NaN, bf16 does not.
inline float get(int dtype, const unsigned char *from) {
    uint32_t bits = 0;
    std::memcpy(&bits, from, (size_t)DTYPE_BYTES[dtype]);
    return dtype == PK_F32 ? from_bits(bits) : format(dtype).widened(bits, dtype == PK_F16);
}

// The scale of a head of integers. 53 bits of mantissa are more than twice 24 and two, so that rounding the quotient in
// double again gives the quotient in float.
inline float scale_of(const std::vector<float> &head) {
    uint32_t largest = 0;
    for (float x : head) {
        largest = std::max(largest, bits_of(x) & 0x7fffffffu);
    }
    const float size = from_bits(largest);
    if (std::isnan(size)) {
        return size;
    }
    const float most = std::nextafterf((float)((double)std::numeric_limits<float>::max() / 127.0), 0.0f);
    return std::min((float)((double)size / 127.0), most);
}

inline signed char integer_of(float x, float scale) {
    if (scale == 0.0f || std::isnan(scale)) {
        return 0;
    }
    const double quotient = (double)(float)((double)x / (double)scale);
    return (signed char)std::nearbyint(std::min(127.0, std::max(-127.0, quotient)));
}

}  // namespace test
