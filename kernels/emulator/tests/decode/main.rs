//! The decode kernel against float64, on the emulator: what its host code could get wrong is kept out.
#![allow(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod reference;
mod rig;

use common::{begin, configure};
use rig::{Case, Device, Type};

const POOLS: [Type; 3] = [Type::F16, Type::BF16, Type::E4M3];

/// Runs a case, compares, and asks for silence of the emulator.
fn check(device: &Device, case: &Case) -> f64 {
    let outputs = device.run(case);
    let share = reference::check(case, &outputs).unwrap_or_else(|fault| panic!("{fault}\n{case:?}"));
    assert_eq!(cuda_emulator::report(), "", "{case:?}");
    share
}

#[test]
fn every_shape_agrees_with_float64() {
    let _turn = begin("");
    let device = Device::new();
    let before = cuda_emulator::statistics().bank_conflicts;
    let mut worst = [0.0_f64; 3];
    let rows: &[&[(usize, usize)]] = &[
        &[(0, 1), (15, 1), (63, 1)],
        &[(16, 1), (300, 2)],
        &[(0, 17), (64, 3), (31, 1)],
        &[(130, 1)],
        &[(62, 5), (1000, 1)],
    ];
    for (number, pool) in POOLS.into_iter().enumerate() {
        for (at, head_dim) in [64, 128, 256].into_iter().enumerate() {
            for (round, group) in [1, 3, 4, 8, 12, 16, 17, 32].into_iter().enumerate() {
                let mut case = Case::new(pool, head_dim, group, rows[(round + at) % 5]);
                case.q = [Type::F32, Type::F16, Type::BF16][round % 3];
                case.out = [Type::F32, Type::BF16, Type::F16][(round + at) % 3];
                case.block_size = [16, 32, 48][(round + number) % 3];
                case.ctas = [1, 2, 5, 9][round % 4];
                case.stages = 1 + (round + at) % if head_dim == 256 { 3 } else { 4 };
                case.split_tiles = [0, 1, 0, 2][(round + number) % 4];
                if round % 3 == 2 && head_dim < 256 {
                    case.n_tiles = 2;
                }
                worst[number] = worst[number].max(check(&device, &case));
            }
        }
    }
    println!("largest errors, as shares of what is allowed: {POOLS:?} {worst:.3?}");
    assert_eq!(cuda_emulator::statistics().bank_conflicts, before, "conflicts of banks");
}

/// A case of each kind of attention, and of all of them together.
fn variants(base: &Case) -> Vec<Case> {
    let random: rig::Mask = |query, key| (query * 7 + key * 5 + query * key) % 3 != 1;
    let nobody: rig::Mask = |_, _| false;
    let causal: rig::Mask = |query, key| key <= query;
    let mut all = Vec::new();
    for window in [1, 2, 16, 17, 63, 64, 65, 200, 5000] {
        all.push(Case { window, ..base.clone() });
    }
    for scale in [-base.scale, 0.0] {
        all.push(Case { scale, ..base.clone() });
    }
    for mask in [random, nobody, causal] {
        all.push(Case { mask: Some(mask), ..base.clone() });
    }
    all.push(Case { soft_cap: 2.0, ..base.clone() });
    all.push(Case { sinks: true, ..base.clone() });
    all.push(Case { slopes: true, ..base.clone() });
    let both = Case { sinks: true, slopes: true, soft_cap: 3.0, window: 70, ..base.clone() };
    all.push(Case { mask: Some(random), ..both.clone() });
    all.push(both);
    all
}

#[test]
fn every_variant_agrees_with_float64() {
    let _turn = begin("");
    let device = Device::new();
    for (number, pool) in POOLS.into_iter().enumerate() {
        for (round, split_tiles) in [0, 1, 2].into_iter().enumerate() {
            let mut base =
                Case::new(pool, [64, 128][(number + round) % 2], [3, 8, 12][round], &[(0, 5), (280, 1), (130, 70)]);
            base.kv_heads = 1;
            base.q = pool.of_queries();
            (base.split_tiles, base.ctas) = (split_tiles, [9, 3, 9][round]);
            for case in variants(&base) {
                check(&device, &case);
            }
        }
    }
}

/// Rows without keys, steps without rows, a sink that is alone, more CTAs than tiles and one for all of them.
#[test]
fn nothing_is_something_too() {
    let _turn = begin("");
    let device = Device::new();
    check(&device, &Case::new(Type::F16, 64, 4, &[]));
    let nobody: rig::Mask = |_, _| false;
    for (ctas, split_tiles) in [(1, 0), (40, 0), (1, 1), (40, 1)] {
        let mut case = Case::new(Type::BF16, 64, 4, &[(0, 2), (100, 1), (0, 1)]);
        (case.ctas, case.split_tiles, case.sinks, case.mask, case.padding) = (ctas, split_tiles, true, Some(nobody), 5);
        check(&device, &case);
        case.sinks = false;
        check(&device, &case);
        // Every block of a row is one that nobody has.
        let mut case = Case::new(Type::E4M3, 128, 2, &[(20, 1), (90, 1)]);
        (case.ctas, case.split_tiles, case.holes) = (ctas, split_tiles, vec![(0, 0), (0, 1), (1, 3)]);
        check(&device, &case);
    }
}

