// Elements of tensors and of the pool: to f32 and back, by the rules of the host's storage, bit for bit.
//
// Widening is exact. Narrowing rounds to the nearest, ties to even; what is beyond the largest number, infinities
// included, becomes the largest; subnormal numbers stay. A NaN stays one: it is quieted and keeps its sign and the
// upper bits of its payload that fit, of which E4M3 has none. Hardware conversions say nothing of payloads, so that NaN
// takes a way of its own here. f32 is stored as it is.
#pragma once

#include "common.cuh"
#include "params.cuh"

PK_DEV pk_u32 pk_bits(float x) {
    return (pk_u32)__float_as_int(x);
}

PK_DEV float pk_from_bits(pk_u32 bits) {
    return __int_as_float((int)bits);
}

PK_DEV bool pk_is_nan(float x) {
    return (pk_bits(x) & 0x7fffffffu) > 0x7f800000u;
}

// x, or what is nearest to it in -most to most; NaN as it is.
PK_DEV float pk_saturate(float x, float most) {
    if (x > most) {
        return most;
    }
    return x < -most ? -most : x;
}

// What is to be known of an element type: `Bits` holds one as it is stored.
template <int DTYPE>
struct pk_element;

template <>
struct pk_element<PK_F32> {
    typedef pk_u32 Bits;

    static PK_DEV float widen(Bits bits) {
        return pk_from_bits(bits);
    }

    static PK_DEV Bits narrow(float x) {
        return pk_bits(x);
    }
};

template <>
struct pk_element<PK_F16> {
    typedef pk_u16 Bits;

    static PK_DEV float widen(Bits bits) {
        const pk_u32 magnitude = bits & 0x7fffu;
        if (magnitude > 0x7c00u) {
            return pk_from_bits((pk_u32)(bits & 0x8000u) << 16 | 0x7fc00000u | (magnitude & 0x3ffu) << 13);
        }
        return pk_f16_to_f32(bits);
    }

    static PK_DEV Bits narrow(float x) {
        if (pk_is_nan(x)) {
            const pk_u32 bits = pk_bits(x);
            return (Bits)((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
        }
        return pk_f32_to_f16(pk_saturate(x, 65504.0f));
    }
};

template <>
struct pk_element<PK_BF16> {
    typedef pk_u16 Bits;

    // A signalling NaN stays one here: it is quieted where it is narrowed.
    static PK_DEV float widen(Bits bits) {
        return pk_from_bits((pk_u32)bits << 16);
    }

    static PK_DEV Bits narrow(float x) {
        if (pk_is_nan(x)) {
            return (Bits)((pk_bits(x) | 0x00400000u) >> 16);
        }
        const pk_u32 bits = pk_bits(pk_saturate(x, pk_from_bits(0x7f7f0000u)));
        // Half of the last kept bit, less one where that is even: the carry rounds.
        return (Bits)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};

template <>
struct pk_element<PK_E4M3> {
    typedef pk_u8 Bits;

    // The code's bits at their place in f32 are the number times 2^-120, because the biases are 127 and 7; those of a
    // subnormal code are a subnormal f32. The product is exact.
    static PK_DEV float widen(Bits bits) {
        const pk_u32 sign = (pk_u32)(bits & 0x80u) << 24;
        const pk_u32 magnitude = bits & 0x7fu;
        const float scaled = pk_from_bits(sign | magnitude << 20) * pk_from_bits((127u + 120u) << 23);
        return magnitude == 0x7fu ? pk_from_bits(sign | 0x7fc00000u) : scaled;
    }

    static PK_DEV Bits narrow(float x) {
        return (Bits)pk_soft_f32_to_e4m3(x);
    }
};

// Without the scale of its head: see `pk_scale_of`.
template <>
struct pk_element<PK_I8> {
    typedef pk_u8 Bits;

    static PK_DEV float widen(Bits bits) {
        return (float)(signed char)bits;
    }

    // x is a number, not NaN. 1.5 x 2^23 has a last bit of 1: adding it rounds, and the whole number is what the
    // mantissa ends in.
    static PK_DEV Bits narrow(float x) {
        return (Bits)pk_bits(pk_saturate(x, 127.0f) + 12582912.0f);
    }
};

// The scale of a head of integers whose largest magnitude has these bits. Infinities count as the largest f32, and 127
// scales are never more than that; a NaN, whose bits are beyond all numbers', is the scale itself.
PK_DEV float pk_scale_of(pk_u32 largest_bits) {
    const float largest = pk_from_bits(largest_bits);
    if (pk_is_nan(largest)) {
        return largest;
    }
    // The f32 before the largest divided by 127: 127 times the quotient itself would be infinite.
    const float most = pk_from_bits(0x7c010203u);
    const float scale = largest / 127.0f;
    return scale < most ? scale : most;
}

// An element of a head of integers; 0 where the scale is 0 or NaN.
PK_DEV pk_u8 pk_divide_by_scale(float x, float scale) {
    if (scale == 0.0f || pk_is_nan(scale)) {
        return 0;
    }
    return pk_element<PK_I8>::narrow(x / scale);
}

// Element d of a row of the pool or of a tensor, which begins at a multiple of the element's size.
template <int DTYPE>
PK_DEV float pk_load(const pk_u8 *row, int d) {
    return pk_element<DTYPE>::widen(((const typename pk_element<DTYPE>::Bits *)row)[d]);
}

template <int DTYPE>
PK_DEV void pk_store(pk_u8 *row, int d, float x) {
    ((typename pk_element<DTYPE>::Bits *)row)[d] = pk_element<DTYPE>::narrow(x);
}

// The same of a tensor, whose type is one of the three that float, known at run time.
PK_DEV float pk_load_float(int dtype, const pk_u8 *row, int d) {
    switch (dtype) {
    case PK_F16:
        return pk_load<PK_F16>(row, d);
    case PK_BF16:
        return pk_load<PK_BF16>(row, d);
    default:
        return pk_load<PK_F32>(row, d);
    }
}

PK_DEV void pk_store_float(int dtype, pk_u8 *row, int d, float x) {
    switch (dtype) {
    case PK_F16:
        pk_store<PK_F16>(row, d, x);
        break;
    case PK_BF16:
        pk_store<PK_BF16>(row, d, x);
        break;
    default:
        pk_store<PK_F32>(row, d, x);
    }
}
