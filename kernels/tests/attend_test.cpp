// pk_attend_naive against attention in double, over random shapes, layouts, steps and variants; and what its bits may
// not depend on.
//
// Every slot that no query of the step may see holds NaN, every table entry that none needs is no block, and the output
// holds NaN before the launch.
#include "world.h"

using namespace test;

namespace {

Model random_model(Random &random) {
    Model model;
    model.seed = random.bits();
    model.pool = random.one_of({PK_F32, PK_F16, PK_BF16, PK_E4M3, PK_I8});
    model.q_dtype = random.one_of({PK_F32, PK_F16, PK_BF16});
    model.out_dtype = random.one_of({PK_F32, PK_F32, PK_F16, PK_BF16});
    model.kv_heads = random.between(1, 2);
    model.group = random.between(1, 3);
    model.k_dim = random.one_of({1, 7, 8, 16, 40, 64, 129});
    model.v_dim = random.one_of({1, 5, 32, 33, 64, 100, 200});
    model.scale = random.one_of({1.0f, 1.0f, -1.0f, 20.0f}) / std::sqrt((float)model.k_dim);
    const int every = random.between(0, 2);
    if (every == 0 || random.between(0, 3) == 0) {
        model.window = random.one_of({1, 2, 5, 31, 32, 33, 64, 1000});
    }
    if (every == 0 || random.between(0, 3) == 0) {
        model.soft_cap = random.one_of({0.5f, 3.0f, 50.0f});
    }
    model.sinks = every == 0 || random.between(0, 3) == 0;
    model.slopes = every == 0 || random.between(0, 3) == 0;
    model.mask_words = every == 0 || random.between(0, 2) == 0 ? random.between(1, 3) : 0;
    return model;
}

Layout random_layout(Random &random) {
    return {random.one_of({1, 3, 8, 16, 31, 32, 64}), random.between(0, 1) == 1, random.between(0, 40), random.bits()};
}

std::vector<Row> random_rows(Random &random) {
    std::vector<Row> rows;
    const int count = random.between(1, 3);
    for (int sequence = 0; sequence < count; sequence++) {
        const int start = random.one_of({0, 0, 1, 30, 31, 32, 33, 70, 200});
        rows.push_back({sequence, start, random.one_of({1, 1, 2, 5, 40, 66})});
    }
    return rows;
}

void outputs_are_those_of_the_reference() {
    for (uint64_t seed = 1; seed <= 200; seed++) {
        Random random(seed);
        const Model model = random_model(random);
        const std::vector<Row> rows = random_rows(random);
        const Outputs outputs = attend(model, random_layout(random), rows, random.between(0, 3));
        expect_reference(model, rows, outputs, "seed " + std::to_string(seed));
    }
}

// 3,000 keys: the errors of long sums.
void a_long_context_is_as_good() {
    for (int pool : {PK_F32, PK_BF16, PK_I8}) {
        Model model;
        model.pool = pool;
        model.kv_heads = model.group = 1;
        model.k_dim = model.v_dim = 64;
        model.scale = 0.125f;
        const std::vector<Row> rows = {{0, 2999, 1}};
        expect_reference(model, rows, attend(model, {16, false, 0, 1}, rows, 0), "3,000 keys");
    }
}

// The longest heads, and those of latent attention.
void wide_heads_are_as_good() {
    for (int pool : {PK_F32, PK_E4M3}) {
        for (const auto &[k_dim, v_dim] : {std::pair<int, int>{576, 512}, {4096, 4096}}) {
            Model model;
            model.pool = pool;
            model.group = 2;
            model.k_dim = k_dim;
            model.v_dim = v_dim;
            model.scale = 1.0f / std::sqrt((float)k_dim);
            const std::vector<Row> rows = {{0, 40, 2}};
            expect_reference(model, rows, attend(model, {16, true, 0, 1}, rows, 1), "wide heads");
        }
    }
}

// Scores of some 10^6: the difference of two is off by their own rounding, which the tolerance takes from their size.
void large_scores_are_no_trouble() {
    for (float scale : {3e5f, -3e5f}) {
        Model model;
        model.pool = model.q_dtype = PK_F32;
        model.kv_heads = model.group = 1;
        model.k_dim = model.v_dim = 8;
        model.scale = scale;
        const std::vector<Row> rows = {{0, 99, 2}};
        const Outputs outputs = attend(model, {16, false, 0, 1}, rows, 0);
        expect_reference(model, rows, outputs, "large scores");
        for (float x : outputs.values) {
            check(std::isfinite(x), "large scores give numbers");
        }
        check(std::fabs(outputs.lse[0]) > 1e5f, "the scores are large");
    }
}

// The bits of a query's output depend on its context, and on nothing else.
void bits_do_not_depend_on_layout_batch_or_steps() {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        Random random(seed);
        Model model = random_model(random);
        model.mask_words = 0;
        const int start = random.between(0, 90), tokens = random.between(2, 40);
        const Row whole = {0, start, tokens};
        const Outputs expected = attend(model, {16, false, 0, 1}, {whole}, 0);
        const std::string name = "seed " + std::to_string(seed);
        check(attend(model, random_layout(random), {whole}, 2).bits(0, tokens) == expected.bits(0, tokens),
              name + ": another layout");
        const Row other = {1, 50, 7};
        check(attend(model, random_layout(random), {other, whole}, 0).bits(7, tokens) == expected.bits(0, tokens),
              name + ": another batch");
        const int cut = random.between(1, tokens - 1);
        check(attend(model, random_layout(random), {{0, start, cut}}, 0).bits(0, cut) == expected.bits(0, cut),
              name + ": the first step of two");
        const Row second = {0, start + cut, tokens - cut};
        check(attend(model, random_layout(random), {second}, 0).bits(0, tokens - cut) ==
                  expected.bits(cut, tokens - cut),
              name + ": the second step of two");
    }
}

