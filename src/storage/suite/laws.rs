//! What holds for every storage.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::harness::Harness;
use super::reference::{Rounding, attention};
use super::shapes::{Content, FORMS, Form, Model, Rng};
use super::world::{Blocks, Outputs, Row, World, bits};
use crate::id::{BlockId, ix};
use crate::layout::DType;
use crate::step::BlockCopy;

const HEAD_DIMS: [u32; 11] = [8, 16, 24, 40, 64, 80, 96, 112, 128, 192, 256];
const GROUPS: [u32; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 64];
const BLOCK_SIZES: [u32; 5] = [1, 8, 16, 32, 128];
/// Tokens before the queries: none, and both sides of a block's and a chunk's border.
const CONTEXTS: [u32; 8] = [0, 1, 15, 16, 17, 63, 64, 1000];

/// A batch that mixes a decode row, a prompt and a piece of a prompt, the longest context being `context`.
pub(super) fn mixed(context: u32) -> [Row; 3] {
    let piece = (context / 2).min(9) + 1;
    [
        Row { seq: 0, start: context, len: 1 },
        Row { seq: 1, start: 0, len: 5 + context % 40 },
        Row { seq: 2, start: context + 1 - piece, len: piece },
    ]
}

pub(super) fn lens(rows: &[Row]) -> Vec<u32> {
    rows.iter().map(|row| row.start + row.len).collect()
}

fn equal(what: &str, left: &Outputs, right: &Outputs) -> Result<(), String> {
    if bits(left) == bits(right) { Ok(()) } else { Err(format!("{what}: the bits differ")) }
}

/// Every value of every list at least once, neighbours in many combinations: 22 cases walk the lists with steps that
/// are prime to each other.
pub(super) fn every_shape_agrees_with_float64<H: Harness>(dtype: DType) -> Result<(), String> {
    let mut worst = 0.0_f64;
    for i in 0..22 {
        let head_dim = HEAD_DIMS[i % 11];
        let group = GROUPS[i * 8 % 19];
        let kv_heads = if group >= 24 { 1 } else { 1 + u32::from(i % 2 == 0) };
        let mut model = Model::new(dtype, kv_heads, group, head_dim);
        model.form = FORMS[i % 4];
        model.layers = 1 + u32::from(i % 4 == 1);
        // V of another width than K in every fifth case.
        model.v_dim = if i % 5 == 4 { HEAD_DIMS[(i + 3) % 11] } else { head_dim };
        let rows = mixed(CONTEXTS[(i * 3) % 8]);
        let seed = 1 + i as u64;
        let block_size = BLOCK_SIZES[i % 5];
        let mut world = World::<H>::new(model, Content::new(seed), block_size, &lens(&rows), Blocks::Shuffled(seed))?;
        worst = worst.max(world.check(&rows).map_err(|fault| format!("case {i}, blocks of {block_size}: {fault}"))?);
    }
    std::println!("largest error: {worst:.3} of its tolerance");
    Ok(())
}

