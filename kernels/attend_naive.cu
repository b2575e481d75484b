// pk_attend_naive_<dtype of the pool>: attention, one query head of one token at a time. The readable reference, which
// the fast kernels must match, and the fallback for shapes that none of them takes.
//
// Shapes: q [tokens, q_heads, k_dim], out [tokens, q_heads, v_dim], lse [tokens, q_heads]; any dims, any block size,
// any number of query heads per KV head.
// Grid: tokens * q_heads CTAs of one warp.
// Shared memory: of a chunk, where V of its keys lies [32] and their weights [32]; the query [k_dim] and the weighted
// sums of V [v_dim], f32.
// Limits: sinks and slopes are there for PK_MAX_PER_HEAD query heads; the host refuses more.
// Accumulation: f32, products fused with their sums, said outright so that the host's build does the same. A score in
// eight sums; a chunk's values are summed by themselves and then added to the running sums, so that n keys round
// n / 32 + 32 times and not n times.
// Must match: `src/storage/suite/reference.rs`.
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
//
// Keys are taken in chunks of 32 that begin at multiples of 32 of the position in the sequence: no bit of a result
// depends on block size, layout, batch, or how the context was cut into steps. Keys that are not seen are left out and
// not multiplied by zero, because what lies in their slots may be NaN. Scores are kept to base 2, times log2 e. No
// number stands for minus infinity: the guards are where it could be taken from itself.
#include "common.cuh"
#include "element.cuh"
#include "memory.cuh"
#include "params.cuh"
#include "query.cuh"
#include "score.cuh"

// The weight of a score.
PK_DEV float weight_of(float score, float max) {
    return pk_exp2(score - pk_base_of(max));
}

PK_DEV float warp_max(float x) {
    float max = pk_is_nan(x) ? pk_minus_infinity() : x;
    for (int apart = PK_WARP_LANES / 2; apart > 0; apart /= 2) {
        max = pk_max(max, __shfl_xor_sync(PK_ALL_LANES, max, apart));
    }
    return max;
}

PK_DEV float warp_sum(float x) {
    for (int apart = PK_WARP_LANES / 2; apart > 0; apart /= 2) {
        x += __shfl_xor_sync(PK_ALL_LANES, x, apart);
    }
    return x;
}