Model small(int pool) {
    Model model;
    model.pool = pool;
    model.kv_heads = 1;
    model.group = 2;
    model.k_dim = 16;
    model.v_dim = 40;
    model.scale = 0.25f;
    return model;
}

// Keys that a window leaves out and keys that are in no block leave the same bits: chunks begin where they begin,
// wherever the first key is.
void bits_do_not_depend_on_the_window_s_start() {
    for (int window : {1, 5, 31, 32, 33, 60}) {
        Model model = small(PK_F32);
        const Outputs expected = attend(model, {1, false, 0, 1}, {{0, 80, 1}}, 0, [&](Step &step) {
            std::fill(step.tables.begin(), step.tables.begin() + 81 - window, -1);
        });
        model.window = window;
        const Outputs windowed = attend(model, {16, false, 0, 1}, {{0, 80, 1}}, 0);
        check(windowed.bits(0, 1) == expected.bits(0, 1), "a window of " + std::to_string(window));
    }
}

// Keys of a score of minus infinity weigh nothing, a whole chunk of them included, and all keys of them.
void scores_of_minus_infinity_weigh_nothing() {
    Model model = small(PK_F32);
    Model windowed = model;
    windowed.infinite_before = model.infinite_before = 40;
    windowed.window = 10;
    const Outputs expected = attend(windowed, {16, false, 0, 1}, {{0, 49, 1}}, 0);
    check(std::isfinite(expected.lse[0]), "ten keys are left");
    const Outputs given = attend(model, {16, false, 0, 1}, {{0, 49, 1}}, 0);
    check(given.bits(0, 1) == expected.bits(0, 1), "forty keys of minus infinity");
    check(attend(model, {16, false, 0, 1}, {{0, 39, 1}}, 0).all_of_nothing(), "nothing but minus infinity");
}

// The NaN of a key or a value comes out where it is seen, and only there.
void nan_comes_out_where_it_is_seen() {
    for (int pool : {PK_F32, PK_F16, PK_BF16, PK_E4M3, PK_I8}) {
        for (int part : {K, V}) {
            Model model = small(pool);
            model.nan_part = part;
            model.nan_position = 35;
            const Outputs outputs = attend(model, {16, false, 0, 1}, {{0, 33, 6}}, 0);
            for (int token = 0; token < 6; token++) {
                const bool sees = 33 + token >= 35;
                for (int head = 0; head < 2; head++) {
                    int nans = 0;
                    for (int d = 0; d < model.v_dim; d++) {
                        nans += std::isnan(outputs.values[(size_t)((token * 2 + head) * model.v_dim + d)]);
                    }
                    // A NaN in V is that of its element alone, but for integers, where it is the scale's.
                    const int expected = part == K || pool == PK_I8 ? model.v_dim : 1;
                    check(nans == (sees ? expected : 0), "NaN of token " + std::to_string(token));
                    const bool lse_nan = std::isnan(outputs.lse[(size_t)(token * 2 + head)]);
                    check(lse_nan == (sees && part == K), "NaN of a log-sum-exp");
                }
            }
        }
    }
}