/// Shapes off the lists, odd dimensions among them. The seed is fixed, or `PAGED_KV_SEED`.
pub(super) fn random_shapes_agree_with_float64<H: Harness>(dtype: DType) -> Result<(), String> {
    let seed = std::env::var("PAGED_KV_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_101);
    std::println!("PAGED_KV_SEED={seed}");
    for case in 0..40 {
        let mut rng = Rng(seed ^ case << 32);
        let mut model = Model::new(dtype, 1 + rng.below(4), 1 + rng.below(9), 1 + rng.below(140));
        let other = 1 + rng.below(140);
        model.v_dim = rng.pick(&[model.k_dim, other]);
        model.layers = 1 + rng.below(2);
        model.form = rng.pick(&FORMS);
        let block_size = 1 + rng.below(40);
        let rows: Vec<_> = (0..1 + rng.below(4))
            .map(|seq| {
                let starts = [0, rng.below(20), rng.below(150)];
                let lens = [1, 1 + rng.below(8), 1 + rng.below(80)];
                Row { seq, start: rng.pick(&starts), len: rng.pick(&lens) }
            })
            .collect();
        let mut world =
            World::<H>::new(model, Content::new(seed ^ case), block_size, &lens(&rows), Blocks::Shuffled(case))?;
        world.check(&rows).map_err(|fault| format!("PAGED_KV_SEED={seed}, case {case}: {fault}"))?;
    }
    Ok(())
}

/// Scores of ±√128 and more, positive and negative scales, an even softmax at 0: the running maximum has to work. At
/// scales of 1000 and 10⁵ scores of one query differ by thousands and by a million, and single weights are far below any
/// power of two in `f32`.
pub(super) fn large_scores_agree_with_float64<H: Harness>(dtype: DType) -> Result<(), String> {
    for scale in [4.0, 1.0, -1.0, 0.0, 1000.0, -1000.0, 1e5, -1e5] {
        let mut model = Model::new(dtype, 2, 3, 128);
        model.scale = scale;
        let rows = mixed(200);
        let mut world = World::<H>::new(model, Content::new(9), 16, &lens(&rows), Blocks::Shuffled(9))?;
        world.check(&rows).map_err(|fault| format!("scale {scale}: {fault}"))?;
    }
    Ok(())
}

pub(super) fn an_empty_step_is_a_step<H: Harness>(dtype: DType) -> Result<(), String> {
    let mut world = World::<H>::new(Model::new(dtype, 2, 2, 16), Content::new(1), 4, &[4], Blocks::Identity)?;
    let outputs = world.run(&[], &[])?;
    if bits(&outputs).is_empty() { Ok(()) } else { Err("outputs without queries".into()) }
}

/// The model that laws of equal bits run on: two heads, groups of 3 so that rows do not fall into fours, two layers.
fn sample<H: Harness>(dtype: DType) -> Model {
    H::model(Model { layers: 2, ..Model::new(dtype, 2, 3, 40) })
}

/// Runs rows after what comes before them, over memory that held `stale`.
fn outputs<H: Harness>(
    model: Model,
    block_size: u32,
    rows: &[Row],
    blocks: Blocks,
    stale: f32,
) -> Result<Outputs, String> {
    let mut world = World::<H>::new(model, Content::new(7), block_size, &lens(rows), blocks)?;
    world.storage.fill(stale);
    let before: Vec<_> =
        rows.iter().filter(|row| row.start > 0).map(|row| Row { start: 0, len: row.start, ..*row }).collect();
    if !before.is_empty() {
        world.feed(&before)?;
    }
    let outputs = world.run(rows, &[])?;
    world.compare(rows, &outputs)?;
    Ok(outputs)
}

/// Against K and V before they were rounded to the storage's type: the error is no more than that rounding explains.
///
/// All numbers are at most 1, so that one is off by at most e: half of the last place of numbers below 1, or of a step of
/// 1 / 127. Then a score is off by at most d = scale × `k_dim` × e, a weight by a factor of e^(2 d), and an output, a
/// weighted mean, by e^(2 d) − 1 and by e of its own. Arithmetic adds up to 10⁻⁵. Where queries and weights are rounded
/// too, by a share of r, queries below 1 are off by r / 2 as keys are by e, and outputs by r more.
///
/// That is where all roundings go the same way; for the float types less is asked for, of the largest output.
pub(super) fn the_format_bounds_the_error<H: Harness>(dtype: DType) -> Result<(), String> {
    let model = H::model(Model::new(dtype, 2, 4, 64));
    let rows = mixed(300);
    let outputs = outputs::<H>(model, 16, &rows, Blocks::Shuffled(3), f32::NAN)?;
    let unit: f64 = match dtype {
        DType::F32 => 0.0,
        DType::F16 => 2.0_f64.powi(-12),
        DType::BF16 => 2.0_f64.powi(-9),
        DType::F8E4M3 => 2.0_f64.powi(-5),
        DType::I8 => 1.0 / 254.0,
    };
    let share = match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        DType::F8E4M3 | DType::I8 => f64::INFINITY,
    };
    let rounding = World::<H>::new(model, Content::new(7), 16, &[1], Blocks::Identity)?.storage.rounding(0);
    let both = unit + rounding.share / 2.0;
    let bound = (2.0 * f64::from(model.scale) * 64.0 * both).exp_m1() + unit + rounding.share + 1e-5;
    let exact = Model { dtype: DType::F32, ..model };
    let expected = rows.iter().flat_map(|row| {
        attention(&exact, &Content::new(7), 0, row.seq, row.start..row.start + row.len, Rounding::default())
            .into_iter()
            .flat_map(|expected| expected.values)
    });
    let (mut worst, mut largest, mut count) = (0.0_f64, 0.0_f64, 0);
    for (got, want) in outputs[0].iter().zip(expected) {
        worst = worst.max((f64::from(*got) - want).abs());
        largest = largest.max(want.abs());
        count += 1;
    }
    let bound = bound.min(share * largest);
    std::println!("{dtype:?}: off by at most {worst:.1e}, where {bound:.1e} is allowed, outputs up to {largest:.1e}");
    // A NaN is in no maximum, and was objected to by `outputs`.
    if count == outputs[0].len() && worst <= bound {
        Ok(())
    } else {
        Err(format!("off by {worst} where {bound} is allowed, {count} outputs"))
    }
}

