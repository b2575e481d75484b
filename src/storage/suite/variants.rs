//! Laws of what models ask for beside the softmax of scaled scores: windows, caps, sinks, slopes, masks.

use alloc::format;
use alloc::string::String;

use super::harness::Harness;
use super::laws::{lens, mixed};
use super::shapes::{Content, Mask, Model, Rng, Variant};
use super::world::{Blocks, Outputs, Row, World, bits};
use crate::id::ix;
use crate::layout::DType;

/// One of each kind, and all of them together.
fn all() -> impl Iterator<Item = Variant> {
    let none = Variant::default();
    // Both sides of a block's, a chunk's and a span's border.
    let windows =
        [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 5000].map(|keys| Variant { window: Some(keys), ..none });
    let caps = [0.5, 30.0].map(|cap| Variant { soft_cap: Some(cap), ..none });
    let masks = [Mask::Causal, Mask::Random(5), Mask::Nobody].map(|mask| Variant { mask: Some(mask), ..none });
    let heads = [Variant { sinks: true, ..none }, Variant { alibi: true, ..none }];
    let everything = [Mask::Causal, Mask::Random(6)].map(|mask| Variant {
        window: Some(70),
        soft_cap: Some(5.0),
        sinks: true,
        alibi: true,
        mask: Some(mask),
    });
    windows.into_iter().chain(caps).chain(masks).chain(heads).chain(everything)
}

pub(super) fn every_variant_agrees_with_float64<H: Harness>(dtype: DType) -> Result<(), String> {
    let mut worst = 0.0_f64;
    for (case, variant) in (0_u32..).zip(all()) {
        for (context, group) in [(0, 3), (40, 4), (300, 5), (700, 1)] {
            let mut model = Model::new(dtype, 2, group, 24 + 8 * (case % 3));
            model.variant = variant;
            // Scores of several units, so that caps, sinks and slopes all bear.
            model.scale *= 8.0;
            let rows = mixed(context);
            let blocks = Blocks::Shuffled(u64::from(case));
            let mut world = World::<H>::new(model, Content::new(3), 16, &lens(&rows), blocks)?;
            worst = worst.max(world.check(&rows).map_err(|fault| format!("context {context}: {fault}"))?);
        }
    }
    std::println!("largest error: {worst:.3} of its tolerance");
    Ok(())
}

/// What was written before the window is overwritten with NaN: nobody may look.
pub(super) fn what_lies_outside_the_window_changes_nothing<H: Harness>(dtype: DType) -> Result<(), String> {
    for window in [1, 20, 64, 100, 300] {
        let run = |spoiled: bool| -> Result<_, String> {
            let mut model = Model::new(dtype, 2, 3, 40);
            model.variant.window = Some(window);
            let row = Row { seq: 0, start: 400, len: 9 };
            let mut content = Content::new(7);
            let mut world = World::<H>::new(model, content, 16, &[409], Blocks::Shuffled(1))?;
            // The first query sees window − 1 keys before its own.
            let oldest = 401_u32.saturating_sub(window);
            if oldest < 400 {
                world.feed(&[Row { seq: 0, start: oldest, len: 400 - oldest }])?;
            }
            if spoiled {
                content.nan_from = 0;
            }
            world.content = content;
            if oldest > 0 {
                world.feed(&[Row { seq: 0, start: 0, len: oldest }])?;
            }
            world.content = Content::new(7);
            let outputs = world.run(&[row], &[])?;
            world.compare(&[row], &outputs)?;
            Ok((outputs, world.lse))
        };
        let (clean, spoiled) = (run(false)?, run(true)?);
        if bits(&clean.0) != bits(&spoiled.0) || bits(&clean.1) != bits(&spoiled.1) {
            return Err(format!("a window of {window} looks beyond"));
        }
    }
    Ok(())
}

/// A mask that says what holds without one, a window as wide as the sequence.
pub(super) fn a_variant_that_changes_nothing_changes_no_bit<H: Harness>(dtype: DType) -> Result<(), String> {
    let run = |variant| -> Result<(Outputs, Outputs), String> {
        let mut model = Model::new(dtype, 2, 3, 40);
        model.variant = variant;
        let rows = mixed(300);
        let mut world = World::<H>::new(model, Content::new(7), 16, &lens(&rows), Blocks::Shuffled(4))?;
        world.check(&rows)?;
        let outputs = world.run(&rows, &[])?;
        Ok((outputs, world.lse))
    };
    let none = Variant::default();
    let plain = run(none)?;
    for variant in [Variant { mask: Some(Mask::Causal), ..none }, Variant { window: Some(400), ..none }] {
        let same = run(variant)?;
        if bits(&plain.0) != bits(&same.0) || bits(&plain.1) != bits(&same.1) {
            return Err(format!("{variant:?} changes bits"));
        }
    }
    Ok(())
}

/// Every variant, rows of one step against the same rows alone and in blocks of another size.
pub(super) fn no_variant_depends_on_company_or_blocks<H: Harness>(dtype: DType) -> Result<(), String> {
    for (case, variant) in (0_u64..).zip(all()) {
        let mut rng = Rng(case);
        let mut model = Model::new(dtype, 2, rng.pick(&[1, 3, 4]), 24);
        model.variant = variant;
        let model = H::model(model);
        let rows = mixed(rng.pick(&[10, 90, 600]));
        let run = |block_size, only: Option<Row>| -> Result<_, String> {
            let mut world = World::<H>::new(model, Content::new(7), block_size, &lens(&rows), Blocks::Shuffled(case))?;
            for row in rows.iter().filter(|row| row.start > 0) {
                world.feed(&[Row { start: 0, len: row.start, ..*row }])?;
            }
            world.run(only.as_ref().map_or(&rows[..], core::slice::from_ref), &[])
        };
        let together = run(16, None)?;
        let mut first = 0;
        for row in rows {
            let alone = run(7, Some(row))?;
            let part = &together[0][first..][..alone[0].len()];
            if !part.iter().zip(&alone[0]).all(|(a, b)| a.to_bits() == b.to_bits()) {
                return Err(format!("{variant:?}: {row:?} alone differs"));
            }
            first += ix(row.len) * model.q_heads(0) * ix(model.v_dim);
        }
    }
    Ok(())
}
