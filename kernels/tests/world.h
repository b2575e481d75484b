// Sequences whose numbers are known, put into a pool, attended to by a kernel, and attended to in double.
#pragma once

#include <functional>
#include <map>

#include "formats.h"

namespace test {

enum Part { Q, K, V };

// What is asked of attention, and of which numbers. Content is a function of the sequence and the position alone.
struct Model {
    uint64_t seed = 1;
    int pool = PK_F32, q_dtype = PK_F32, out_dtype = PK_F32;
    int kv_heads = 1, group = 1, k_dim = 1, v_dim = 1;
    float scale = 1.0f, soft_cap = 0.0f;
    int window = 0, mask_words = 0;
    bool sinks = false, slopes = false, mask_nothing = false;
    // One number, of head 0, is NaN.
    int nan_part = -1, nan_position = -1;
    // Queries are positive, and keys of earlier positions minus infinity.
    int infinite_before = 0;

    int q_heads() const {
        return kv_heads * group;
    }

    float sink(int head) const {
        return (float)(head % 3) - 0.75f;
    }

    float slope(int head) const {
        return 0.5f / (float)(1 + head);
    }

    // Words of a query token of a row of `tokens`: a random tree-like mask, its own bit set.
    std::vector<unsigned long long> mask(int sequence, int position, int index) const {
        std::vector<unsigned long long> words;
        Random random(seed * 7919 + (uint64_t)(sequence * 100003 + position));
        for (int word = 0; word < mask_words; word++) {
            words.push_back(mask_nothing ? 0 : random.bits());
        }
        if (!mask_nothing && index / 64 < mask_words) {
            words[(size_t)(index / 64)] |= 1ull << (index % 64);
        }
        return words;
    }

    // The head as it was given, before it is stored as any type.
    std::vector<float> head(Part part, int sequence, int position, int of_head) const {
        const uint64_t key = ((uint64_t)part * 64 + (uint64_t)of_head) * 64 + (uint64_t)sequence;
        Random random(seed + (key << 32) + (uint64_t)position * 0x100000001b3u);
        std::vector<float> numbers((size_t)(part == V ? v_dim : k_dim));
        for (float &x : numbers) {
            x = random.normal();
        }
        if (infinite_before > 0 && part == Q) {
            numbers[0] = 1.0f + numbers[0] * numbers[0];
        }
        if (position < infinite_before && part == K) {
            numbers[0] = -std::numeric_limits<float>::infinity();
        }
        if (part == nan_part && position == nan_position && of_head == 0) {
            numbers[0] = from_bits(0x7fc00000u);
        }
        return numbers;
    }

    // The same as it is read from where it is stored.
    std::vector<double> kept(Part part, int sequence, int position, int of_head) const {
        const std::vector<float> given = head(part, sequence, position, of_head);
        const int dtype = part == Q ? q_dtype : pool;
        const float scale_of_head = scale_of(given);
        std::vector<double> kept;
        for (float x : given) {
            unsigned char stored[4];
            if (dtype == PK_I8) {
                kept.push_back((double)(float)((double)integer_of(x, scale_of_head) * (double)scale_of_head));
            } else {
                put(dtype, stored, x);
                kept.push_back(dtype == PK_E4M3 ? format(dtype).value(stored[0]) : (double)get(dtype, stored));
            }
        }
        return kept;
    }
};

// How the pool is laid out, and which blocks of it the sequences have.
struct Layout {
    int block_size;
    bool tokens_first;  // [blocks, tokens, heads, dim], else [blocks, heads, tokens, dim]
    int gap_elems;      // between blocks
    uint64_t order;     // of the blocks
};

struct Row {
    int sequence, start, tokens;
};

struct Outputs {
    int heads, v_dim;
    std::vector<float> values;  // [tokens, heads, v_dim], those of padding last
    std::vector<float> lse;     // [tokens, heads]