/// Rows of hundreds, of 256 and more in a step, and contexts of thousands in many pieces.
#[test]
fn long_rows_and_many_rows_agree_with_float64() {
    let _turn = begin("races=0");
    let device = Device::new();
    for (split_tiles, ctas, min_tiles) in [(0, 30, 1), (0, 30, 4), (8, 30, 1), (3, 5, 2)] {
        let mut case = Case::new(Type::F16, 64, 4, &[(4096, 1), (999, 1), (2000, 1)]);
        case.kv_heads = 1;
        (case.split_tiles, case.ctas, case.min_tiles, case.sinks) = (split_tiles, ctas, min_tiles, true);
        check(&device, &case);
        let rows: Vec<_> = (0..300).map(|row| (row % 40, 1 + row % 3)).collect();
        let mut case = Case { rows: Vec::new(), ..case };
        case.rows = rows.iter().map(|&(start, len)| rig::Row { start, len }).collect();
        check(&device, &case);
    }
}

/// Scores of 10⁵, positive and negative, with queries that need no rounding.
#[test]
fn large_scores_agree_with_float64() {
    let _turn = begin("");
    let device = Device::new();
    for pool in POOLS {
        for scale in [1e3, -1e3, 1e5, -1e5] {
            let mut case = Case::new(pool, 128, 4, &[(200, 2), (0, 3)]);
            (case.scale, case.q) = (scale, pool.of_queries());
            check(&device, &case);
        }
    }
}

/// Queries beyond the largest f16 count as that, and do not become infinite.
#[test]
fn queries_beyond_the_range_of_f16_saturate() {
    let _turn = begin("");
    let device = Device::new();
    for pool in [Type::F16, Type::E4M3] {
        let mut case = Case::new(pool, 64, 2, &[(40, 1)]);
        (case.q, case.q_size, case.scale) = (Type::BF16, 1e30, 1e-9);
        let outputs = device.run(&case);
        let tokens = case.q_heads() * case.head_dim;
        assert!(outputs.out[..tokens].iter().all(|x| x.is_finite()), "{pool:?}");
        // All of them are off the range by far, so that only their signs are left.
        assert!(
            outputs.lse[..case.q_heads()].iter().all(|lse| (lse - 41.0_f32.ln()).abs() < 1e-2),
            "{pool:?}: {:?}",
            outputs.lse
        );
    }
}

/// NaN that a query sees is in what comes out; what it does not see is not, even behind its row or before its window.
#[test]
fn nan_is_seen_by_those_who_look() {
    let _turn = begin("");
    let device = Device::new();
    for pool in POOLS {
        for nan_at in [0, 20, 64, 99] {
            let mut case = Case::new(pool, 64, 3, &[(99, 1), (130, 1)]);
            (case.nan_at, case.q) = (Some(nan_at), pool.of_queries());
            check(&device, &case);
            // 99 and 130 see from 40 and from 71 on.
            case.window = 60;
            check(&device, &case);
        }
    }
}

