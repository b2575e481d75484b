// Parameters of the kernels, one struct each, mirrored by `src/storage/cuda/params.rs`, which asserts the same sizes.
// Plain data only: the file is compiled for the device, for the host (the emulator), and by NVRTC, which has no
// <stdint.h>.
//
// Strides are in bytes and 64-bit. A pointer that may be null says so.
#pragma once

// Element types, of tensors and of the pool.
enum pk_dtype { PK_F32 = 0, PK_F16 = 1, PK_BF16 = 2, PK_E4M3 = 3, PK_I8 = 4 };

// Query heads whose sinks and slopes fit the parameters of a launch.
#define PK_MAX_PER_HEAD 256

// A plane of the pool: element d of head h of token t of block b of a layer begins at
// base + b * block_bytes + h * head_bytes + t * token_bytes + d * sizeof(element).
struct pk_plane {
    unsigned char *base;
    long long block_bytes, head_bytes, token_bytes;
};

// A tensor of the engine, [tokens, heads, dim]; a head is contiguous. Float types only.
struct pk_tensor {
    unsigned char *data;
    long long token_bytes, head_bytes;
    int dtype;   // pk_dtype
    int tokens;  // those of the step, and behind them those of padding
};

// How much of the buffers below is real. In device memory, so that a captured graph reads the step of its replay.
struct pk_counts {
    int rows, tokens, copies, edits;
};

// One row of the step: `tokens` query tokens, of which the first is number `first_token` of the step and stands at
// position `start` of its sequence.
struct pk_row {
    int start, tokens, first_token, table;  // table: the row of `tables`
};

struct pk_copy {
    int src, dst;
};

// Entries [from, from + len) of table `table`, taken from entry `first` on of those that came with the step.
struct pk_edit {
    int table, from, len, first;
};

// What a step needs, at addresses that do not change.
struct pk_step {
    pk_counts *counts;
    pk_row *rows;     // [max_rows]
    int *token_rows;  // [max_tokens]: the row of each query token
    int *slots;       // [max_tokens]
    pk_copy *copies;  // [max_copies]
    int *tables;      // [max_rows, table_len]; entries behind a row's last token are anything
    long long table_len;
};

// pk_prepare: puts the parts of a step where kernels look for them. Grid: any number of CTAs of 128 threads.
// `packed` is the step as the host sends it, 32-bit words: pk_counts, then of each as many as it says
// rows [pk_row], the rows of tokens [int], slots [int], copies [pk_copy], edits [pk_edit], and the entries of all edits.
struct pk_prepare_params {
    pk_step step;
    const int *packed;
};

// pk_write_kv_<dtype of the pool>: K and V of the query tokens to their slots.
// Grid: tokens * kv_heads CTAs of 32 threads, k.tokens tokens. Tokens beyond the step's, and slots outside the pool, are
// left out.
struct pk_write_params {
    pk_step step;
    pk_tensor k, v;                             // [tokens, kv_heads, k_dim], [tokens, kv_heads, v_dim]
    pk_plane k_pool, v_pool, k_scales, v_scales;  // scales of int8: a float each, at any address; else null
    int kv_heads, k_dim, v_dim, block_size, num_blocks;
    int unused;
};

// A part of every block, in one run.
struct pk_run {
    unsigned char *base;    // of block 0
    long long block_bytes;  // from block to block
    long long bytes;
};

// pk_copy_blocks: the step's copies, all layers in one launch. Grid: any number of CTAs of 128 threads.
struct pk_copy_params {
    pk_step step;
    const pk_run *runs;  // [num_runs]
    int num_runs, num_blocks;
};

// A run of a block, and where it lies in the block's record.
struct pk_piece {
    unsigned char *base;    // of block 0
    long long block_bytes;  // from block to block
    long long bytes;
    long long at;           // bytes from the record's first
};

// pk_gather_blocks, pk_scatter_blocks: `count` blocks to or from as many records. Grid: any number of CTAs of 128 threads.
struct pk_records_params {
    const pk_piece *pieces;  // [num_pieces]
    const int *blocks;       // [count]
    unsigned char *records;  // [count, record_bytes]
    long long record_bytes;
    int num_pieces, count, num_blocks;
    int unused;
};

// pk_read, of benchmarks: `count` times 16 bytes. Grid: any number of CTAs of 256 threads.
struct pk_read_params {
    const unsigned char *data;
    long long count;
    unsigned int *out;
    unsigned int never, unused;
};

