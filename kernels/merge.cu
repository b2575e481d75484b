// pk_merge: runs behind pk_decode_*, with the same parameters. Joins the partials of items that several CTAs have
// worked on, in the order of their keys, and writes what no CTA has: outputs of query tokens that see nothing, and of
// padding.
//
// Grid: q.tokens * virtual KV heads CTAs of 128 threads. No shared memory. A thread takes two elements of a query head
// at a time.
// Invariant: bits depend on the partials alone, and joining goes as within a CTA (`output.cuh`).
// Flags: --fmad=false
#include "common.cuh"
#include "decode_items.cuh"
#include "output.cuh"
#include "params.cuh"
#include "query.cuh"
#include "score.cuh"

#define PK_MERGE_THREADS 128

// An item as its partials lie: what the first CTA has of it, and of those behind it.
struct Item {
    pk_i64 first;  // the number of its first tile
    pk_i64 all_tiles, shares, owner;
    int first_tile, num_tiles;
};

// A column of a span, as far as it is read so far.
struct Joined {
    pk_softmax softmax;
    float sum0, sum1;
};

// Elements d and d + 1 of a column of a partial.
PK_DEV Joined read(const pk_decode_params &p, const float *partial, int column, int d) {
    const float *softmaxes = partial + p.columns * p.head_dim + column;
    const float *sums = partial + column * p.head_dim + d;
    return {{softmaxes[0], softmaxes[p.columns]}, sums[0], sums[1]};
}

PK_DEV void join(Joined &all, const Joined &next) {
    const pk_factors factors = pk_join(all.softmax, next.softmax);
    all.sum0 = pk_join_sums(all.sum0, next.sum0, factors);
    all.sum1 = pk_join_sums(all.sum1, next.sum1, factors);
}

// The CTA that has the last tile of the item, or with fixed splits its last split.
PK_DEV pk_i64 last_owner(const pk_decode_params &p, const Item &item) {
    int last = item.num_tiles - 1;
    if (p.split_tiles > 0) {
        const int begin = (item.first_tile + last) / p.split_tiles * p.split_tiles;
        last = begin < item.first_tile ? 0 : begin - item.first_tile;
    }
    return pk_share_of(item.first + last, item.all_tiles, item.shares);
}

// All partials of a column of an item that begins in a CTA and ends in another.
PK_DEV Joined join_all(const pk_decode_params &p, const Item &item, pk_i64 last, int column, int d) {
    Joined all = read(p, pk_partial(p, item.owner, p.slots - 1), column, d);
    if (p.split_tiles == 0) {
#pragma unroll 4
        for (pk_i64 cta = item.owner + 1; cta <= last; cta++) {
            join(all, read(p, pk_partial(p, cta, 0), column, d));
        }
        return all;
    }
    const int end_tile = item.first_tile + item.num_tiles;
    for (int split = item.first_tile / p.split_tiles + 1; split * p.split_tiles < end_tile; split++) {
        const pk_i64 number = item.first + split * p.split_tiles - item.first_tile;
        const pk_i64 cta = pk_share_of(number, item.all_tiles, item.shares);
        // What the first CTA had of them is in its partial.
        if (cta != item.owner) {
            join(all, read(p, pk_partial(p, cta, split), column, d));
        }
    }
    return all;
}

// Elements d and d + 1 of a query head, which is column `column` of its row for the virtual KV head.
PK_DEV void merge(const pk_decode_params &p, int first_span, int column, int virtual_head, int token, int head, int d) {
    const int number = first_span + column / p.columns;
    const Joined nothing = {{pk_minus_infinity(), 0.0f}, 0.0f, 0.0f};
    if (number >= p.plan.head->spans || p.plan.spans[number].num_tiles == 0) {
        pk_write_result(p, token, head, d, nothing.sum0, nothing.sum1, nothing.softmax);
        return;
    }
    const pk_span &span = p.plan.spans[number];
    const int heads = pk_virtual_heads(p);
    Item item = {span.before * heads + (pk_i64)virtual_head * span.num_tiles, pk_all_tiles(p), 0, 0, span.first_tile,
                 span.num_tiles};
    item.shares = pk_num_shares(p, item.all_tiles);
    item.owner = pk_share_of(item.first, item.all_tiles, item.shares);
    const pk_i64 last = last_owner(p, item);
    if (last == item.owner) {
        // That CTA has written it.
        return;
    }
    const Joined all = join_all(p, item, last, column % p.columns, d);
    pk_write_result(p, token, head, d, all.sum0, all.sum1, all.softmax);
}

// The row of a query token of the step, or -1.
PK_DEV int row_of(const pk_step &step, int token) {
    if (token >= step.counts->tokens) {
        return -1;
    }
    const int row = step.token_rows[token];
    if (row < 0 || row >= step.counts->rows) {
        return -1;
    }
    const pk_i64 index = (pk_i64)token - step.rows[row].first_token;
    return index >= 0 && index < step.rows[row].tokens ? row : -1;
}

// Zeros, and the log-sum-exp of nothing: padding has no sink either.
PK_DEV void write_padding(const pk_decode_params &p, int token, int head, int d) {
    pk_u8 *to = pk_tensor_row(p.out, token, head);
    pk_store_float(p.out.dtype, to, d, 0.0f);
    pk_store_float(p.out.dtype, to, d + 1, 0.0f);
    if (d == 0 && p.lse != nullptr) {
        p.lse[(pk_i64)token * p.q_heads + head] = pk_minus_infinity();
    }
}

extern "C" __global__ void __launch_bounds__(PK_MERGE_THREADS)
    pk_merge(const __grid_constant__ pk_decode_params p) {
    const int heads = pk_virtual_heads(p);
    const int token = blockIdx.x / heads;
    const int virtual_head = blockIdx.x % heads;
    if (token >= p.out.tokens) {
        return;
    }
    const int group = p.q_heads / p.kv_heads;
    const int first_of_group = virtual_head % p.parts * p.part_heads;
    const int left = group - first_of_group;
    const int num_heads = left < p.part_heads ? left : p.part_heads;
    const int pairs = p.head_dim / 2;
    const int row = row_of(p.step, token);
    for (int i = threadIdx.x; i < num_heads * pairs; i += PK_MERGE_THREADS) {
        const int of_part = i / pairs;
        const int d = i % pairs * 2;
        const int head = virtual_head / p.parts * group + first_of_group + of_part;
        if (row < 0) {
            write_padding(p, token, head, d);
        } else {
            const int column = (token - p.step.rows[row].first_token) * p.part_heads + of_part;
            merge(p, p.plan.row_spans[row], column, virtual_head, token, head, d);
        }
    }
}
PK_EXPORT(pk_merge)
