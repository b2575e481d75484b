// Scores and softmaxes, to base 2: times log2 e, so that weights are powers of two.
//
// No number stands for minus infinity. Where it could be taken from itself, that is said and asked for.
#pragma once

#include "common.cuh"
#include "params.cuh"

// A softmax over some keys: the largest score, and the sum of 2^(score - max). NaN stays out of the maximum and stands
// in the sum.
struct pk_softmax {
    float max, sum;
};

// What takes weights from one maximum to another that is no less: 0 where there were none.
PK_DEV float pk_rescale(float from, float to) {
    return from == pk_minus_infinity() ? 0.0f : pk_exp2(from - to);
}

// What scores are taken from: of keys that nobody sees yet nothing is.
PK_DEV float pk_base_of(float max) {
    return max == pk_minus_infinity() ? 0.0f : max;
}

// From a product of query and key to a score; `distance` is that from the query to the key, at most 0 but under a mask.
PK_DEV float pk_score(const pk_variant &variant, float product, float slope, int distance) {
    float score;
    if (variant.soft_cap > 0.0f) {
        score = pk_tanh(product * (variant.scale / variant.soft_cap)) * (variant.soft_cap * PK_LOG2_E);
    } else {
        score = product * (variant.scale * PK_LOG2_E);
    }
    return variant.has_slopes ? score + slope * PK_LOG2_E * (float)distance : score;
}
