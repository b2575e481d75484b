// What a decode kernel is compiled for, what follows from that, and where its shared memory lies.
#pragma once

#include "common.cuh"
#include "params.cuh"

#define PK_DECODE_WARPS 4
#define PK_DECODE_THREADS (PK_DECODE_WARPS * PK_WARP_LANES)

static_assert(PK_DECODE_WARPS * PK_PAGE_TOKENS == PK_TILE_TOKENS, "each warp takes one page of a tile");

template <int POOL_, int HEAD_DIM_, int N_TILES_>
struct pk_shape {
    static constexpr int POOL = POOL_;          // pk_dtype of K and V
    static constexpr int HEAD_DIM = HEAD_DIM_;  // of K and of V
    static constexpr int N_TILES = N_TILES_;    // columns, by eights
    static constexpr bool IS_BYTES = POOL == PK_E4M3;
    static constexpr int COLUMNS = 8 * N_TILES;
    static constexpr int STEPS = HEAD_DIM / 16;  // of a product over the head's elements
    static constexpr int ROW_BYTES = HEAD_DIM * (IS_BYTES ? 1 : 2);
    static constexpr int CHUNKS = ROW_BYTES / 16;  // of a row, 16 bytes each
    static constexpr int PAGE_BYTES = PK_PAGE_TOKENS * ROW_BYTES;
    static constexpr int SLOT_BYTES = 2 * PAGE_BYTES;  // K and V of a page

    // Two elements of the MMA in a register. Beyond the largest comes the largest: a query must not become infinite
    // where it is converted.
    static PK_DEV pk_u32 pack(float low, float high) {
        return POOL == PK_BF16 ? pk_pack_bf16(low, high) : pk_pack_f16(low, high);
    }

    static PK_DEV float most() {
        return POOL == PK_BF16 ? __int_as_float(0x7f7f0000) : 65504.0f;
    }

    static PK_DEV void mma(float c[4], const pk_u32 a[4], pk_u32 b0, pk_u32 b1) {
        if (POOL == PK_BF16) {
            pk_mma_bf16(c, a, b0, b1);
        } else {
            pk_mma_f16(c, a, b0, b1);
        }
    }

    // Where chunk `chunk` of row `row` of a page lies: so that neither the copies nor ldmatrix, plain or transposed,
    // meet in a bank. Eight rows of at least 128 bytes begin at the same bank: their chunks change places by the row.
    // Rows of 64 bytes do so in pairs.
    static PK_DEV int place(int row, int chunk) {
        if (ROW_BYTES >= 128) {
            return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
        }
        return ((row >> 1) * 8 + (row & 1) * 4 + (chunk ^ (row >> 1 & 3))) << 4;
    }
};

// A column of the span at work: a query head of a query token.
struct pk_column {
    int first, end;       // the positions that it sees; none where there is no such column
    int token, head;      // of the step
    int position;
    float slope;
    const pk_u64 *mask;  // of its token, or null
};

static_assert(sizeof(pk_column) == 32, "as the host reckons");

// The shared memory of a CTA.
template <class S>
struct pk_decode_shared {
    pk_u8 *ring;       // [warps, stages, SLOT_BYTES]
    pk_u32 *queries;   // [COLUMNS, HEAD_DIM / 2] pairs, words of column c at w ^ 4 (c % 8)
    pk_column *columns;  // [COLUMNS]
    float *softmaxes;  // [warps + 1, 2, 8]: maxima and sums of eight columns; the last are those of a partial

    PK_DEV pk_decode_shared(pk_u8 *memory, int stages) {
        ring = memory;
        queries = (pk_u32 *)(memory + PK_DECODE_WARPS * stages * S::SLOT_BYTES);
        columns = (pk_column *)(queries + S::COLUMNS * S::HEAD_DIM / 2);
        softmaxes = (float *)(columns + S::COLUMNS);
    }

    PK_DEV pk_u32 &query(int column, int word) const {
        return queries[column * (S::HEAD_DIM / 2) + (word ^ (column & 7) * 4)];
    }
};
