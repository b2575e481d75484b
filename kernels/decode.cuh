// The decode kernel: attention over blocks of 16-bit and 8-bit pools by the tensor cores, for rows of few query tokens.
// Any number of them is right.
//
// Shapes: q and out [tokens, q_heads, head_dim], lse [tokens, q_heads]; head_dim 64, 128 or 256 of K and of V; blocks
// of a multiple of 16 tokens. Every plane of the pool, and so every row of it, begins at a multiple of 16 bytes.
// Grid: `ctas` CTAs of 128 threads, all of them on the device at once. Each takes a run of tiles of 64 keys (see
// `decode_items.cuh`), a warp 16 keys of each; the four warps come together where an item ends or is cut.
// Shared memory: see `pk_decode_shared`; the ring, 2 x 4 x 16 x stages rows, is nearly all of it.
// Accumulation: f32. Queries, and weights for their products with V, are rounded to 16 bits: to the type of the pool,
// with E4M3 to f16.
// Must match: `src/storage/suite/reference.rs`.
// Source: the split of work is that of LeanAttention (Sanovar et al., 2024); the softmax as in `attend_naive.cu`.
//
// Invariants: tiles begin at multiples of 64 positions of the sequence, so that a column's arithmetic does not depend
// on what is in its span beside it. With fixed splits it does not depend on the rest of the step either: where the work
// is cut, and in what order parts are joined, is a matter of the positions alone, whichever CTA does it.
// Known: a token of a row that is there and that only later columns of its span see is multiplied by 0 for the earlier
// ones, which NaN and infinity survive. What no column of the span sees is not read.
#pragma once

#include "common.cuh"
#include "decode_columns.cuh"
#include "decode_items.cuh"
#include "decode_page.cuh"
#include "decode_ring.cuh"
#include "decode_shape.cuh"
#include "output.cuh"
#include "params.cuh"
#include "score.cuh"

// Tiles of an item that a CTA takes without a break.
struct pk_stretch {
    pk_cursor last;   // its last tile
    bool begun;       // the item began in this CTA
    bool resumed;     // and an earlier stretch of it has left a partial
    bool ends_item;
};

// Where partials of this CTA's go.
PK_DEV float *pk_partial_of(const pk_decode_params &p, const pk_stretch &stretch) {
    if (stretch.begun) {
        return pk_partial(p, blockIdx.x, p.slots - 1);
    }
    return pk_partial(p, blockIdx.x, p.split_tiles == 0 ? 0 : stretch.last.tile / p.split_tiles);
}

// Puts what a warp has gathered of eight columns where the CTA sees it: values in the slot that was read last, as
// [8, HEAD_DIM] floats of which element d is at d ^ 8 (column / 2), so that lanes do not meet in a bank.
template <class S>
PK_DEV void pk_stage(const pk_decode_shared<S> &shared, float *values, int n, pk_gathered<S> &gathered) {
    const int lane = threadIdx.x % PK_WARP_LANES;
    const int column = lane % 4 * 2;
    const int turn = lane % 4 * 8;
    float *softmaxes = shared.softmaxes + threadIdx.x / PK_WARP_LANES * 16;
    const float sum0 = pk_column_sum(gathered.softmax[n][0].sum);
    const float sum1 = pk_column_sum(gathered.softmax[n][1].sum);
    if (lane < 4) {
        softmaxes[column] = gathered.softmax[n][0].max;
        softmaxes[column + 1] = gathered.softmax[n][1].max;
        softmaxes[8 + column] = sum0;
        softmaxes[8 + column + 1] = sum1;
    }
    float *even = values + column * S::HEAD_DIM;
    float *odd = even + S::HEAD_DIM;
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
        const int upper = pk_element_of<S>(step, false) ^ turn;
        const int lower = pk_element_of<S>(step, true) ^ turn;
        even[upper] = gathered.values[n][step][0];
        odd[upper] = gathered.values[n][step][1];
        even[lower] = gathered.values[n][step][2];
        odd[lower] = gathered.values[n][step][3];
    }
}

// Joins what the warps have staged in slot `slot` of their rings of elements d and d + 1 of column n * 8 + `column`,
// and what an earlier stretch has left, and hands it on.
template <class S>
PK_DEV void pk_hand_on(const pk_decode_params &p, const pk_decode_shared<S> &shared, const pk_stretch &stretch,
                       int slot, int n, int column, int d) {
    const pk_column &who = shared.columns[n * 8 + column];
    if (who.token < 0) {
        return;
    }
    pk_softmax softmax = {pk_minus_infinity(), 0.0f};
#pragma unroll
    for (int warp = 0; warp < PK_DECODE_WARPS; warp++) {
        softmax.max = pk_max(softmax.max, shared.softmaxes[warp * 16 + column]);
    }
    float sum0 = 0.0f;
    float sum1 = 0.0f;
#pragma unroll
    for (int warp = 0; warp < PK_DECODE_WARPS; warp++) {
        const float factor = pk_rescale(shared.softmaxes[warp * 16 + column], softmax.max);
        const float *values = (const float *)(shared.ring + (warp * p.stages + slot) * S::SLOT_BYTES);
        values += column * S::HEAD_DIM + (d ^ column / 2 * 8);
        softmax.sum = fmaf(shared.softmaxes[warp * 16 + 8 + column], factor, softmax.sum);
        sum0 = fmaf(values[0], factor, sum0);
        sum1 = fmaf(values[1], factor, sum1);
    }
    float *partial = pk_partial_of(p, stretch);
    float *sums = partial + (n * 8 + column) * S::HEAD_DIM + d;
    if (stretch.resumed) {
        const float *before = shared.softmaxes + PK_DECODE_WARPS * 16 + column;
        pk_softmax all = {before[0], before[8]};
        const pk_factors factors = pk_join(all, softmax);
        softmax = all;
        sum0 = pk_join_sums(sums[0], sum0, factors);
        sum1 = pk_join_sums(sums[1], sum1, factors);
    }
    if (stretch.begun && stretch.ends_item) {
        pk_write_result(p, who.token, who.head, d, sum0, sum1, softmax);
        return;
    }
    sums[0] = sum0;
    sums[1] = sum1;
    if (d == 0) {
        float *softmaxes = partial + S::COLUMNS * S::HEAD_DIM + n * 8 + column;
        softmaxes[0] = softmax.max;
        softmaxes[S::COLUMNS] = softmax.sum;
    }
}

