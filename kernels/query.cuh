// A query token: its place in its sequence, and which keys it sees.
//
// Metadata that does not fit together is never followed out of its buffers: such a token sees nothing.
#pragma once

#include "common.cuh"
#include "memory.cuh"
#include "params.cuh"

// The largest position that a row may reach: a chunk of keys more is still an int.
#define PK_MAX_POSITION (0x7fffffff - 1024)

// `position` and `row_start` are those of the token and of the first query token of its row. Keys outside of first ..
// end are not seen, and their table entries may be anything.
struct pk_query {
    int position, row_start, first, end;
    const int *table;    // null: no token of the step
    const pk_u64 *mask;  // the token's words, or null
    int mask_words;
};

// Query token number `token` of the step. The tokens behind the step's, which pad it, see nothing.
PK_DEV pk_query pk_query_of(const pk_step &step, const pk_variant &variant, int block_size, int token) {
    pk_query query = {0, 0, 0, 0, nullptr, nullptr, variant.mask_words};
    if (token >= step.counts->tokens) {
        return query;
    }
    const int row_index = step.token_rows[token];
    if (row_index < 0 || row_index >= step.counts->rows) {
        return query;
    }
    const pk_row row = step.rows[row_index];
    const pk_i64 index = (pk_i64)token - row.first_token;
    const pk_i64 row_end = (pk_i64)row.start + row.tokens;
    if (row.start < 0 || row.table < 0 || index < 0 || index >= row.tokens || row_end > PK_MAX_POSITION) {
        return query;
    }
    query.row_start = row.start;
    query.position = row.start + (int)index;
    query.end = query.position + 1;
    if (variant.mask_words > 0) {
        query.mask = variant.mask + (pk_i64)token * variant.mask_words;
        query.end = (int)row_end;
    }
    const pk_i64 in_table = step.table_len * block_size;
    query.end = query.end < in_table ? query.end : (int)in_table;
    if (variant.window > 0 && query.position >= variant.window) {
        query.first = query.position - variant.window + 1;
    }
    query.table = step.tables + row.table * step.table_len;
    return query;
}

// Whether the query sees the key at a position. Under a mask that says for the tokens of the query's own row who sees
// whom, later ones included; what is before the row all of it see.
PK_DEV bool pk_sees(const pk_query &query, int position) {
    if (position < query.first || position >= query.end) {
        return false;
    }
    if (query.mask == nullptr || position < query.row_start) {
        return true;
    }
    const int index = position - query.row_start;
    return index / 64 < query.mask_words && (query.mask[index / 64] >> (index % 64) & 1) != 0;
}

// Where the key at a position lies; a table entry that is no block is no place. The position is one that the query
// sees.
PK_DEV pk_place pk_place_of_key(const pk_query &query, int position, int block_size, int num_blocks) {
    const int block = query.table[position / block_size];
    return {pk_is_block(block, num_blocks) ? block : -1, position % block_size};
}
