// The arithmetic of a page: 16 keys of a warp against the columns of an item.
//
// "Swap-AB": the tokens of the page are the 16 rows of mma.m16n8k16 and the columns its 8 columns, so that eight query
// heads that share a KV head fill it. Scores S = K Q are [16 tokens, 8 columns]; O += V^T P is [head_dim, 8 columns],
// 16 elements at a time. A lane has columns 2 (lane % 4) and the next, of rows lane / 4 and lane / 4 + 8: of
// accumulators and of scores.
//
// Numbers: products of 16 bits, sums in f32. Weights are rounded to 16 bits for the MMA and not in their own sum.
#pragma once

#include "common.cuh"
#include "decode_columns.cuh"
#include "decode_shape.cuh"
#include "params.cuh"
#include "score.cuh"

// What a warp has gathered: weighted sums of V, and of two columns of each eight the softmax, whose sums are of the
// lane's own rows.
template <class S>
struct pk_gathered {
    float values[S::N_TILES][S::STEPS][4];
    pk_softmax softmax[S::N_TILES][2];

    PK_DEV void clear() {
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
            for (int step = 0; step < S::STEPS; step++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    values[n][step][i] = 0.0f;
                }
            }
            softmax[n][0] = softmax[n][1] = {pk_minus_infinity(), 0.0f};
        }
    }
};

// Two pairs of bytes of a register as f16.
PK_DEV pk_u32 pk_low_pair(pk_u32 bytes) {
    return pk_e4m3x2_to_f16x2((pk_u16)(bytes & 0xffffu));
}

PK_DEV pk_u32 pk_high_pair(pk_u32 bytes) {
    return pk_e4m3x2_to_f16x2((pk_u16)(bytes >> 16));
}

// Products of the page's keys and the queries, without the scale.
template <class S>
PK_DEV void pk_multiply_keys(const pk_u8 *keys, const pk_queries<S> &queries, float scores[S::N_TILES][4]) {
    const int lane = threadIdx.x % PK_WARP_LANES;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
    }
#pragma unroll
    for (int pair = 0; pair < S::CHUNKS / 2; pair++) {
        pk_u32 a[4];
        pk_ldmatrix_x4(a, keys + S::place(lane % 16, pair * 2 + lane / 16));
        if constexpr (S::IS_BYTES) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const pk_u32 upper = a[2 * half];
                const pk_u32 lower = a[2 * half + 1];
                const pk_u32 wide[4] = {pk_low_pair(upper), pk_low_pair(lower), pk_high_pair(upper),
                                        pk_high_pair(lower)};
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++) {
                    const pk_u32(&b)[2] = queries.words[n][2 * pair + half];
                    S::mma(scores[n], wide, b[0], b[1]);
                }
            }
        } else {
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++) {
                S::mma(scores[n], a, queries.words[n][pair][0], queries.words[n][pair][1]);
            }
        }
    }
}

// Whether a column sees the key at a position. Under a mask that says for the tokens of the row who sees whom.
PK_DEV bool pk_column_sees(const pk_column &column, int position, int row_start, int mask_words) {
    if (position < column.first || position >= column.end) {
        return false;
    }
    if (column.mask == nullptr || position < row_start) {
        return true;
    }
    const int index = position - row_start;
    return index / 64 < mask_words && (column.mask[index / 64] >> (index % 64) & 1) != 0;
}

// Makes scores of the products of one eight of columns; minus infinity where a column does not see the key, whatever
// the product is.
PK_DEV void pk_make_scores(const pk_variant &variant, const pk_column *columns, int row_start, int begin,
                           float scores[4]) {
    const int lane = threadIdx.x % PK_WARP_LANES;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const pk_column column = columns[lane % 4 * 2 + j];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int position = begin + half * 8 + lane / 4;
            float &score = scores[half * 2 + j];
            score = pk_score(variant, score, column.slope, position - column.position);
            if (!pk_column_sees(column, position, row_start, variant.mask_words)) {
                score = pk_minus_infinity();
            }
        }
    }
}

// Over the rows of a column: the eight lanes that have it.
PK_DEV float pk_column_max(float x) {
#pragma unroll
    for (int apart = 4; apart < PK_WARP_LANES; apart *= 2) {
        x = pk_max(x, __shfl_xor_sync(PK_ALL_LANES, x, apart));
    }
    return x;
}

PK_DEV float pk_column_sum(float x) {
#pragma unroll
    for (int apart = 4; apart < PK_WARP_LANES; apart *= 2) {
        x += __shfl_xor_sync(PK_ALL_LANES, x, apart);
    }
    return x;
}