// A mask of zeros over a row that is its whole sequence: zeros; the log-sum-exp is that of the sink alone, or of
// nothing.
void a_query_that_sees_nothing_gives_zeros() {
    for (bool sinks : {false, true}) {
        Model model = small(PK_BF16);
        model.mask_words = 2;
        model.mask_nothing = true;
        model.sinks = sinks;
        const Outputs outputs = attend(model, {16, false, 0, 1}, {{0, 0, 3}}, 0);
        for (float x : outputs.values) {
            check(bits_of(x) == 0, "zeros");
        }
        for (size_t i = 0; i < outputs.lse.size(); i++) {
            const float expected = sinks ? model.sink((int)i % 2) : -std::numeric_limits<float>::infinity();
            check(outputs.lse[i] == expected || std::fabs(outputs.lse[i] - expected) < 4e-7f * std::fabs(expected),
                  "the log-sum-exp of nothing");
        }
    }
}

// Bad metadata: no query is followed out of its buffers, and what it would have seen is not there.
void bad_metadata_sees_nothing() {
    const int most = 2147483647;
    const std::vector<pk_row> bad_rows = {{-1, 1, 0, 0}, {most, most, 0, 0}, {0, 0, 0, 0}, {5, 1, 1, 0}, {0, 1, 0, -1}};
    for (const pk_row &bad : bad_rows) {
        const Outputs outputs = attend(small(PK_F32), {16, false, 0, 1}, {{0, 0, 1}}, 0, [&](Step &step) {
            step.rows[0] = bad;
        });
        check(outputs.all_of_nothing(), "a row that is none");
    }
    for (int bad : {-1, 1, most}) {
        const Outputs outputs = attend(small(PK_F32), {16, false, 0, 1}, {{0, 0, 1}}, 0, [&](Step &step) {
            step.token_rows[0] = bad;
        });
        check(outputs.all_of_nothing(), "a token of no row");
    }
    // A row that has more tokens than the step.
    const Outputs shorter = attend(small(PK_F32), {16, false, 0, 1}, {{0, 0, 3}}, 0, [](Step &step) {
        step.counts.tokens = 2;
    });
    check(!shorter.nothing(0) && !shorter.nothing(1) && shorter.nothing(2), "a token behind the step's");
    // A row longer than its table: the keys that have entries are seen.
    const Model model = small(PK_F32);
    const Outputs whole = attend(model, {16, false, 0, 1}, {{0, 31, 1}}, 0);
    const Outputs longer = attend(model, {16, false, 0, 1}, {{0, 31, 1}}, 0, [&](Step &step) {
        step.table_len = 2;
        step.rows[0].start = 1000;
    });
    check(longer.bits(0, 1) == whole.bits(0, 1), "a row beyond its table");
    // An entry that is no block: its keys are left out. What is left are 16 keys, those of a window of 16.
    for (int bad : {-1, 64, most}) {
        const Outputs second = attend(model, {16, false, 0, 1}, {{0, 31, 1}}, 0, [&](Step &step) {
            step.tables[0] = bad;
        });
        Model windowed = model;
        windowed.window = 16;
        const Outputs expected = attend(windowed, {16, false, 0, 1}, {{0, 31, 1}}, 0);
        check(second.bits(0, 1) == expected.bits(0, 1), "an entry that is no block");
    }
}

}  // namespace

int main() {
    outputs_are_those_of_the_reference();
    a_long_context_is_as_good();
    wide_heads_are_as_good();
    large_scores_are_no_trouble();
    bits_do_not_depend_on_layout_batch_or_steps();
    bits_do_not_depend_on_the_window_s_start();
    scores_of_minus_infinity_weigh_nothing();
    nan_comes_out_where_it_is_seen();
    a_query_that_sees_nothing_gives_zeros();
    bad_metadata_sees_nothing();
    return report("attend_test");
}
