// pk_plan: cuts the rows of a step into spans and says how much work each of them is. Once for a step and for each way
// of attending (heads of a part, columns of a span, window, mask), before the first pk_decode_* that attends so.
//
// It runs on the device, because a captured graph has no host that could plan for the step of its replay.
//
// Grid: one CTA of 256 threads. First, 256 rows at a time, how many spans each row has, which all threads add up, and
// the spans themselves, a warp for a row; then the sums of their tiles, 256 spans at a time.
// Shared memory: PK_PLAN_SHARED bytes.
// Invariant: whatever the rows say, no span reaches beyond its table, and there are no more than `max_spans`.
#include "common.cuh"
#include "params.cuh"
#include "query.cuh"

#define PK_PLAN_THREADS 256

// What the threads of the CTA have in common.
struct PlanShared {
    pk_i64 warp_sums[PK_PLAN_THREADS / PK_WARP_LANES];
    int first_span[PK_PLAN_THREADS], num_spans[PK_PLAN_THREADS];
};

static_assert(sizeof(PlanShared) <= PK_PLAN_SHARED, "the host gives so much");

// The sum of the values of the threads before this one, and of all.
struct PrefixSum {
    pk_i64 before, all;
};

// All threads come here, and have left `warp_sums` alone when they come back.
PK_DEV PrefixSum add_up(pk_i64 value, pk_i64 *warp_sums) {
    const int lane = threadIdx.x % PK_WARP_LANES;
    const int warp = threadIdx.x / PK_WARP_LANES;
    pk_i64 sum = value;
    for (int apart = 1; apart < PK_WARP_LANES; apart *= 2) {
        const pk_i64 other = __shfl_up_sync(PK_ALL_LANES, sum, apart);
        sum += lane >= apart ? other : 0;
    }
    if (lane == PK_WARP_LANES - 1) {
        warp_sums[warp] = sum;
    }
    __syncthreads();
    PrefixSum total = {sum - value, 0};
    for (int i = 0; i < PK_PLAN_THREADS / PK_WARP_LANES; i++) {
        total.before += i < warp ? warp_sums[i] : 0;
        total.all += warp_sums[i];
    }
    __syncthreads();
    return total;
}

PK_DEV int spans_of(const pk_plan_params &p, const pk_row &row) {
    const pk_i64 columns = (pk_i64)row.tokens * p.part_heads;
    const pk_i64 spans = row.tokens <= 0 ? 0 : (columns + p.columns - 1) / p.columns;
    return spans < p.max_spans ? (int)spans : p.max_spans;
}

// Span number `index` of a row.
PK_DEV pk_span span_of(const pk_plan_params &p, const pk_row &row, int row_index, int index) {
    pk_span span = {row_index, index * p.columns, 0, 0, 0, 0, 0};
    const pk_i64 row_end = (pk_i64)row.start + row.tokens;
    if (row.start < 0 || row.table < 0 || row.table >= p.max_tables || row_end > PK_MAX_POSITION) {
        return span;
    }
    const int first_token = span.first_column / p.part_heads;
    const int last_token = (span.first_column + p.columns - 1) / p.part_heads;
    pk_i64 end = row_end;
    if (!p.has_mask && last_token < row.tokens) {
        end = row.start + last_token + 1;
    }
    const pk_i64 in_table = p.step.table_len * p.block_size;
    span.end = (int)(end < in_table ? end : in_table);
    if (p.window > 0 && row.start + first_token >= p.window) {
        span.first = row.start + first_token - p.window + 1;
    }
    if (span.first < span.end) {
        span.first_tile = span.first / PK_TILE_TOKENS;
        span.num_tiles = (span.end + PK_TILE_TOKENS - 1) / PK_TILE_TOKENS - span.first_tile;
    }
    return span;
}

// Lists the spans of all rows; returns their number.
PK_DEV int list_spans(const pk_plan_params &p, PlanShared &shared) {
    const int lane = threadIdx.x % PK_WARP_LANES;
    const int warp = threadIdx.x / PK_WARP_LANES;
    const int given = p.step.counts->rows;
    const int rows = given < p.max_rows ? given : p.max_rows;
    pk_i64 spans = 0;
    for (int first_row = 0; first_row < rows; first_row += PK_PLAN_THREADS) {
        const int own = first_row + threadIdx.x;
        const int num_spans = own < rows ? spans_of(p, p.step.rows[own]) : 0;
        const PrefixSum total = add_up(num_spans, shared.warp_sums);
        const pk_i64 first_span = spans + total.before;
        // Spans that there is no room for are left out.
        shared.first_span[threadIdx.x] = first_span < p.max_spans ? (int)first_span : p.max_spans;
        shared.num_spans[threadIdx.x] = num_spans;
        if (own < rows) {
            p.plan.row_spans[own] = shared.first_span[threadIdx.x];
        }
        __syncthreads();
        for (int i = warp; i < PK_PLAN_THREADS && first_row + i < rows; i += PK_PLAN_THREADS / PK_WARP_LANES) {
            const pk_row row = p.step.rows[first_row + i];
            const int at = shared.first_span[i];
            for (int index = lane; index < shared.num_spans[i] && at + index < p.max_spans; index += PK_WARP_LANES) {
                p.plan.spans[at + index] = span_of(p, row, first_row + i, index);
            }
        }
        spans += total.all;
        __syncthreads();
    }
    return spans < p.max_spans ? (int)spans : p.max_spans;
}

extern "C" __global__ void __launch_bounds__(PK_PLAN_THREADS) pk_plan(const __grid_constant__ pk_plan_params p) {
    PK_SMEM(memory);
    PlanShared &shared = *(PlanShared *)memory;
    const int spans = list_spans(p, shared);
    pk_i64 tiles = 0;
    for (int first = 0; first < spans; first += PK_PLAN_THREADS) {
        const int own = first + threadIdx.x;
        const PrefixSum total = add_up(own < spans ? p.plan.spans[own].num_tiles : 0, shared.warp_sums);
        if (own < spans) {
            p.plan.spans[own].before = tiles + total.before;
        }
        tiles += total.all;
    }
    if (threadIdx.x == 0) {
        *p.plan.head = {spans, 0, tiles};
    }
}
PK_EXPORT(pk_plan)