// Takes scores of one eight of columns into its softmaxes; returns their weights as the B fragment of the next MMA.
template <class S>
PK_DEV void pk_weigh(const float scores[4], pk_gathered<S> &gathered, int n, pk_u32 weights[2]) {
    pk_softmax(&softmax)[2] = gathered.softmax[n];
    const float max0 = pk_max(softmax[0].max, pk_column_max(pk_max(scores[0], scores[2])));
    const float max1 = pk_max(softmax[1].max, pk_column_max(pk_max(scores[1], scores[3])));
    // Mostly no maximum moves, and there is nothing to multiply.
    if (__any_sync(PK_ALL_LANES, max0 > softmax[0].max || max1 > softmax[1].max)) {
        const float factor0 = pk_rescale(softmax[0].max, max0);
        const float factor1 = pk_rescale(softmax[1].max, max1);
        softmax[0] = {max0, softmax[0].sum * factor0};
        softmax[1] = {max1, softmax[1].sum * factor1};
#pragma unroll
        for (int step = 0; step < S::STEPS; step++) {
            gathered.values[n][step][0] *= factor0;
            gathered.values[n][step][1] *= factor1;
            gathered.values[n][step][2] *= factor0;
            gathered.values[n][step][3] *= factor1;
        }
    }
    const float base0 = pk_base_of(max0);
    const float base1 = pk_base_of(max1);
    const float weight0 = pk_exp2(scores[0] - base0);
    const float weight1 = pk_exp2(scores[1] - base1);
    const float weight2 = pk_exp2(scores[2] - base0);
    const float weight3 = pk_exp2(scores[3] - base1);
    softmax[0].sum += weight0 + weight2;
    softmax[1].sum += weight1 + weight3;
    // Tokens are rows here and must be the inner dimension of the next product.
    weights[0] = pk_movmatrix_trans(S::pack(weight0, weight1));
    weights[1] = pk_movmatrix_trans(S::pack(weight2, weight3));
}

// Adds the page's values times the weights.
template <class S>
PK_DEV void pk_add_values(const pk_u8 *values, const pk_u32 weights[S::N_TILES][2], pk_gathered<S> &gathered) {
    const int lane = threadIdx.x % PK_WARP_LANES;
#pragma unroll
    for (int pair = 0; pair < S::CHUNKS / 2; pair++) {
        pk_u32 a[4];
        pk_ldmatrix_x4_trans(a, values + S::place(lane % 8 + lane / 16 * 8, pair * 2 + lane / 8 % 2));
        if constexpr (S::IS_BYTES) {
            // A transposed element is a pair of bytes, two elements of V. Even and odd ones are taken apart, into
            // products of their own: see `pk_element_of`.
            pk_u32 even[4];
            pk_u32 odd[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const pk_u32 sorted = __byte_perm(a[i], 0, 0x3120);
                even[i] = pk_low_pair(sorted);
                odd[i] = pk_high_pair(sorted);
            }
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++) {
                S::mma(gathered.values[n][2 * pair], even, weights[n][0], weights[n][1]);
                S::mma(gathered.values[n][2 * pair + 1], odd, weights[n][0], weights[n][1]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++) {
                S::mma(gathered.values[n][pair], a, weights[n][0], weights[n][1]);
            }
        }
    }
}

// The element of V that row lane / 4 (`lower`: that and 8) of the accumulators of a step is.
template <class S>
PK_DEV int pk_element_of(int step, bool lower) {
    const int row = threadIdx.x % PK_WARP_LANES / 4 + (lower ? 8 : 0);
    return S::IS_BYTES ? step / 2 * 32 + row * 2 + step % 2 : step * 16 + row;
}

// A page that is there, of the tile that begins at 64 `tile`.
template <class S>
PK_DEV void pk_take_page(const pk_decode_params &p, const pk_decode_shared<S> &shared, const pk_u8 *page, int begin,
                         int row_start, const pk_queries<S> &queries, pk_gathered<S> &gathered) {
    float scores[S::N_TILES][4];
    pk_u32 weights[S::N_TILES][2];
    pk_multiply_keys<S>(page, queries, scores);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        pk_make_scores(p.variant, shared.columns + n * 8, row_start, begin, scores[n]);
        pk_weigh<S>(scores[n], gathered, n, weights[n]);
    }
    pk_add_values<S>(page + S::PAGE_BYTES, weights, gathered);
}
