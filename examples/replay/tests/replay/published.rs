//! Mooncake's conversation trace against values that others found.

use std::io::Write;
use std::path::{Path, PathBuf};

use replay::policy::Policy;
use replay::report::ResultRow;
use replay::trace::Trace;

use crate::plain;

/// The trace, or `None`, said aloud, where `PAGED_KV_DATA` names no folder with it.
pub(crate) fn mooncake() -> Option<PathBuf> {
    let skip = |why: &str| {
        // Past the test runner, which keeps to itself what a passing test prints.
        let _ = writeln!(std::io::stderr(), "SKIPPED, no published hit rates: {why}");
        None
    };
    let Some(data) = std::env::var_os("PAGED_KV_DATA") else {
        return skip("PAGED_KV_DATA is not set");
    };
    let path = Path::new(&data).join("traces/mooncake_conversation.jsonl");
    if path.is_file() { Some(path) } else { skip(&format!("{} is not there", path.display())) }
}

/// A rate is the published one, of so many digits behind the point, in percent.
#[track_caller]
fn is(rate: f64, published: f64, digits: i32) {
    let percent = 100.0 * rate;
    assert!((percent - published).abs() <= 0.5 * 10f64.powi(-digits) + 1e-9, "{percent} is not {published}");
}

#[test]
fn hit_rates_of_mooncakes_conversations_are_the_published_ones() {
    let Some(path) = mooncake() else { return };
    let trace = Trace::open(&path, None, false).unwrap();
    assert_eq!((trace.len(), trace.mismatched()), (12_031, 0));
    let capacities = [1000, 2000, 5000, 10_000, 20_000];
    let rows = replay::replay(&trace, &capacities, &[Policy::Lru, Policy::BeladyHeld, Policy::Belady]).unwrap();
    let [lru, optimum] = [[4.45, 5.4, 11.2, 21.2, 28.8], [19.1, 25.5, 34.1, 36.6, 36.6]];
    for (index, row) in rows.chunks_exact(3).enumerate() {
        is(row[0].block_hit_rate, lru[index], if index == 0 { 2 } else { 1 });
        is(row[2].block_hit_rate, optimum[index], 1);
        assert!(row[0].hit_blocks < row[1].hit_blocks && row[1].hit_blocks <= row[2].hit_blocks);
        // Nobody published these; they are the program's own, for whoever changes it.
        is(row[1].block_hit_rate, [17.92, 24.94, 33.97, 36.64, 36.64][index], 2);
    }
    // A trace says nothing about what to keep, which leaves `priority` with LRU's order.
    for pair in replay::replay(&trace, &capacities, &[Policy::Lru, Policy::Priority]).unwrap().chunks_exact(2) {
        let counts = |row: &ResultRow| (row.hit_blocks, row.hit_tokens, row.evictions);
        assert_eq!(counts(&pair[0]), counts(&pair[1]), "{} blocks", pair[0].capacity);
    }
    for policy in Policy::ALL {
        let row = &replay::replay(&trace, &[1 << 30], &[policy]).unwrap()[0];
        is(row.block_hit_rate, 36.64, 2);
        is(row.token_hit_rate, 37.36, 2);
        is(row.request_hit_rate, 40.94, 2);
        assert_eq!((row.evictions, row.refused), (0, 0));
    }
}

#[test]
fn the_cache_plays_mooncakes_conversations_as_a_plain_simulation_does() {
    let Some(path) = mooncake() else { return };
    let trace = Trace::open(&path, None, false).unwrap();
    for capacity in [200, 1000, 10_000] {
        let row = &replay::replay(&trace, &[capacity], &[Policy::Lru]).unwrap()[0];
        assert_eq!((row.hit_blocks, row.evictions), plain::lru(&trace, capacity as usize), "{capacity} blocks");
        assert_eq!(row.refused > 0, capacity == 200);
    }
}
