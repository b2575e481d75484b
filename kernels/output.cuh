// From weighted sums to outputs: what the decode kernel and the merge must do alike, bit for bit.
#pragma once

#include "common.cuh"
#include "element.cuh"
#include "memory.cuh"
#include "params.cuh"
#include "score.cuh"

// Factors that bring the sums of two softmaxes to the maximum of both.
struct pk_factors {
    float before, next;
};

// Adds the keys of `next` to a softmax.
PK_DEV pk_factors pk_join(pk_softmax &softmax, pk_softmax next) {
    const float max = pk_max(softmax.max, next.max);
    const pk_factors factors = {pk_rescale(softmax.max, max), pk_rescale(next.max, max)};
    softmax = {max, fmaf(softmax.sum, factors.before, next.sum * factors.next)};
    return factors;
}

// The sums that belong to it.
PK_DEV float pk_join_sums(float sums, float next, pk_factors factors) {
    return fmaf(sums, factors.before, next * factors.next);
}

// What sums are multiplied by to be outputs, and the log-sum-exp. The head's sink is a key of which only the weight
// counts.
struct pk_result {
    float factor, lse;
};

PK_DEV pk_result pk_result_of(const pk_variant &variant, pk_softmax softmax, int head) {
    pk_softmax all = softmax;
    float factor = 1.0f;
    if (variant.has_sinks) {
        const float sink = variant.sinks[head] * PK_LOG2_E;
        all.max = pk_max(softmax.max, sink);
        factor = pk_rescale(softmax.max, all.max);
        all.sum = fmaf(softmax.sum, factor, pk_exp2(sink - pk_base_of(all.max)));
    }
    pk_result result = {0.0f, pk_minus_infinity()};
    if (all.sum != 0.0f) {
        result.lse = (all.max + pk_log2(all.sum)) * PK_LN_2;
        result.factor = factor / all.sum;
    }
    return result;
}

// Writes elements d and d + 1 of a head of a token, and with the first of them the log-sum-exp.
PK_DEV void pk_write_result(const pk_decode_params &p, int token, int head, int d, float sum0, float sum1,
                            pk_softmax softmax) {
    const pk_result result = pk_result_of(p.variant, softmax, head);
    pk_u8 *to = pk_tensor_row(p.out, token, head);
    pk_store_float(p.out.dtype, to, d, sum0 * result.factor);
    pk_store_float(p.out.dtype, to, d + 1, sum1 * result.factor);
    if (d == 0 && p.lse != nullptr) {
        p.lse[(pk_i64)token * p.q_heads + head] = result.lse;
    }
}
