// Conversions of elements against the definitions of the formats.
#include "formats.h"

#include "../element.cuh"

using namespace test;

namespace {

// Around where rounding turns, for 16 bits and 8.
const uint32_t LOWER[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000,
                          0x3001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};

std::string hex(uint32_t bits) {
    char text[16];
    std::snprintf(text, sizeof text, "%08x", bits);
    return text;
}

template <int DTYPE>
void every_upper_half_is_narrowed_to_the_nearest() {
    for (uint32_t upper = 0; upper <= 0xffff; upper++) {
        for (uint32_t lower : LOWER) {
            const float x = from_bits(upper << 16 | lower);
            const uint32_t code = pk_element<DTYPE>::narrow(x);
            const uint32_t expected = format(DTYPE).code(x);
            check(code == expected, std::string(DTYPE_NAMES[DTYPE]) + " of " + hex(bits_of(x)) + " is " + hex(code) +
                                        " and not " + hex(expected));
        }
    }
}

// The middle between two neighbours of E4M3 has bits below the upper half's seven of mantissa only where it is next to
// it, so that both neighbours of every middle are taken by themselves.
void middles_of_e4m3_go_to_even() {
    const Format &e4m3 = format(PK_E4M3);
    for (uint32_t code = 0; code < 0x7e; code++) {
        const float middle = (float)((e4m3.value(code) + e4m3.value(code + 1)) / 2);
        for (float x : {middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, 1e9f)}) {
            for (float signed_x : {x, -x}) {
                const uint32_t narrowed = pk_element<PK_E4M3>::narrow(signed_x);
                check(narrowed == e4m3.code(signed_x), "E4M3 of " + std::to_string(signed_x));
            }
        }
    }
}

template <int DTYPE>
void every_code_is_widened_exactly(uint32_t codes, bool quieted) {
    for (uint32_t code = 0; code < codes; code++) {
        const float wide = pk_element<DTYPE>::widen((typename pk_element<DTYPE>::Bits)code);
        const float expected = format(DTYPE).widened(code, quieted);
        check(bits_of(wide) == bits_of(expected),
              std::string(DTYPE_NAMES[DTYPE]) + " " + hex(code) + " is " + hex(bits_of(wide)));
    }
}

void pairs_of_e4m3_are_those_halves() {
    for (uint32_t pair = 0; pair <= 0xffff; pair++) {
        const uint32_t halves = pk_soft_e4m3x2_to_f16x2((pk_u16)pair);
        for (int side = 0; side < 2; side++) {
            const double half = format(PK_F16).value(halves >> (16 * side) & 0xffff);
            const double code = format(PK_E4M3).value(pair >> (8 * side) & 0xff);
            const bool sign = (halves >> (16 * side) & 0x8000) != 0;
            check((half == code && sign == std::signbit(code)) || (std::isnan(half) && std::isnan(code)),
                  "a pair of E4M3 " + hex(pair));
        }
    }
}

void scales_and_integers_are_those_of_the_rule() {
    Random random(1);
    for (int round = 0; round < 20000; round++) {
        std::vector<float> head((size_t)random.between(1, 9));
        const int exponent = random.between(-150, 128);
        for (float &x : head) {
            x = std::ldexp(random.normal(), exponent);
            if (random.between(0, 200) == 0) {
                x = from_bits((uint32_t)random.bits());
            }
        }
        uint32_t largest = 0;
        for (float x : head) {
            largest = std::max(largest, bits_of(x) & 0x7fffffffu);
        }
        const float scale = pk_scale_of(largest);
        check(bits_of(scale) == bits_of(scale_of(head)), "the scale of " + hex(largest));
        for (float x : head) {
            const signed char integer = (signed char)pk_divide_by_scale(x, scale);
            check(integer == integer_of(x, scale), "the integer of " + hex(bits_of(x)) + " by " + hex(bits_of(scale)));
        }
    }
}

// Values of the doc comment of the host's storage, by hand.
void the_ends_are_those_of_the_rule() {
    const float infinity = std::numeric_limits<float>::infinity();
    check(pk_element<PK_F16>::narrow(infinity) == 0x7bff, "infinity in f16 is 65,504");
    check(pk_element<PK_F16>::narrow(65519.996f) == 0x7bff, "65,519.996 in f16 is 65,504");
    check(pk_element<PK_BF16>::narrow(-infinity) == 0xff7f, "-infinity in bf16 is the least");
    check(pk_element<PK_E4M3>::narrow(1e4f) == 0x7e, "1e4 in E4M3 is 448");
    check(pk_element<PK_E4M3>::narrow(from_bits(0xff800001u)) == 0xff, "-NaN in E4M3");
    check(pk_element<PK_F16>::narrow(from_bits(0xffa5a000u)) == 0xff2d, "a payload in f16");
    check(pk_element<PK_BF16>::narrow(from_bits(0x7fbfffffu)) == 0x7fff, "a payload in bf16");
    check(bits_of(pk_element<PK_F32>::widen(pk_element<PK_F32>::narrow(infinity))) == 0x7f800000u, "f32 as it is");
    // A scale of 1, ties to even.
    const float numbers[] = {127.0f, -127.0f, 0.5f, 1.5f, -2.5f, 126.5f, 3.49f, -3.51f, -0.0f};
    const int expected[] = {127, -127, 0, 2, -2, 126, 3, -4, 0};
    for (int i = 0; i < 9; i++) {
        check((signed char)pk_divide_by_scale(numbers[i], 1.0f) == expected[i], "an integer of scale 1");
    }
    check(pk_scale_of(0x7f800000u) * 127.0f < infinity, "127 scales of infinity are a number");
    check(pk_divide_by_scale(infinity, pk_scale_of(0x7f800000u)) == 127, "infinity is 127 scales");
}

void tanh_is_within_what_its_comment_says() {
    Random random(2);
    for (int round = 0; round < 200000; round++) {
        const float x = round < 100000 ? (float)round * 1e-4f : std::ldexp(random.normal(), random.between(-30, 5));
        const double exact = std::tanh((double)x);
        const double error = std::fabs((double)pk_tanh(x) - exact);
        // The twin of the power is within half an ulp, where the instruction is within 2^-22, eight times as much.
        check(error <= 4.0 * std::ldexp(1.0, -24) && error <= 6.0 * std::ldexp(1.0, -24) * std::fabs(exact) + 1e-45,
              "tanh of " + std::to_string(x));
    }
    const float infinity = std::numeric_limits<float>::infinity();
    check(pk_tanh(infinity) == 1.0f && pk_tanh(-infinity) == -1.0f, "tanh of infinity");
    check(std::isnan(pk_tanh(from_bits(0x7fc00000u))), "tanh of NaN");
}

}  // namespace

int main() {
    every_upper_half_is_narrowed_to_the_nearest<PK_F16>();
    every_upper_half_is_narrowed_to_the_nearest<PK_BF16>();
    every_upper_half_is_narrowed_to_the_nearest<PK_E4M3>();
    middles_of_e4m3_go_to_even();
    every_code_is_widened_exactly<PK_F16>(0x10000, true);
    every_code_is_widened_exactly<PK_BF16>(0x10000, false);
    every_code_is_widened_exactly<PK_E4M3>(0x100, true);
    pairs_of_e4m3_are_those_halves();
    scales_and_integers_are_those_of_the_rule();
    the_ends_are_those_of_the_rule();
    tanh_is_within_what_its_comment_says();
    return report("element_test");
}
