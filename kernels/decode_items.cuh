// Which work is whose: shares of the tiles of a step, and the walk over them.
//
// The tiles of a step are numbered: span by span, of each span virtual KV head by virtual KV head, of each of these
// from the first key on. A CTA takes a run of them, T i / n to T (i + 1) / n of T for CTA i of n. With fixed splits a
// share ends where a split does, so that no split is cut.
#pragma once

#include "common.cuh"
#include "params.cuh"

// A tile of an item.
struct pk_cursor {
    int span, head;  // the virtual KV head
    int tile, end_tile;
};

PK_DEV int pk_virtual_heads(const pk_decode_params &p) {
    return p.kv_heads * p.parts;
}

PK_DEV pk_i64 pk_all_tiles(const pk_decode_params &p) {
    return p.plan.head->tiles * pk_virtual_heads(p);
}

// The CTAs that take part: no more than there are, and none for less than `min_tiles`.
PK_DEV pk_i64 pk_num_shares(const pk_decode_params &p, pk_i64 all_tiles) {
    const pk_i64 shares = (all_tiles + p.min_tiles - 1) / p.min_tiles;
    return shares < p.ctas ? shares : p.ctas;
}

// The CTA whose share, before it is moved to the ends of splits, has a tile: i with T i / n <= tile < T (i + 1) / n.
PK_DEV pk_i64 pk_share_of(pk_i64 tile, pk_i64 all_tiles, pk_i64 shares) {
    return ((tile + 1) * shares - 1) / all_tiles;
}

// Where a tile stands, of those that there are.
PK_DEV pk_cursor pk_seek(const pk_decode_params &p, pk_i64 number) {
    const int heads = pk_virtual_heads(p);
    // The last span that begins at or before the tile. It is none without tiles: the next would begin there too.
    int low = 0;
    int high = p.plan.head->spans - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (p.plan.spans[middle].before * heads <= number) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const pk_span &span = p.plan.spans[low];
    const int inside = (int)(number - span.before * heads);
    const int head = inside / span.num_tiles;
    return {low, head, span.first_tile + inside - head * span.num_tiles, span.first_tile + span.num_tiles};
}

// To the next tile, which there is.
PK_DEV void pk_advance(const pk_decode_params &p, pk_cursor &at) {
    at.tile++;
    if (at.tile < at.end_tile) {
        return;
    }
    at.head++;
    if (at.head == pk_virtual_heads(p)) {
        at.head = 0;
        do {
            at.span++;
        } while (p.plan.spans[at.span].num_tiles == 0);
    }
    const pk_span &span = p.plan.spans[at.span];
    at.tile = span.first_tile;
    at.end_tile = span.first_tile + span.num_tiles;
}

// Whether a split begins with a tile of an item.
PK_DEV bool pk_begins_split(const pk_decode_params &p, int tile, int first_tile) {
    return tile == first_tile || tile % p.split_tiles == 0;
}

// The first tile of a CTA's share.
PK_DEV pk_i64 pk_share_begin(const pk_decode_params &p, pk_i64 all_tiles, pk_i64 shares, pk_i64 cta) {
    const pk_i64 number = all_tiles * cta / shares;
    if (p.split_tiles == 0 || number == all_tiles) {
        return number;
    }
    const pk_cursor at = pk_seek(p, number);
    if (pk_begins_split(p, at.tile, p.plan.spans[at.span].first_tile)) {
        return number;
    }
    const int next = (at.tile / p.split_tiles + 1) * p.split_tiles;
    return number + (next < at.end_tile ? next : at.end_tile) - at.tile;
}

// Partial number `slot` of a CTA.
PK_DEV float *pk_partial(const pk_decode_params &p, pk_i64 cta, int slot) {
    return p.partials + (cta * p.slots + slot) * p.columns * (p.head_dim + 2);
}