// query . key in eight sums; without the scale of integers.
template <int POOL>
PK_DEV float dot(const float *query, const pk_u8 *key, int dim) {
    float sums[8] = {};
    int d = 0;
    for (; d + 8 <= dim; d += 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sums[i] = fmaf(query[d + i], pk_load<POOL>(key, d + i), sums[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 7; i++) {
        if (d + i < dim) {
            sums[i] = fmaf(query[d + i], pk_load<POOL>(key, d + i), sums[i]);
        }
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// From a product to a score to base 2; `distance` is that from the query to the key.
PK_DEV float bend(const pk_variant &variant, float product, int head, float distance) {
    float score;
    if (variant.soft_cap > 0.0f) {
        score = pk_tanh(product * (variant.scale / variant.soft_cap)) * (variant.soft_cap * PK_LOG2_E);
    } else {
        score = product * (variant.scale * PK_LOG2_E);
    }
    return variant.has_slopes ? fmaf(variant.slopes[head] * PK_LOG2_E, distance, score) : score;
}

// What a lane knows of its key of a chunk. `value` is where V lies, null where the query does not see the key.
struct Key {
    const pk_u8 *value;
    float score, v_scale;
};

template <int POOL>
PK_DEV Key score_key(const pk_attend_params &p, const pk_query &query, const float *elements, int head,
                     int position) {
    const int kv_head = head / (p.q_heads / p.kv_heads);
    Key key = {nullptr, pk_minus_infinity(), 1.0f};
    if (!pk_sees(query, position)) {
        return key;
    }
    const pk_place place = pk_place_of_key(query, position, p.block_size, p.num_blocks);
    if (place.block < 0) {
        return key;
    }
    key.value = pk_at(p.v_pool, place, kv_head);
    float product = dot<POOL>(elements, pk_at(p.k_pool, place, kv_head), p.k_dim);
    if (POOL == PK_I8) {
        product *= pk_load_unaligned(pk_at(p.k_scales, place, kv_head));
        key.v_scale = pk_load_unaligned(pk_at(p.v_scales, place, kv_head));
    }
    key.score = bend(p.variant, product, head, (float)(position - query.position));
    return key;
}

// What all lanes know of the keys of a chunk. A weight has the scale of its key's V in it.
struct Chunk {
    const pk_u8 *value[PK_WARP_LANES];
    float weight[PK_WARP_LANES];
};

// Multiplies the running sums by `factor` and adds the chunk's values times their weights. Lanes are elements of V.
template <int POOL>
PK_DEV void add_values(const Chunk &chunk, int v_dim, float factor, float *sums) {
    for (int d = threadIdx.x; d < v_dim; d += PK_WARP_LANES) {
        float sum = 0.0f;
#pragma unroll 4
        for (int column = 0; column < PK_WARP_LANES; column++) {
            if (chunk.value[column] != nullptr) {
                sum = fmaf(chunk.weight[column], pk_load<POOL>(chunk.value[column], d), sum);
            }
        }
        sums[d] = fmaf(sums[d], factor, sum);
    }
}

// Walks the keys that the query sees. Leaves the weighted sums of V in `sums`.
template <int POOL>
PK_DEV pk_softmax walk(const pk_attend_params &p, const pk_query &query, int head, const float *elements, float *sums,
                    Chunk &chunk) {
    const int lane = threadIdx.x;
    pk_softmax softmax = {pk_minus_infinity(), 0.0f};
    for (int first = query.first / PK_WARP_LANES * PK_WARP_LANES; first < query.end; first += PK_WARP_LANES) {
        const Key key = score_key<POOL>(p, query, elements, head, first + lane);
        if (!__any_sync(PK_ALL_LANES, key.value != nullptr)) {
            continue;
        }
        const float max = pk_max(softmax.max, warp_max(key.score));
        const float factor = pk_rescale(softmax.max, max);
        const float weight = key.value == nullptr ? 0.0f : weight_of(key.score, max);
        softmax = {max, fmaf(softmax.sum, factor, warp_sum(weight))};
        chunk.value[lane] = key.value;
        chunk.weight[lane] = weight * key.v_scale;
        __syncwarp();
        add_values<POOL>(chunk, p.v_dim, factor, sums);
        // All lanes have read the chunk before the next one is written.
        __syncwarp();
    }
    return softmax;
}

// Writes a head's output, and its log-sum-exp where that is wanted. A sink is a key of which only the weight counts,
// that of its own maximum being 1.
PK_DEV void finish(const pk_attend_params &p, pk_softmax seen, const float *sums, bool has_sink, int token, int head) {
    pk_softmax all = seen;
    float factor = 1.0f;
    if (has_sink) {
        const float sink = p.variant.sinks[head] * PK_LOG2_E;
        all.max = pk_max(seen.max, sink);
        factor = pk_rescale(seen.max, all.max);
        all.sum = fmaf(seen.sum, factor, weight_of(sink, all.max));
    }
    pk_u8 *to = pk_tensor_row(p.out, token, head);
    for (int d = threadIdx.x; d < p.v_dim; d += PK_WARP_LANES) {
        pk_store_float(p.out.dtype, to, d, seen.sum == 0.0f ? 0.0f : sums[d] * factor / all.sum);
    }
    if (p.lse != nullptr && threadIdx.x == 0) {
        const float lse = (all.max + pk_log2(all.sum)) * PK_LN_2;
        p.lse[(pk_i64)token * p.q_heads + head] = all.sum == 0.0f ? pk_minus_infinity() : lse;
    }
}

template <int POOL>
PK_DEV void attend(const pk_attend_params &p) {
    PK_SMEM(shared);
    Chunk &chunk = *(Chunk *)shared;
    float *elements = (float *)(shared + sizeof(Chunk));
    float *sums = elements + p.k_dim;
    const int token = blockIdx.x / p.q_heads;
    const int head = blockIdx.x % p.q_heads;
    if (token >= p.q.tokens) {
        return;
    }
    for (int d = threadIdx.x; d < p.k_dim; d += PK_WARP_LANES) {
        elements[d] = pk_load_float(p.q.dtype, pk_tensor_row(p.q, token, head), d);
    }
    for (int d = threadIdx.x; d < p.v_dim; d += PK_WARP_LANES) {
        sums[d] = 0.0f;
    }
    __syncwarp();
    const pk_query query = pk_query_of(p.step, p.variant, p.block_size, token);
    const pk_softmax seen = walk<POOL>(p, query, head, elements, sums, chunk);
    // What pads the step has no sink either: its log-sum-exp is that of nothing.
    finish(p, seen, sums, p.variant.has_sinks && query.table != nullptr, token, head);
}

#define PK_ATTEND_NAIVE(name, pool)                                                                                    \
    extern "C" __global__ void __launch_bounds__(32) name(const __grid_constant__ pk_attend_params p) {                \
        attend<pool>(p);                                                                                               \
    }                                                                                                                  \
    PK_EXPORT(name)

PK_ATTEND_NAIVE(pk_attend_naive_f32, PK_F32)
PK_ATTEND_NAIVE(pk_attend_naive_f16, PK_F16)
PK_ATTEND_NAIVE(pk_attend_naive_bf16, PK_BF16)
PK_ATTEND_NAIVE(pk_attend_naive_e4m3, PK_E4M3)
PK_ATTEND_NAIVE(pk_attend_naive_i8, PK_I8)