    // All of some tokens, to the bit.
    std::vector<uint32_t> bits(int first, int tokens) const {
        std::vector<uint32_t> bits;
        for (int i = first * heads * v_dim; i < (first + tokens) * heads * v_dim; i++) {
            bits.push_back(bits_of(values[(size_t)i]));
        }
        for (int i = first * heads; i < (first + tokens) * heads; i++) {
            bits.push_back(bits_of(lse[(size_t)i]));
        }
        return bits;
    }

    bool nothing(int token) const {
        for (int i = token * heads * v_dim; i < (token + 1) * heads * v_dim; i++) {
            if (bits_of(values[(size_t)i]) != 0) {
                return false;
            }
        }
        for (int i = token * heads; i < (token + 1) * heads; i++) {
            if (lse[(size_t)i] != -std::numeric_limits<float>::infinity()) {
                return false;
            }
        }
        return true;
    }

    bool all_of_nothing() const {
        for (size_t token = 0; token < lse.size() / (size_t)heads; token++) {
            if (!nothing((int)token)) {
                return false;
            }
        }
        return true;
    }
};

// One plane of the pool: K, V, or the scales of either.
class PoolPlane {
public:
    PoolPlane(const Layout &layout, int blocks, int heads, int item_bytes, int elem_bytes, size_t misalign)
        : memory((size_t)blocks * (size_t)(heads * layout.block_size * item_bytes + layout.gap_elems * elem_bytes),
                 misalign) {
        const long long all = (long long)heads * layout.block_size * item_bytes;
        plane.base = memory.data();
        plane.token_bytes = layout.tokens_first ? (long long)heads * item_bytes : item_bytes;
        plane.head_bytes = layout.tokens_first ? item_bytes : (long long)layout.block_size * item_bytes;
        plane.block_bytes = all + (long long)layout.gap_elems * elem_bytes;
    }

    unsigned char *at(int block, int offset, int head) const {
        return plane.base + block * plane.block_bytes + head * plane.head_bytes + offset * plane.token_bytes;
    }

    pk_plane plane;

private:
    Memory memory;
};

// Whether the query at `position` of a row sees the key at `key`; a row's tokens from `index` 0 on.
inline bool sees(const Model &model, const Row &row, int position, int key) {
    if (model.window > 0 && key <= position - model.window) {
        return false;
    }
    if (model.mask_words == 0 || key < row.start) {
        return key <= position && key < row.start + row.tokens;
    }
    // A mask that has too few words says nothing of the others.
    const int index = key - row.start;
    if (index / 64 >= model.mask_words) {
        return false;
    }
    const std::vector<unsigned long long> words = model.mask(row.sequence, position, position - row.start);
    return index < row.tokens && (words[(size_t)(index / 64)] >> (index % 64) & 1) != 0;
}

// The pool, the step and the tensors of some rows, each of a sequence of its own. Only what some query of a row sees is
// in the pool; of the tables, only what is needed for that.
class World {
public:
    Step step;

    World(const Model &model, const Layout &layout, const std::vector<Row> &rows, int padding)
        : model(model), layout(layout), rows(rows), num_blocks(blocks_of(layout, rows) + 2),
          elem(DTYPE_BYTES[model.pool]), k(layout, num_blocks, model.kv_heads, model.k_dim * elem, elem, 0),
          v(layout, num_blocks, model.kv_heads, model.v_dim * elem, elem, (size_t)elem),
          k_scales(layout, num_blocks, model.kv_heads, 4, 1, 1), v_scales(layout, num_blocks, model.kv_heads, 4, 1, 3) {
        make_step();
        fill_pool();
        make_tensors(step.counts.tokens + padding);
    }