// The four warps come together. The other slots of their rings go on loading meanwhile.
template <class S>
PK_DEV void pk_finish_stretch(const pk_decode_params &p, const pk_decode_shared<S> &shared, const pk_stretch &stretch,
                            float *staged, int slot, pk_gathered<S> &gathered) {
    constexpr int PAIRS = S::HEAD_DIM / 2;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        pk_stage<S>(shared, staged, n, gathered);
        if (stretch.resumed && threadIdx.x < 16) {
            // Before the barrier: behind it the thread of element 0 writes them anew.
            const int column = n * 8 + threadIdx.x % 8;
            const float *softmaxes = pk_partial_of(p, stretch) + S::COLUMNS * S::HEAD_DIM + column;
            shared.softmaxes[PK_DECODE_WARPS * 16 + threadIdx.x] = softmaxes[threadIdx.x / 8 * S::COLUMNS];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * PAIRS; i += PK_DECODE_THREADS) {
            pk_hand_on<S>(p, shared, stretch, slot, n, i / PAIRS, i % PAIRS * 2);
        }
        __syncthreads();
    }
}

template <class S>
PK_DEV void pk_decode(const pk_decode_params &p) {
    PK_SMEM(memory);
    const pk_i64 all_tiles = pk_all_tiles(p);
    const pk_i64 shares = pk_num_shares(p, all_tiles);
    if (blockIdx.x >= shares) {
        return;
    }
    const pk_i64 begin = pk_share_begin(p, all_tiles, shares, blockIdx.x);
    int left = (int)(pk_share_begin(p, all_tiles, shares, (pk_i64)blockIdx.x + 1) - begin);
    if (left <= 0) {
        return;
    }
    const pk_decode_shared<S> shared(memory, p.stages);
    pk_stretch stretch = {pk_seek(p, begin), false, false, true};
    pk_ring<S> ring(p, shared.ring, stretch.last, left);
    for (int slot = 0; slot < p.stages - 1; slot++) {
        ring.fetch(p, slot);
    }
    pk_queries<S> queries;
    pk_gathered<S> gathered;
    gathered.clear();
    int row_start = 0;
    int slot = 0;
    while (true) {
        // The slot before this one was read last.
        ring.fetch(p, slot == 0 ? p.stages - 1 : slot - 1);
        if (stretch.ends_item) {
            // So did the last tile: this one begins another item.
            pk_load_columns<S>(p, shared, stretch.last);
            queries.load(shared);
            const pk_span &span = p.plan.spans[stretch.last.span];
            row_start = p.step.rows[span.row].start;
            stretch.begun = stretch.last.tile == span.first_tile;
            stretch.resumed = false;
        }
        ring.wait();
        if (ring.has_page(slot)) {
            const int page = stretch.last.tile * PK_DECODE_WARPS + threadIdx.x / PK_WARP_LANES;
            pk_take_page<S>(p, shared, ring.slot(slot), page * PK_PAGE_TOKENS, row_start, queries, gathered);
        }
        // All lanes have read the slot before it is written to, by the next fetch or here.
        __syncwarp();
        left--;
        const int next = stretch.last.tile + 1;
        stretch.ends_item = next == stretch.last.end_tile;
        if (stretch.ends_item || left == 0 || (p.split_tiles > 0 && next % p.split_tiles == 0)) {
            pk_finish_stretch<S>(p, shared, stretch, (float *)ring.slot(slot), slot, gathered);
            gathered.clear();
            stretch.resumed = stretch.begun;
        }
        if (left == 0) {
            return;
        }
        pk_advance(p, stretch.last);
        slot = slot + 1 == p.stages ? 0 : slot + 1;
    }
}

#define PK_DECODE(name, pool, head_dim, n_tiles, ctas)                                                                 \
    extern "C" __global__ void __launch_bounds__(PK_DECODE_THREADS, ctas)                                              \
        name(const __grid_constant__ pk_decode_params p) {                                                             \
        pk_decode<pk_shape<pool, head_dim, n_tiles>>(p);                                                               \
    }                                                                                                                  \
    PK_EXPORT(name)
