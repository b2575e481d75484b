//! Laws of sequences that have a prefix in common, and the blocks of it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::harness::Harness;
use super::laws::lens;
use super::shapes::{Content, FORMS, Mask, Model, Rng, Trunk, Variant};
use super::world::{Blocks, Outputs, Row, World, bits};
use crate::id::{ix, len32};
use crate::layout::DType;

const ROWS: [u32; 6] = [2, 40, 3, 17, 5, 8];
/// Both sides of the border of 256 positions, and some of such.
const PREFIXES: [u32; 5] = [255, 256, 257, 512, 1000];
const BLOCK_SIZES: [u32; 3] = [1, 16, 32];
const GROUPS: [u32; 3] = [1, 4, 7];

/// Kinds of attention: prefixes that all see, some do, and nobody does.
fn variants() -> [Variant; 9] {
    let none = Variant::default();
    [
        none,
        Variant { window: Some(2000), ..none },
        Variant { alibi: true, ..none },
        Variant { window: Some(700), ..none },
        Variant { soft_cap: Some(2.0), ..none },
        Variant { mask: Some(Mask::Random(5)), ..none },
        Variant { sinks: true, ..none },
        Variant { window: Some(90), ..none },
        Variant { window: Some(1500), soft_cap: Some(5.0), sinks: true, alibi: true, mask: Some(Mask::Random(6)) },
    ]
}

/// Sequences with a trunk, of `prefix` tokens for all of them and, in some cases, 300 more for every three; one row of
/// each, most of them of one token, some of several, one that begins in the trunk, and one as long as a prompt.
fn batch(case: usize) -> (Content, Vec<Row>) {
    let prefix = PREFIXES[case % 5];
    let mut rng = Rng(case as u64);
    let mut content = Content::new(11);
    content.trunks = [Trunk { len: prefix, of: u32::MAX }, Trunk { len: prefix + 300, of: 3 }];
    if case.is_multiple_of(2) {
        content.trunks[1].len = 0;
    }
    let rows = (0..ROWS[case % 6]).map(|seq| {
        let start = content.trunks[1].len.max(prefix) + rng.below(40);
        match seq {
            4 => Row { seq, start: prefix / 2, len: 2 },
            6 => Row { seq, start, len: 20 },
            _ => Row { seq, start, len: rng.pick(&[1, 1, 1, 2, 5]) },
        }
    });
    (content, rows.collect())
}

/// The outputs and log-sum-exps of a batch after what comes before it.
fn outputs<H: Harness>(
    model: Model,
    content: Content,
    block_size: u32,
    rows: &[Row],
    share: bool,
) -> Result<(World<H>, Outputs), String> {
    let mut in_order = rows.to_vec();
    in_order.sort_unstable_by_key(|row| row.seq);
    let mut world = World::<H>::new(model, content, block_size, &lens(&in_order), Blocks::Shuffled(8))?;
    if share {
        world.share();
    }
    world.feed(&in_order.iter().map(|row| Row { start: 0, len: row.start, ..*row }).collect::<Vec<_>>())?;
    let outputs = world.run(rows, &[])?;
    Ok((world, outputs))
}

/// Rows over shared blocks against float64, and against the same rows over copies of their own. The lists are walked with
/// steps that are prime to each other, each value at least once.
pub(super) fn blocks_that_sequences_share_change_no_bit<H: Harness>(dtype: DType) -> Result<(), String> {
    for case in 0..18 {
        let (content, rows) = batch(case);
        let mut model = Model::new(dtype, 1 + u32::from(case % 4 == 0), GROUPS[case % 3], 8 + 4 * len32(case % 5));
        model.variant = variants()[case % 9];
        model.form = FORMS[case % 4];
        // Scores of several units, so that no key is as good as another.
        model.scale *= 8.0;
        let block_size = BLOCK_SIZES[case / 3 % 3];
        let fault = |fault| format!("case {case}, blocks of {block_size}: {fault}");
        let (shared, together) = outputs::<H>(model, content, block_size, &rows, true)?;
        shared.compare(&rows, &together).map_err(fault)?;
        let (copies, apart) = outputs::<H>(model, content, block_size, &rows, false)?;
        if bits(&together) != bits(&apart) || bits(&shared.lse) != bits(&copies.lse) {
            return Err(fault(format!("the bits differ, {model:?}")));
        }
    }
    Ok(())
}

/// The rows of a batch in other orders.
pub(super) fn the_order_of_rows_that_share_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    for case in [3, 5] {
        let (content, rows) = batch(case);
        let model = H::model(Model::new(dtype, 2, 3, 12));
        let by_row = |rows: &[Row]| -> Result<Vec<(u32, Vec<u32>)>, String> {
            let (_, outputs) = outputs::<H>(model, content, 16, rows, true)?;
            let mut all = bits(&outputs).into_iter();
            let width = model.q_heads(0) * ix(model.v_dim);
            let mut parts: Vec<_> =
                rows.iter().map(|row| (row.seq, all.by_ref().take(ix(row.len) * width).collect())).collect();
            parts.sort_unstable();
            Ok(parts)
        };
        let first = by_row(&rows)?;
        for seed in 0..3 {
            let mut other = rows.clone();
            Rng(seed).shuffle(&mut other);
            if by_row(&other)? != first {
                return Err(format!("case {case}: in another order the bits differ"));
            }
        }
    }
    Ok(())
}