/// Tails of blocks, blocks of lookahead and blocks of nobody.
pub(super) fn stale_bytes_change_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    for context in [0, 15, 17, 64, 200] {
        let run = |stale| outputs::<H>(sample::<H>(dtype), 16, &mixed(context), Blocks::Shuffled(3), stale);
        let clean = run(0.0)?;
        for stale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 60_000.0] {
            equal(&format!("stale {stale}, context {context}"), &clean, &run(stale)?)?;
        }
    }
    Ok(())
}

pub(super) fn the_choice_of_blocks_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    for block_size in [1, 16, 32] {
        let run = |blocks| outputs::<H>(sample::<H>(dtype), block_size, &mixed(130), blocks, f32::NAN);
        let identity = run(Blocks::Identity)?;
        for seed in 0..4 {
            equal("a permuted table", &identity, &run(Blocks::Shuffled(seed))?)?;
        }
    }
    Ok(())
}

pub(super) fn the_layout_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    // One layer, as the foreign form gives its second layer another number of heads.
    let run = |form| {
        let model = Model { form, v_dim: 24, layers: 1, ..sample::<H>(dtype) };
        outputs::<H>(model, 16, &mixed(130), Blocks::Shuffled(5), f32::NAN)
    };
    let per_layer = run(Form::PerLayer)?;
    equal("a cross-layer pool", &per_layer, &run(Form::CrossLayer)?)?;
    equal("planes", &per_layer, &run(Form::Planes)?)?;
    equal("a foreign pool", &per_layer, &run(Form::Foreign)?)
}

pub(super) fn the_block_size_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    let run = |block_size| outputs::<H>(sample::<H>(dtype), block_size, &mixed(200), Blocks::Shuffled(5), f32::NAN);
    let sixteen = run(16)?;
    for block_size in [1, 7, 8, 32, 64, 128] {
        equal(&format!("blocks of {block_size}"), &sixteen, &run(block_size)?)?;
    }
    Ok(())
}

