// pk_prepare, pk_write_kv and pk_copy_blocks: every byte of the memory afterwards against a model on the host.
#include "formats.h"

using namespace test;

namespace {

// A plane of heads that lie apart by what is left of chance.
struct Plane {
    long long base, block, head, token;

    long long at(int in_block, int offset, int of_head) const {
        return base + in_block * block + of_head * head + offset * token;
    }

    pk_plane on(unsigned char *memory) const {
        return {memory + base, block, head, token};
    }
};

// Planes of `dim` elements in [blocks, heads, tokens] or [blocks, tokens, heads], with gaps of whole elements (of bytes
// where these are scales), from `end` on, which moves behind them.
Plane plane(Random &random, int blocks, int heads, int block_size, int item_bytes, int gap_bytes, long long &end) {
    const auto gap = [&] { return (long long)gap_bytes * random.one_of({0, 0, 1, 3, 16}); };
    Plane plane;
    plane.base = end + gap();
    if (random.between(0, 1) == 0) {
        plane.token = item_bytes + gap();
        plane.head = block_size * plane.token + gap();
        plane.block = heads * plane.head + gap();
    } else {
        plane.head = item_bytes + gap();
        plane.token = heads * plane.head + gap();
        plane.block = block_size * plane.token + gap();
    }
    end = plane.base + blocks * plane.block;
    return plane;
}

// A tensor [tokens, heads, dim] of numbers, of which some are at the ends of what there is, and its elements.
struct Tensor {
    Memory memory;
    pk_tensor tensor;

    Tensor(Random &random, int dtype, int tokens, int heads, int dim)
        : memory((size_t)(tokens * heads * (dim + 8)) * 4, (size_t)(random.between(0, 2) * DTYPE_BYTES[dtype])) {
        const int bytes = DTYPE_BYTES[dtype];
        const long long head_bytes = (dim + random.one_of({0, 0, 1, 8})) * bytes;
        tensor = {memory.data(), heads * head_bytes, head_bytes, dtype, tokens};
        for (int token = 0; token < tokens; token++) {
            for (int head = 0; head < heads; head++) {
                const int exponent = random.one_of({0, 0, 0, 9, -10, -140, 110});
                const bool bad = random.between(0, 20) == 0;
                for (int d = 0; d < dim; d++) {
                    const float x = std::ldexp(random.normal(), exponent);
                    // Any bits at all: infinities and NaN with it.
                    const uint32_t raw = (uint32_t)random.bits() | (random.between(0, 1) ? 0x7f800000u : 0);
                    unsigned char *to = at(token, head) + d * bytes;
                    put(dtype, to, x);
                    if (bad && random.between(0, 3) == 0) {
                        std::memcpy(to, (const unsigned char *)&raw + 4 - bytes, (size_t)bytes);
                    }
                }
            }
        }
    }

    unsigned char *at(int token, int head) const {
        return tensor.data + token * tensor.token_bytes + head * tensor.head_bytes;
    }