/// With fixed splits no bit depends on the other rows, on how many CTAs there are, on the columns of a span, on the
/// size of blocks, or on how a row is cut into steps.
#[test]
fn with_fixed_splits_nothing_but_the_context_changes_a_bit() {
    let _turn = begin("races=0");
    let device = Device::new();
    for (number, pool) in POOLS.into_iter().enumerate() {
        let lens = [(2300, 1), (700, 1), (0, 40), (130, 5), (513, 3)];
        let mut base = Case::new(pool, 64, [3, 4, 12][number], &lens);
        (base.split_tiles, base.kv_heads, base.sinks, base.window, base.n_tiles) = (8, 1, true, [0, 600, 0][number], 2);
        let width = base.q_heads() * base.head_dim;
        let together = device.run(&base);
        reference::check(&base, &together).unwrap();
        for (ctas, min_tiles) in [(1, 1), (3, 4), (50, 1), (50, 7)] {
            let other = device.run(&Case { ctas, min_tiles, ..base.clone() });
            assert_eq!(other.bits(), together.bits(), "{pool:?}, {ctas} CTAs for {min_tiles} tiles and more");
        }
        for (block_size, n_tiles, stages) in [(32, 2, 1), (128, 1, 4)] {
            let other = device.run(&Case { block_size, n_tiles, stages, ..base.clone() });
            assert_eq!(other.bits(), together.bits(), "{pool:?}, blocks of {block_size}");
        }
        // Each row by itself, its last token by itself. The row's content is its number's: those before it are empty.
        let mut first = 0;
        for (index, &(start, len)) in lens.iter().enumerate() {
            let mut rows: Vec<_> = lens[..index].iter().map(|_| rig::Row { start: 0, len: 0 }).collect();
            rows.push(rig::Row { start: start + len - 1, len: 1 });
            let alone = device.run(&Case { rows, n_tiles: 1 + index % 2, ctas: 13, padding: 0, ..base.clone() });
            let last = first + len - 1;
            let expected = &together.out[last * width..][..width];
            assert!(alone.out.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{pool:?}, row {index}");
            first += len;
        }
    }
}

/// Threads, warps and blocks in any order, copies that land late and early.
#[test]
fn every_order_gives_the_same_bits() {
    let _turn = begin("");
    let device = Device::new();
    for (number, pool) in POOLS.into_iter().enumerate() {
        for split_tiles in [0, 1] {
            let mut case = Case::new(pool, [128, 64, 256][number], 9, &[(150, 2), (0, 1), (70, 1)]);
            (case.kv_heads, case.split_tiles, case.ctas, case.stages) = (1, split_tiles, 3, 2);
            let expected = device.run(&case);
            reference::check(&case, &expected).unwrap();
            for order in ["forward", "reverse", "2", "3", "4"] {
                for copies in ["late", "early", "seeded"] {
                    configure(&format!("order={order},copies={copies}"));
                    assert_eq!(device.run(&case).bits(), expected.bits(), "{order}, {copies}");
                    assert_eq!(cuda_emulator::report(), "", "{order}, {copies}");
                }
            }
        }
    }
}

/// A little of everything, in several orders: what each of the bugs of `kernels/tests/planted.py` must fail.
#[test]
fn what_planted_bugs_meet() {
    let _turn = begin("");
    let device = Device::new();
    let before = cuda_emulator::statistics().bank_conflicts;
    // Those of the library under test, of which not all are there when it was built with a bug.
    let pools = POOLS.into_iter().filter(|pool| {
        std::env::var("PK_PLANTED_POOL").map_or(true, |name| name == format!("{pool:?}").to_lowercase())
    });
    for pool in pools {
        let mut base = Case::new(pool, 64, 9, &[(150, 2), (0, 1), (70, 1)]);
        (base.kv_heads, base.stages, base.sinks, base.q) = (1, 2, true, pool.of_queries());
        let shapes = [(64, 9), (128, 3), (64, 17), (64, 4)];
        for ((split_tiles, ctas), (head_dim, group)) in [(0, 3), (1, 1), (2, 4), (1, 3)].into_iter().zip(shapes) {
            let case = Case { head_dim, group, split_tiles, ctas, ..base.clone() };
            for order in ["forward", "reverse", "5"] {
                for copies in ["late", "early"] {
                    configure(&format!("order={order},copies={copies}"));
                    check(&device, &case);
                }
            }
        }
        configure("");
        let nobody: rig::Mask = |_, _| false;
        check(&device, &Case { window: 40, nan_at: Some(30), ..base.clone() });
        check(&device, &Case { mask: Some(nobody), sinks: false, ..base.clone() });
        check(&device, &Case { holes: vec![(0, 1), (2, 4)], ..base.clone() });
        // Tables that are too short: of the window of 40 keys of a token at 150 there is none, of one at 70 some.
        check(&device, &Case { window: 40, table_len: Some(4), ..base.clone() });
        check(&device, &Case { window: 40, table_len: Some(4), sinks: false, ..base.clone() });
        // Tables that end where their memory does, which is a multiple of 256 bytes, in the middle of a tile.
        let rows = (0..64).map(|_| rig::Row { start: 69, len: 1 }).collect();
        check(&device, &Case { rows, spare_entries: 0, group: 1, ..base.clone() });
    }
    assert_eq!(cuda_emulator::statistics().bank_conflicts, before, "conflicts of banks");
}

/// Rows of as many keys as lie on both sides of the borders of pages and tiles, for groups of all sizes.
#[test]
fn every_length_and_group_agrees_with_float64() {
    let _turn = begin("races=0");
    let device = Device::new();
    let lens = [1, 15, 16, 17, 31, 63, 64, 65, 1000, 4097];
    for (group, n_tiles) in (1..=16).chain([32]).map(|group| (group, 1 + (group > 8) as usize)) {
        let pool = POOLS[group % 3];
        let rows: Vec<_> = lens.iter().skip(group % 2).step_by(2).map(|&len| (len - 1, 1)).collect();
        let mut case = Case::new(pool, 64, group, &rows);
        (case.kv_heads, case.n_tiles, case.ctas) = (1, n_tiles, 11);
        case.split_tiles = [0, 8][group / 2 % 2];
        check(&device, &case);
    }
}