    Outputs attend() {
        const size_t shared_bytes = 384 + (size_t)(model.k_dim + model.v_dim) * 4;
        launch(std::string("pk_attend_naive_") + DTYPE_NAMES[model.pool], padded * model.q_heads(), 32, shared_bytes,
               params());
        Outputs outputs = {model.q_heads(), model.v_dim, {}, lse};
        const int out_elem = DTYPE_BYTES[model.out_dtype];
        for (int head = 0; head < padded * model.q_heads(); head++) {
            const unsigned char *from = out.data() + head * out_head;
            for (int d = 0; d < model.v_dim; d++) {
                outputs.values.push_back(get(model.out_dtype, from + d * out_elem));
            }
            for (long long gap = model.v_dim * out_elem; gap < out_head; gap++) {
                check(from[gap] == 0xff, "a write behind a head");
            }
        }
        return outputs;
    }

private:
    static int blocks_of(const Layout &layout, const std::vector<Row> &rows) {
        int blocks = 0;
        for (const Row &row : rows) {
            blocks += (row.start + row.tokens + layout.block_size - 1) / layout.block_size;
        }
        return blocks;
    }

    void make_step() {
        int longest = 0;
        for (const Row &row : rows) {
            const int first_token = (int)step.token_rows.size();
            const int index = (int)step.rows.size();
            // Tables stand in another order than rows.
            step.rows.push_back({row.start, row.tokens, first_token, (int)rows.size() - 1 - index});
            longest = std::max(longest, (row.start + row.tokens + layout.block_size - 1) / layout.block_size);
            for (int position = row.start; position < row.start + row.tokens; position++) {
                step.token_rows.push_back(index);
                for (unsigned long long word : model.mask(row.sequence, position, position - row.start)) {
                    mask.push_back(word);
                }
            }
        }
        step.counts.rows = (int)rows.size();
        step.counts.tokens = (int)step.token_rows.size();
        step.table_len = longest + 1;
        // Entries that nobody needs are no blocks.
        step.tables.assign(rows.size() * (size_t)step.table_len, NO_BLOCK);
    }

    void fill_pool() {
        Random random(layout.order);
        std::vector<int> free_blocks;
        for (int block = 0; block < num_blocks; block++) {
            free_blocks.insert(free_blocks.begin() + random.between(0, block), block);
        }
        for (size_t index = 0; index < rows.size(); index++) {
            const Row &row = rows[index];
            for (int position = 0; position < row.start + row.tokens; position++) {
                bool seen = false;
                for (int query = row.start; query < row.start + row.tokens && !seen; query++) {
                    seen = sees(model, row, query, position);
                }
                const long long entry = step.rows[index].table * step.table_len + position / layout.block_size;
                int &block = step.tables[(size_t)entry];
                if (seen && block == NO_BLOCK) {
                    block = free_blocks.back();
                    free_blocks.pop_back();
                }
                for (int head = 0; seen && head < model.kv_heads; head++) {
                    put_head(K, k, k_scales, row.sequence, position, head, block);
                    put_head(V, v, v_scales, row.sequence, position, head, block);
                }
            }
        }
    }

    void put_head(Part part, const PoolPlane &plane, const PoolPlane &scales, int sequence, int position, int head,
                  int block) {
        const std::vector<float> numbers = model.head(part, sequence, position, head);
        const float scale = scale_of(numbers);
        const int offset = position % layout.block_size;
        unsigned char *to = plane.at(block, offset, head);
        for (size_t d = 0; d < numbers.size(); d++) {
            if (model.pool == PK_I8) {
                to[d] = (unsigned char)integer_of(numbers[d], scale);
            } else {
                put(model.pool, to + d * (size_t)elem, numbers[d]);
            }
        }
        std::memcpy(scales.at(block, offset, head), &scale, 4);
    }