/// Rows of one step against the same rows alone, in another order, and beside long prompts.
pub(super) fn the_company_in_a_batch_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    // The longest context is above 2,000 tokens in the last case.
    for (group, context) in [(1, 140), (2, 140), (4, 140), (7, 140), (4, 2100)] {
        let model = Model { group, ..sample::<H>(dtype) };
        let mut rows = Vec::from(mixed(context));
        rows.push(Row { seq: 3, start: 0, len: 100 });
        rows.push(Row { seq: 4, start: 63, len: 3 });
        let together = outputs::<H>(model, 16, &rows, Blocks::Shuffled(5), f32::NAN)?;
        let mut first = 0;
        for &row in &rows {
            // The sequences keep their numbers, and with them their content.
            let mut world = World::<H>::new(model, Content::new(7), 16, &lens(&rows), Blocks::Shuffled(6))?;
            if row.start > 0 {
                world.feed(&[Row { start: 0, len: row.start, ..row }])?;
            }
            let alone = world.run(&[row], &[])?;
            for (layer, (alone, together)) in alone.iter().zip(&together).enumerate() {
                let width = model.q_heads(0) * ix(model.v_dim);
                let share = &together[first * width..][..ix(row.len) * width];
                if !alone.iter().zip(share).all(|(a, b)| a.to_bits() == b.to_bits()) {
                    return Err(format!("group {group}, {row:?}, layer {layer}: alone the bits differ"));
                }
            }
            first += ix(row.len);
        }
    }
    Ok(())
}

/// A prompt of 150 tokens in one step, token by token, and in pieces of several sizes.
pub(super) fn the_cut_into_chunks_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    for group in [1, 3, 4] {
        let model = Model { group, ..sample::<H>(dtype) };
        let run = |piece: u32| -> Result<Outputs, String> {
            let mut world = World::<H>::new(model, Content::new(7), 16, &[150], Blocks::Shuffled(5))?;
            let mut all: Outputs = alloc::vec![Vec::new(); ix(model.layers)];
            for start in (0..150).step_by(ix(piece)) {
                let step = world.run(&[Row { seq: 0, start, len: piece.min(150 - start) }], &[])?;
                all.iter_mut().zip(step).for_each(|(all, step)| all.extend(step));
            }
            Ok(all)
        };
        let whole = run(150)?;
        for piece in [1, 5, 16, 33, 64, 149] {
            equal(&format!("group {group}, pieces of {piece}"), &whole, &run(piece)?)?;
        }
    }
    Ok(())
}

/// A query sees no key after its own position, be it NaN, if the storage promises that; and one that sees NaN says so.
pub(super) fn what_comes_later_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    for group in [1, 2, 4] {
        let model = Model { group, ..sample::<H>(dtype) };
        let row = [Row { seq: 0, start: 0, len: 100 }];
        let run = |content| World::<H>::new(model, content, 16, &[100], Blocks::Identity)?.run(&row, &[]);
        let sound = run(Content::new(7))?;
        for nan_from in [1, 2, 50, 64, 99] {
            let broken = run(Content { nan_from, ..Content::new(7) })?;
            for (sound, broken) in sound.iter().zip(&broken) {
                let (before, after) = broken.split_at(ix(nan_from) * model.q_heads(0) * ix(model.v_dim));
                if H::LATER_IS_UNSEEN && !before.iter().zip(sound).all(|(a, b)| a.to_bits() == b.to_bits()) {
                    return Err(format!("group {group}: NaN at position {nan_from} reaches queries before it"));
                }
                if !after.iter().all(|x| x.is_nan()) {
                    return Err(format!("group {group}: NaN at position {nan_from} is lost"));
                }
            }
        }
    }
    Ok(())
}

/// A world of one sequence of nine blocks, fed, and its block ids.
fn fed<H: Harness>(dtype: DType, form: Form) -> Result<(World<H>, Vec<BlockId>), String> {
    let model = H::model(Model { form, v_dim: 24, ..sample::<H>(dtype) });
    let len = 9 * H::block_size(8);
    let mut world = World::<H>::new(model, Content::new(7), 8, &[len], Blocks::Shuffled(4))?;
    world.feed(&[Row { seq: 0, start: 0, len }])?;
    let blocks = world.tables[0].clone();
    Ok((world, blocks))
}