    std::vector<float> head(int token, int of_head, int dim) const {
        std::vector<float> numbers;
        for (int d = 0; d < dim; d++) {
            numbers.push_back(get(tensor.dtype, at(token, of_head) + d * DTYPE_BYTES[tensor.dtype]));
        }
        return numbers;
    }
};

void model_write(const Tensor &tensor, int token, int head, int dim, int pool, unsigned char *to,
                 unsigned char *scale_to) {
    if (tensor.tensor.dtype == pool) {
        std::memcpy(to, tensor.at(token, head), (size_t)(dim * DTYPE_BYTES[pool]));
        return;
    }
    const std::vector<float> numbers = tensor.head(token, head, dim);
    const float scale = scale_of(numbers);
    for (int d = 0; d < dim; d++) {
        if (pool == PK_I8) {
            to[d] = (unsigned char)integer_of(numbers[(size_t)d], scale);
        } else {
            put(pool, to + d * DTYPE_BYTES[pool], numbers[(size_t)d]);
        }
    }
    if (pool == PK_I8) {
        std::memcpy(scale_to, &scale, 4);
    }
}

void writes_are_those_of_the_model_and_touch_nothing_else(Random &random, int pool, int given) {
    const int kv_heads = random.between(1, 3), block_size = random.one_of({1, 3, 16});
    const int num_blocks = random.between(1, 5);
    const int dims[] = {random.one_of({1, 7, 16, 64, 130}), random.one_of({1, 5, 32, 128})};
    const int tokens = random.between(1, 6), padded = tokens + random.between(0, 3);
    const int bytes = DTYPE_BYTES[pool];
    long long end = 0;
    Plane planes[2], scales[2];
    for (int part = 0; part < 2; part++) {
        planes[part] = plane(random, num_blocks, kv_heads, block_size, dims[part] * bytes, bytes, end);
        scales[part] = plane(random, num_blocks, kv_heads, block_size, 4, 1, end);
        end = (end + bytes - 1) / bytes * bytes;
    }
    Memory memory((size_t)end, (size_t)(bytes * random.between(0, 1)));
    const Tensor tensors[] = {Tensor(random, given, padded, kv_heads, dims[0]),
                              Tensor(random, given, padded, kv_heads, dims[1])};
    Step step;
    step.counts.tokens = tokens;
    std::vector<int> free_slots(num_blocks * block_size);
    for (size_t i = 0; i < free_slots.size(); i++) {
        free_slots[i] = (int)i;
    }
    for (int token = 0; token < padded; token++) {
        // No slot twice; some that are not there.
        const int outside = random.one_of({-1, -2147483647 - 1, num_blocks * block_size, 2147483647});
        const bool inside = !free_slots.empty() && random.between(0, 5) != 0;
        const size_t pick = inside ? (size_t)random.between(0, (int)free_slots.size() - 1) : 0;
        step.slots.push_back(inside ? free_slots[pick] : outside);
        if (inside) {
            free_slots.erase(free_slots.begin() + (long)pick);
        }
    }
    std::vector<unsigned char> expected = memory.copy();
    for (int token = 0; token < tokens; token++) {
        const int slot = step.slots[(size_t)token];
        for (int head = 0; slot >= 0 && slot < num_blocks * block_size && head < kv_heads; head++) {
            for (int part = 0; part < 2; part++) {
                unsigned char *to = expected.data() + planes[part].at(slot / block_size, slot % block_size, head);
                unsigned char *scale = expected.data() + scales[part].at(slot / block_size, slot % block_size, head);
                model_write(tensors[part], token, head, dims[part], pool, to, scale);
            }
        }
    }
    pk_write_params params = {};
    params.step = step.pointers();
    params.k = tensors[0].tensor;
    params.v = tensors[1].tensor;
    params.k_pool = planes[0].on(memory.data());
    params.v_pool = planes[1].on(memory.data());
    if (pool == PK_I8) {
        params.k_scales = scales[0].on(memory.data());
        params.v_scales = scales[1].on(memory.data());
    }
    params.kv_heads = kv_heads;
    params.k_dim = dims[0];
    params.v_dim = dims[1];
    params.block_size = block_size;
    params.num_blocks = num_blocks;
    launch(std::string("pk_write_kv_") + DTYPE_NAMES[pool], padded * kv_heads, 32, 0, params);
    check(memory.copy() == expected, std::string("a write of ") + DTYPE_NAMES[given] + " to " + DTYPE_NAMES[pool]);
}

void copies_are_those_of_the_model_and_touch_nothing_else(Random &random) {
    const int num_blocks = random.between(2, 9), num_runs = random.between(1, 4);
    const int grid = random.one_of({1, 2, 7, 40});
    // Whether addresses are multiples of 16, of 4, or of nothing.
    const int unit = random.one_of({1, 4, 16});
    long long end = 0;
    std::vector<pk_run> runs;
    for (int index = 0; index < num_runs; index++) {
        const long long bytes = (long long)unit * random.one_of({1, 2, 15, 129, 1000});
        const long long block_bytes = bytes + (long long)unit * random.one_of({0, 1, 5});
        runs.push_back({nullptr, block_bytes, bytes});
        end += num_blocks * block_bytes + unit;
    }
    Memory memory((size_t)end, (size_t)(unit == 16 ? 0 : unit));
    std::memset(memory.data(), 0, (size_t)end);
    for (long long i = 0; i < end; i++) {
        memory.data()[i] = (unsigned char)random.bits();
    }
    std::vector<long long> offsets;
    long long from = 0;
    for (pk_run &run : runs) {
        offsets.push_back(from);
        run.base = memory.data() + from;
        from += num_blocks * run.block_bytes + unit;
    }
    // Sources are the lower half, targets the upper, each once.
    Step step;
    const int half = num_blocks / 2;
    for (int dst = half; dst < num_blocks; dst++) {
        step.copies.push_back({random.between(0, half - 1), dst});
    }
    step.copies.push_back({0, random.one_of({-1, num_blocks, 2147483647})});
    step.copies.push_back({random.one_of({-1, num_blocks, -2147483647 - 1}), 0});
    step.counts.copies = (int)step.copies.size();
    // Behind the count nothing is copied.
    step.copies.push_back({half, 0});
    std::vector<unsigned char> expected = memory.copy();
    for (size_t index = 0; index + 3 < step.copies.size(); index++) {
        for (size_t run = 0; run < runs.size(); run++) {
            const auto block = [&](int of) { return expected.data() + offsets[run] + of * runs[run].block_bytes; };
            std::memcpy(block(step.copies[index].dst), block(step.copies[index].src), (size_t)runs[run].bytes);
        }
    }
    pk_copy_params params = {step.pointers(), runs.data(), num_runs, num_blocks};
    launch("pk_copy_blocks", grid, 128, 0, params);
    check(memory.copy() == expected, "copies on " + std::to_string(grid) + " CTAs");
    step.counts.copies = 0;
    params.step = step.pointers();
    launch("pk_copy_blocks", grid, 128, 0, params);
    check(memory.copy() == expected, "no copies change nothing");
}

// Words that say where they are, so that none is taken for another.
template <typename Part>
std::vector<Part> stamped(int count, int stamp) {
    std::vector<Part> parts((size_t)count);
    int *words = (int *)parts.data();
    for (size_t at = 0; at < parts.size() * sizeof(Part) / sizeof(int); at++) {
        words[at] = stamp + (int)at;
    }
    return parts;
}

template <typename Part>
void append(std::vector<int> &packed, const std::vector<Part> &parts) {
    const int *words = (const int *)parts.data();
    packed.insert(packed.end(), words, words + parts.size() * sizeof(Part) / sizeof(int));
}

// Whether the parts begin with those sent and go on as they were.
template <typename Part>
bool begins_with(const std::vector<Part> &all, const std::vector<Part> &sent) {
    std::vector<Part> expected = stamped<Part>((int)all.size(), -9000);
    std::copy(sent.begin(), sent.end(), expected.begin());
    return std::memcmp(all.data(), expected.data(), all.size() * sizeof(Part)) == 0;
}

void a_step_is_put_where_kernels_look_and_nothing_else_is_touched(Random &random) {
    const int max = 40, tables = random.between(1, 4);
    Step step;
    step.table_len = random.between(1, 300);
    step.tables.assign((size_t)(tables * step.table_len), -7);
    step.rows = stamped<pk_row>(max, -9000);
    step.token_rows = step.slots = stamped<int>(max, -9000);
    step.copies = stamped<pk_copy>(max, -9000);

    std::vector<int> expected = step.tables, entries;
    std::vector<pk_edit> edits;
    for (int table = 0; table < tables; table++) {
        int from = 0;
        while (from < step.table_len && random.between(0, 3) != 0) {
            from += random.between(0, (int)step.table_len - 1 - from);
            const int len = random.between(0, (int)step.table_len - from);
            edits.push_back({table, from, len, (int)entries.size()});
            for (int entry = 0; entry < len; entry++) {
                expected[(size_t)(table * step.table_len + from + entry)] = 5000 + (int)entries.size();
                entries.push_back(5000 + (int)entries.size());
            }
            from += len;
        }
    }
    const auto rows = stamped<pk_row>(random.between(0, max), 1000);
    const auto token_rows = stamped<int>(random.between(0, max), 2000);
    const auto slots = stamped<int>((int)token_rows.size(), 3000);
    const auto copies = stamped<pk_copy>(random.between(0, max), 4000);
    std::vector<int> packed = {(int)rows.size(), (int)slots.size(), (int)copies.size(), (int)edits.size()};
    append(packed, rows);
    append(packed, token_rows);
    append(packed, slots);
    append(packed, copies);
    append(packed, edits);
    append(packed, entries);
    launch("pk_prepare", random.one_of({1, 3, 20}), 128, 0, pk_prepare_params{step.pointers(), packed.data()});
    check(std::memcmp(&step.counts, packed.data(), sizeof(pk_counts)) == 0, "the counts");
    check(begins_with(step.rows, rows) && begins_with(step.token_rows, token_rows), "rows, and the rows of tokens");
    check(begins_with(step.slots, slots) && begins_with(step.copies, copies), "slots and copies");
    check(step.tables == expected, "the tables after their edits");
}

}  // namespace

int main() {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        Random random(seed);
        for (int pool : {PK_F32, PK_F16, PK_BF16, PK_E4M3, PK_I8}) {
            for (int given : {PK_F32, PK_F16, PK_BF16}) {
                writes_are_those_of_the_model_and_touch_nothing_else(random, pool, given);
            }
        }
        for (int round = 0; round < 5; round++) {
            copies_are_those_of_the_model_and_touch_nothing_else(random);
            a_step_is_put_where_kernels_look_and_nothing_else_is_touched(random);
        }
    }
    return report("movement_test");
}