    // A head of a tensor lies apart from the next by an element or two.
    void make_tensors(int tokens) {
        padded = tokens;
        const int heads = model.q_heads(), q_elem = DTYPE_BYTES[model.q_dtype];
        q_head = (model.k_dim + 1) * q_elem;
        out_head = (model.v_dim + 2) * DTYPE_BYTES[model.out_dtype];
        q = Memory((size_t)(padded * heads * q_head));
        out = Memory((size_t)(padded * heads * out_head));
        lse.assign((size_t)(padded * heads), 12345.0f);
        for (int token = 0; token < step.counts.tokens; token++) {
            const int index = step.token_rows[(size_t)token];
            const int position = rows[(size_t)index].start + token - step.rows[(size_t)index].first_token;
            for (int head = 0; head < heads; head++) {
                const std::vector<float> numbers = model.head(Q, rows[(size_t)index].sequence, position, head);
                for (size_t d = 0; d < numbers.size(); d++) {
                    put(model.q_dtype, q.data() + (token * heads + head) * q_head + (long long)d * q_elem, numbers[d]);
                }
            }
        }
        // What stands behind the step's tokens is what an earlier step left.
        step.token_rows.resize((size_t)padded, 0);
        mask.resize((size_t)(padded * model.mask_words), ~0ull);
    }

    pk_attend_params params() {
        pk_attend_params params = {};
        params.step = step.pointers();
        params.q = {q.data(), model.q_heads() * q_head, q_head, model.q_dtype, padded};
        params.out = {out.data(), model.q_heads() * out_head, out_head, model.out_dtype, padded};
        params.lse = lse.data();
        params.k_pool = k.plane;
        params.v_pool = v.plane;
        if (model.pool == PK_I8) {
            params.k_scales = k_scales.plane;
            params.v_scales = v_scales.plane;
        }
        params.q_heads = model.q_heads();
        params.kv_heads = model.kv_heads;
        params.k_dim = model.k_dim;
        params.v_dim = model.v_dim;
        params.block_size = layout.block_size;
        params.num_blocks = num_blocks;
        params.variant.scale = model.scale;
        params.variant.soft_cap = model.soft_cap;
        params.variant.window = model.window;
        params.variant.has_sinks = model.sinks;
        params.variant.has_slopes = model.slopes;
        params.variant.mask_words = model.mask_words;
        params.variant.mask = model.mask_words > 0 ? mask.data() : nullptr;
        for (int head = 0; head < model.q_heads(); head++) {
            params.variant.sinks[head] = model.sink(head);
            params.variant.slopes[head] = model.slope(head);
        }
        return params;
    }

    static constexpr int NO_BLOCK = 2147483647;