pub(super) fn a_copy_is_a_whole_block_on_all_layers<H: Harness>(dtype: DType) -> Result<(), String> {
    for form in FORMS {
        let (mut world, blocks) = fed::<H>(dtype, form)?;
        let all = |world: &World<H>| -> Result<Vec<_>, String> {
            let num_blocks = world.storage.layout().num_blocks();
            (0..num_blocks).map(|block| world.block_bits(BlockId::new(block))).collect()
        };
        let mut expected = all(&world)?;
        // One source twice, and a source that is only partly written (the block of lookahead, all NaN).
        let copies = [(0, 5), (0, 6), (2, 7), (9, 1)].map(|(s, d)| BlockCopy { src: blocks[s], dst: blocks[d] });
        for copy in copies {
            expected[copy.dst.index()] = expected[copy.src.index()].clone();
        }
        world.run(&[], &copies)?;
        // NaN need not keep its payload; where one is the other must be.
        let same = |a: &u32, b: &u32| a == b || (f32::from_bits(*a).is_nan() && f32::from_bits(*b).is_nan());
        for (block, (got, want)) in all(&world)?.iter().zip(&expected).enumerate() {
            if !got.iter().zip(want).all(|(got, want)| same(got, want)) {
                return Err(format!("{form:?}: block {block} is wrong after the copies"));
            }
        }
    }
    Ok(())
}

pub(super) fn the_order_of_copies_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    let run = |order: [usize; 3]| {
        let (mut world, blocks) = fed::<H>(dtype, Form::PerLayer)?;
        let copies = [(0, 4), (1, 5), (0, 6)].map(|(s, d)| BlockCopy { src: blocks[s], dst: blocks[d] });
        world.run(&[], &order.map(|i| copies[i]))?;
        // The sequence with its copied blocks, read by its last query.
        world.run(&[Row { seq: 0, start: 9 * world.block_size - 1, len: 1 }], &[])
    };
    let first = run([0, 1, 2])?;
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        equal(&format!("{order:?}"), &first, &run(order)?)?;
    }
    Ok(())
}

/// Copy-on-write as a step has it: the child's open block is copied, then child and parent append in one step.
pub(super) fn a_fork_that_appends_leaves_its_parent_unchanged<H: Harness>(dtype: DType) -> Result<(), String> {
    let model = sample::<H>(dtype);
    let grow = |fork: bool| -> Result<(Outputs, Outputs), String> {
        let mut world = World::<H>::new(model, Content::new(7), 16, &[64, 64], Blocks::Shuffled(2))?;
        world.feed(&[Row { seq: 0, start: 0, len: 37 }])?;
        let mut copies = Vec::new();
        if fork {
            // 37 tokens: blocks 0 and 1 are full and shared, block 2 holds 5 tokens and is copied.
            let parent = world.tables[0].clone();
            let own = world.tables[1][2];
            world.tables[1] = [&parent[..2], &world.tables[1][2..]].concat();
            copies.push(BlockCopy { src: parent[2], dst: own });
        }
        // The child's first new token is sequence 1's; its context, up to 37, is its parent's.
        let mut rows = alloc::vec![Row { seq: 0, start: 37, len: 1 }];
        if fork {
            rows.push(Row { seq: 1, start: 37, len: 2 });
        }
        let first = world.run(&rows, &copies)?;
        let second = world.run(&[Row { seq: 0, start: 38, len: 1 }], &[])?;
        if fork {
            // What the child holds is its parent's context, then its own tokens.
            for position in 0..39 {
                let seq = u32::from(position >= 37);
                for layer in 0..model.layers {
                    let (k, v) = world.storage.read_slot(layer, world.slot(1, position))?;
                    let want = |part, dim| -> Vec<f32> {
                        let token = world.content.token(&model, part, layer, seq, position);
                        token.chunks(ix(dim)).flat_map(|head| model.kept(head)).collect()
                    };
                    if k != want(super::shapes::Part::K, model.k_dim) || v != want(super::shapes::Part::V, model.v_dim)
                    {
                        return Err(format!("the child's position {position} on layer {layer} is wrong"));
                    }
                }
            }
        }
        // Of the first step the parent's row alone.
        let width = model.q_heads(0) * ix(model.v_dim);
        Ok((first.iter().map(|layer| layer[..width].to_vec()).collect(), second))
    };
    let (alone, forked) = (grow(false)?, grow(true)?);
    equal("the step of the fork", &alone.0, &forked.0)?;
    equal("the step after it", &alone.1, &forked.1)
}

