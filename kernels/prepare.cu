// pk_prepare: the first kernel of a step. Puts the parts of a step, which come packed, where the other kernels look for
// them, and brings the block tables up to date.
//
// Parts other than tables are copied by all threads together. Edit i writes `len` entries to entry `from` on of its
// table: a CTA takes whole edits, one after the other, its threads entry after entry. The edits of a step do not
// overlap.
//
// Grid: any number of CTAs of 128 threads. No shared memory. What the host sends was checked there.
#include "common.cuh"
#include "params.cuh"

// Copies words by all threads of the grid.
PK_DEV void spread(const int *from, int *to, pk_i64 words) {
    const pk_i64 threads = (pk_i64)gridDim.x * blockDim.x;
    for (pk_i64 at = (pk_i64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += threads) {
        to[at] = from[at];
    }
}

extern "C" __global__ void __launch_bounds__(128) pk_prepare(const __grid_constant__ pk_prepare_params p) {
    const pk_step &step = p.step;
    const pk_counts counts = *(const pk_counts *)p.packed;
    const pk_i64 row_words = (pk_i64)counts.rows * (sizeof(pk_row) / sizeof(int));
    const pk_i64 copy_words = (pk_i64)counts.copies * (sizeof(pk_copy) / sizeof(int));
    const int *rows = p.packed + sizeof(pk_counts) / sizeof(int);
    const int *token_rows = rows + row_words;
    const int *slots = token_rows + counts.tokens;
    const int *copies = slots + counts.tokens;
    const pk_edit *edits = (const pk_edit *)(copies + copy_words);
    const int *entries = (const int *)(edits + counts.edits);

    spread(p.packed, (int *)step.counts, sizeof(pk_counts) / sizeof(int));
    spread(rows, (int *)step.rows, row_words);
    spread(token_rows, step.token_rows, counts.tokens);
    spread(slots, step.slots, counts.tokens);
    spread(copies, (int *)step.copies, copy_words);
    for (int index = blockIdx.x; index < counts.edits; index += gridDim.x) {
        const pk_edit edit = edits[index];
        int *to = step.tables + edit.table * step.table_len + edit.from;
        for (int entry = threadIdx.x; entry < edit.len; entry += blockDim.x) {
            to[entry] = entries[edit.first + entry];
        }
    }
}
PK_EXPORT(pk_prepare)