// What a model asks for beside the softmax of scaled scores; see `AttendParams`.
struct pk_variant {
    float scale;
    float soft_cap;                    // 0: none
    int window;                        // 0: none
    int has_sinks, has_slopes;
    int mask_words;                    // per query token; 0: no mask
    const unsigned long long *mask;    // [tokens, mask_words], or null
    float sinks[PK_MAX_PER_HEAD], slopes[PK_MAX_PER_HEAD];  // per query head
};

// pk_attend_naive_<dtype of the pool>: the readable reference.
// Grid: tokens * q_heads CTAs of 32 threads, q.tokens tokens; 384 + (k_dim + v_dim) * 4 bytes of dynamic shared memory.
struct pk_attend_params {
    pk_step step;
    pk_tensor q, out;  // [tokens, q_heads, k_dim], [tokens, q_heads, v_dim]
    float *lse;        // [tokens, q_heads] dense, or null; natural logarithm
    pk_plane k_pool, v_pool, k_scales, v_scales;
    int q_heads, kv_heads, k_dim, v_dim, block_size, num_blocks;
    pk_variant variant;
};

// ---- The fast kernel: pk_plan, pk_decode_*, pk_merge ----
//
// The query heads of a KV head are cut into parts of at most `part_heads`, and each part is a virtual KV head. The
// pairs (query token, head of the part) of a row, token after token, are its columns; `columns` of them in a row are a
// span. An item is a span with a virtual KV head, and its work are tiles of 64 keys, of which a CTA takes 16 with each
// warp.

// Tokens of a page, of which a warp takes one at a time, and of a tile.
#define PK_PAGE_TOKENS 16
#define PK_TILE_TOKENS 64

// A span, and the keys that any of its columns may see.
struct pk_span {
    int row, first_column;      // first_column: of those of the row
    int first, end;             // positions
    int first_tile, num_tiles;  // no tiles where it sees nothing
    long long before;           // the tiles of the spans before it
};

struct pk_plan_head {
    int spans, unused;
    long long tiles;  // of all spans
};

// Where a plan lies. Room for as many spans as query tokens: a part has no more heads than a span has columns.
struct pk_plan {
    pk_plan_head *head;
    int *row_spans;  // [max_rows]: the first span of each row
    pk_span *spans;  // [max_spans]
};

// pk_plan: the spans of a step. Grid: one CTA of 256 threads; PK_PLAN_SHARED bytes of dynamic shared memory.
#define PK_PLAN_SHARED 2176
struct pk_plan_params {
    pk_step step;
    pk_plan plan;
    int part_heads, columns, window, has_mask, block_size, max_rows, max_tables, max_spans;
};

// pk_decode_<dtype of the pool>_<head_dim>x<columns> and, behind it with the same parameters, pk_merge.
//
// A part of an item's work leaves a partial: weighted sums of V [columns, head_dim], then maxima and sums of weights
// [columns], f32. Slot `slots` - 1 of a CTA's is for the item that begins in it and ends elsewhere; of the item that
// began elsewhere, a balanced CTA leaves one partial in slot 0, one of fixed splits leaves split i in slot i.
struct pk_decode_params {
    pk_step step;
    pk_tensor q, out;  // [tokens, q_heads, head_dim]
    float *lse;        // [tokens, q_heads] dense, or null; natural logarithm
    pk_plane k_pool, v_pool;
    pk_plan plan;
    float *partials;  // [ctas, slots, columns * (head_dim + 2)]
    int q_heads, kv_heads, parts, part_heads, columns, head_dim, block_size, num_blocks;
    int ctas;         // the most that take part
    int min_tiles;    // so that no CTA starts for less
    int split_tiles;  // an item's work is cut where a multiple of so many tiles begins; 0: where a CTA's share ends
    int slots;
    int stages;       // pages on their way of each warp
    int unused;
    pk_variant variant;
};

// As `params.rs` asserts.
static_assert(sizeof(pk_plane) == 32 && sizeof(pk_tensor) == 32 && sizeof(pk_step) == 56, "see params.rs");
static_assert(sizeof(pk_prepare_params) == 64 && sizeof(pk_write_params) == 272, "see params.rs");
static_assert(sizeof(pk_run) == 24 && sizeof(pk_copy_params) == 72, "see params.rs");
static_assert(sizeof(pk_piece) == 32 && sizeof(pk_records_params) == 48, "see params.rs");
static_assert(sizeof(pk_variant) == 2080 && sizeof(pk_attend_params) == 2360, "see params.rs");
static_assert(sizeof(pk_span) == 32 && sizeof(pk_plan_head) == 16 && sizeof(pk_plan) == 24, "see params.rs");
static_assert(sizeof(pk_plan_params) == 112 && sizeof(pk_decode_params) == 2360, "see params.rs");