/// Random models, batches, cuts into steps, block sizes, tables and layouts against one sequence at a time, one token
/// per step, in blocks of one. The seed is fixed, or `PAGED_KV_SEED`; `PAGED_KV_CASES` asks for more.
pub(super) fn nothing_but_the_context_changes_a_bit<H: Harness>(dtype: DType) -> Result<(), String> {
    let number = |name, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let seed = number("PAGED_KV_SEED", 20_260_202);
    std::println!("PAGED_KV_SEED={seed}");
    for case in 0..number("PAGED_KV_CASES", 12) {
        let mut rng = Rng(seed ^ case << 32);
        let dims = [1 + rng.below(9), 1 + rng.below(150), 8 * (1 + rng.below(16))];
        let mut model = Model::new(dtype, 1 + rng.below(3), 1 + rng.below(12), rng.pick(&dims));
        model.v_dim = rng.pick(&[model.k_dim, dims[0], dims[1], dims[2]]);
        model.scale = rng.pick(&[model.scale, -model.scale, 3.0]);
        let model = H::model(model);
        let content = Content::new(seed ^ case);
        let lens: Vec<_> = (0..1 + rng.below(4)).map(|_| 1 + rng.pick(&[5, 70, 150]).min(rng.below(150))).collect();
        let fault = |what: &str| format!("PAGED_KV_SEED={seed}, case {case}, {lens:?}, {model:?}: {what}");
        let width = ix(model.kv_heads * model.group * model.v_dim);

        let mut alone = Vec::new();
        let mut world = World::<H>::new(model, content, 1, &lens, Blocks::Identity)?;
        for (&len, seq) in lens.iter().zip(0..) {
            let tokens: Result<Vec<_>, _> =
                (0..len).map(|start| world.run(&[Row { seq, start, len: 1 }], &[])).collect();
            alone.push(tokens?.into_iter().flat_map(|mut layers| layers.remove(0)).collect::<Vec<f32>>());
        }
        for _ in 0..3 {
            let other = Model { form: rng.pick(&FORMS), ..model };
            let block_size = rng.pick(&[1, 2, 3, 16, 64, 100, 200]);
            let mut world = World::<H>::new(other, content, block_size, &lens, Blocks::Shuffled(rng.next()))?;
            let mut done = alloc::vec![0; lens.len()];
            while done != lens {
                let mut rows = Vec::new();
                for (seq, (&len, &start)) in (0..).zip(lens.iter().zip(&done)) {
                    let left = len - start;
                    if left > 0 && rng.below(4) > 0 {
                        let most = rng.pick(&[1, 4, 40, 150]);
                        rows.push(Row { seq, start, len: 1 + rng.below(left.min(most)) });
                    }
                }
                rng.shuffle(&mut rows);
                let outputs = world.run(&rows, &[])?;
                let mut outputs = outputs[0].chunks_exact(width);
                for row in rows {
                    let seq = ix(row.seq);
                    for want in alone[seq].chunks_exact(width).skip(ix(row.start)).take(ix(row.len)) {
                        let got = outputs.next().ok_or("outputs are missing")?;
                        if !got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()) {
                            return Err(fault(&format!("{row:?} in {:?}, blocks of {block_size}", other.form)));
                        }
                    }
                    done[seq] += row.len;
                }
            }
        }
    }
    Ok(())
}
