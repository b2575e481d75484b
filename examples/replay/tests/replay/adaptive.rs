//! `adaptive` beside LRU: what it must reach, and what it may lose.

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use replay::policy::Policy;
use replay::trace::Trace;

use crate::published::mooncake;
use crate::traffic;

#[test]
fn adaptive_finds_as_much_of_mooncakes_conversations_as_it_is_said_to() {
    let Some(path) = mooncake() else { return };
    let trace = Trace::open(&path, None, false).unwrap();
    let least = [(1000, 8.1), (2000, 11.3), (5000, 16.9), (10_000, 23.0), (20_000, 30.0)];
    let rows = replay::replay(&trace, &least.map(|(capacity, _)| capacity), &[Policy::Adaptive]).unwrap();
    for (row, (capacity, least)) in rows.iter().zip(least) {
        let percent = 100.0 * row.block_hit_rate;
        assert!(percent >= least, "{capacity} blocks: {percent:.2} %, not {least}");
    }
}

#[test]
fn adaptive_loses_no_more_than_half_a_point_against_lru_on_any_kind_of_traffic() {
    let kinds = traffic::kinds();
    let rows: Vec<_> = kinds
        .par_iter()
        .map(|kind| replay::replay(&kind.trace(), &kind.capacities, &[Policy::Lru, Policy::Adaptive]).unwrap())
        .collect();
    let (mut gains, mut pairs) = (0.0, 0.0);
    for (kind, rows) in kinds.iter().zip(rows) {
        for pair in rows.chunks_exact(2) {
            let [lru, own] = [&pair[0], &pair[1]];
            let blocks = 100.0 * (own.block_hit_rate - lru.block_hit_rate);
            let requests = 100.0 * (own.request_hit_rate - lru.request_hit_rate);
            assert!(
                blocks.min(requests) >= -0.5,
                "{}, {} blocks: {blocks:+.2}, {requests:+.2}",
                kind.name,
                own.capacity
            );
            (gains, pairs) = (gains + blocks, pairs + 1.0);
        }
    }
    // And it is worth having: 3.7 points in the mean over all of these, most of which LRU is best at.
    assert!(gains / pairs > 3.0, "{}", gains / pairs);
}