    const Model &model;
    const Layout &layout;
    const std::vector<Row> &rows;
    int num_blocks, elem;
    PoolPlane k, v, k_scales, v_scales;
    std::vector<unsigned long long> mask;
    int padded = 0;
    long long q_head = 0, out_head = 0;
    Memory q{0}, out{0};
    std::vector<float> lse;
};

// Runs the kernel on a step of these rows and `padding` more tokens; `spoil` may change the step's metadata.
inline Outputs attend(const Model &model, const Layout &layout, const std::vector<Row> &rows, int padding,
                      const std::function<void(Step &)> &spoil = [](Step &) {}) {
    World world(model, layout, rows, padding);
    const int tokens = world.step.counts.tokens;
    spoil(world.step);
    const Outputs outputs = world.attend();
    for (int token = tokens; token < tokens + padding; token++) {
        check(outputs.nothing(token), "padding gives zeros and no log-sum-exp");
    }
    return outputs;
}

// What a query head of a token should give, and how far off it may be.
struct Expected {
    std::vector<double> values;
    double tolerance, lse, lse_tolerance;
};

// Attention in double. The tolerance is that of `src/storage/suite/reference.rs`, where it is derived.
inline Expected reference(const Model &model, const Row &row, int position, int head,
                          const std::vector<std::vector<double>> &keys,
                          const std::vector<std::vector<double>> &values) {
    const std::vector<double> q = model.kept(Q, row.sequence, position, head);
    const double scale = model.scale, cap = model.soft_cap;
    std::map<int, double> scores;
    double size = 0.0;
    double top = model.sinks ? (double)model.sink(head) : -std::numeric_limits<double>::infinity();
    for (int key = 0; key < row.start + row.tokens; key++) {
        if (!sees(model, row, position, key)) {
            continue;
        }
        double dot = 0.0, sum = 0.0;
        for (size_t d = 0; d < q.size(); d++) {
            dot += q[d] * keys[(size_t)key][d];
            sum += std::fabs(q[d] * keys[(size_t)key][d]);
        }
        const double bias = model.slopes ? (double)model.slope(head) * (key - position) : 0.0;
        scores[key] = (cap > 0.0 ? cap * std::tanh(dot * scale / cap) : dot * scale) + bias;
        const double error = (model.k_dim / 8.0 + 8.0) * sum * std::fabs(scale) + 8.0 * cap + 4.0 * std::fabs(bias);
        size = std::max(size, error);
        top = std::max(top, scores[key]);
    }
    double total = model.sinks ? std::exp((double)model.sink(head) - top) : 0.0, largest = 0.0;
    Expected expected = {std::vector<double>((size_t)model.v_dim, 0.0), 0.0, 0.0, 0.0};
    for (const auto &[key, score] : scores) {
        total += std::exp(score - top);
        for (size_t d = 0; d < expected.values.size(); d++) {
            expected.values[d] += std::exp(score - top) * values[(size_t)key][d];
            largest = std::max(largest, std::fabs(values[(size_t)key][d]));
        }
    }
    for (double &value : expected.values) {
        value = total > 0.0 ? value / total : 0.0;
    }
    const double unit = std::ldexp(1.0, -24);
    const double sums = 6.0 + 64.0 + 2.0 * std::ceil((double)scores.size() / 64.0) + 4.0;
    expected.tolerance = (2.0 * size + 2.0 * sums) / 16.0 * largest * unit;
    expected.lse = total > 0.0 ? top + std::log(total) : -std::numeric_limits<double>::infinity();
    expected.lse_tolerance = (size + sums + 5.0 * (std::fabs(top) + std::fabs(expected.lse) + 1.0)) * unit;
    return expected;
}

inline void expect_head(const Model &model, const Expected &expected, const Outputs &outputs, size_t head,
                        const std::string &name) {
    for (size_t d = 0; d < expected.values.size(); d++) {
        const double given = outputs.values[head * expected.values.size() + d];
        const double exact = expected.values[d];
        // Half of a last bit of the output's type, which f32 has in the tolerance; of subnormal f16 it is 2^-25.
        const int bits = model.out_dtype == PK_F16 ? 11 : 8;
        const double rounding =
            model.out_dtype == PK_F32 ? 0.0 : std::ldexp(std::fabs(exact), -bits) + std::ldexp(1.0, -25);
        check(std::fabs(given - exact) <= expected.tolerance + rounding,
              name + ": " + std::to_string(given) + " and not " + std::to_string(exact));
    }
    const double lse = outputs.lse[head];
    check(lse == expected.lse || std::fabs(lse - expected.lse) <= expected.lse_tolerance,
          name + ": log-sum-exp " + std::to_string(lse) + " and not " + std::to_string(expected.lse));
}

inline void expect_reference(const Model &model, const std::vector<Row> &rows, const Outputs &outputs,
                             const std::string &name) {
    int first_token = 0;
    for (const Row &row : rows) {
        for (int head = 0; head < model.q_heads(); head++) {
            std::vector<std::vector<double>> keys, values;
            for (int position = 0; position < row.start + row.tokens; position++) {
                keys.push_back(model.kept(K, row.sequence, position, head / model.group));
                values.push_back(model.kept(V, row.sequence, position, head / model.group));
            }
            for (int token = 0; token < row.tokens; token++) {
                const Expected expected = reference(model, row, row.start + token, head, keys, values);
                const size_t at = (size_t)((first_token + token) * model.q_heads() + head);
                expect_head(model, expected, outputs, at, name);
            }
        }
        first_token += row.tokens;
    }
}

}  // namespace test
