// The columns of an item, in shared memory: what they see, and their queries as the MMA takes them.
#pragma once

#include "common.cuh"
#include "decode_items.cuh"
#include "decode_shape.cuh"
#include "element.cuh"
#include "memory.cuh"
#include "params.cuh"

// Column `index` of the item's span, which may have less.
PK_DEV pk_column pk_column_of(const pk_decode_params &p, const pk_span &span, int virtual_head, int index) {
    pk_column column = {0, 0, -1, 0, 0, 0.0f, nullptr};
    const pk_row row = p.step.rows[span.row];
    const int group = p.q_heads / p.kv_heads;
    const int of_row = span.first_column + index;
    const int token = of_row / p.part_heads;
    const int of_group = virtual_head % p.parts * p.part_heads + of_row % p.part_heads;
    const pk_i64 number = (pk_i64)row.first_token + token;
    if (token >= row.tokens || of_group >= group || number < 0 || number >= p.q.tokens ||
        number >= p.step.counts->tokens) {
        return column;
    }
    column.token = (int)number;
    column.head = virtual_head / p.parts * group + of_group;
    column.position = row.start + token;
    column.end = column.position + 1;
    if (p.variant.mask_words > 0) {
        column.mask = p.variant.mask + number * p.variant.mask_words;
        column.end = row.start + row.tokens;
    }
    if (p.variant.window > 0 && column.position >= p.variant.window) {
        column.first = column.position - p.variant.window + 1;
    }
    if (p.variant.has_slopes) {
        column.slope = p.variant.slopes[column.head];
    }
    return column;
}

// Brings the columns of an item to shared memory. All threads come here, and nobody reads those of the item before.
template <class S>
PK_DEV void pk_load_columns(const pk_decode_params &p, const pk_decode_shared<S> &shared, pk_cursor at) {
    const pk_span span = p.plan.spans[at.span];
    if (threadIdx.x < S::COLUMNS) {
        shared.columns[threadIdx.x] = pk_column_of(p, span, at.head, threadIdx.x);
    }
    __syncthreads();
    constexpr int WORDS = S::HEAD_DIM / 2;
    for (int i = threadIdx.x; i < S::COLUMNS * WORDS; i += PK_DECODE_THREADS) {
        const int index = i / WORDS;
        const int word = i % WORDS;
        const int token = shared.columns[index].token;
        pk_u32 pair = 0;
        if (token >= 0) {
            const pk_u8 *query = pk_tensor_row(p.q, token, shared.columns[index].head);
            const float low = pk_load_float(p.q.dtype, query, 2 * word);
            const float high = pk_load_float(p.q.dtype, query, 2 * word + 1);
            pair = S::pack(pk_saturate(low, S::most()), pk_saturate(high, S::most()));
        }
        shared.query(index, word) = pair;
    }
    __syncthreads();
}

// A lane's part of the queries: the B fragments of all steps.
template <class S>
struct pk_queries {
    pk_u32 words[S::N_TILES][S::STEPS][2];

    // With bytes ldmatrix gives a lane four elements of K in a row, where with 16 bits it gives two and two more eight
    // behind them. Queries take the same order: sums do not mind.
    PK_DEV void load(const pk_decode_shared<S> &shared) {
        const int lane = threadIdx.x % PK_WARP_LANES;
        const int first = S::IS_BYTES ? lane % 4 * 2 : lane % 4;
        const int second = S::IS_BYTES ? first + 1 : first + 4;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
            for (int step = 0; step < S::STEPS; step++) {
                words[n][step][0] = shared.query(n * 8 + lane / 4, step * 8 + first);
                words[n][step][1] = shared.query(n * 8 + lane / 4, step * 8 + second);
            }
        }
    }
};
