use super::super::suite::{Bench, store};
use super::*;

fn record(bench: &Bench<Adaptive>, block: u32) -> Record {
    bench.policy.records[ix(block)]
}

/// Stores a chain with one token a block, the block's number, behind a block or none.
fn store_chain(bench: &mut Bench<Adaptive>, mut parent: Option<u32>, blocks: core::ops::Range<u32>) {
    for block in blocks {
        bench.store(block, parent, &[block]);
        parent = Some(block);
    }
}

fn pass(bench: &mut Bench<Adaptive>, blocks: u32) {
    (0..blocks).for_each(|_| bench.policy.pass_time());
}

#[test]
fn a_list_is_of_a_class_of_gaps_and_a_level() {
    assert_eq!([0, 4, 5, 6, 11, 12, 13, 15].map(class_of), [0, 0, 0, 1, 6, 7, 7, 7]);
    let mut expected = 0;
    for gap in 5..13 {
        for level in 0..16 {
            let mut record = Record::new(0);
            record.set_gap(gap);
            record.set_level(level);
            assert_eq!(Adaptive::list_of(record), expected);
            expected += 1;
        }
    }
}

#[test]
fn the_rank_is_the_wait_by_the_worth_and_the_age_alone_of_what_a_bound_policy_must_keep() {
    let mut policy = Adaptive::new();
    policy.start(512).unwrap();
    let mut links = Links::new(512).unwrap();
    let mut ranks = |gap: u8, age: u16, bound: bool| {
        let mut ranks = [0; LEVELS];
        for (level, rank) in (0..).zip(&mut ranks) {
            let list = gap << 4 | level;
            assert_eq!(policy.rank(list), 0);
            policy.lists[usize::from(list)].push_back(&mut links, 3);
            policy.clock.now = policy.records[3].since() + age;
            if bound {
                // One block behind, of one.
                policy.trust.block(true, false);
                policy.weigh();
            }
            *rank = policy.rank(list);
            policy.lists[usize::from(list)].remove(&mut links, 3);
        }
        ranks
    };
    // Classes begin at half a turnover.
    let never = ranks(0, 0, false)[0];
    for (gap, age, wait) in [(0, 0, 256), (0, 300, 300), (2, 300, 1024), (7, 65_535, 65_535)] {
        let found = ranks(gap, age, false);
        for (level, rank) in (1..).zip(&found[1..]) {
            // Half an octave a level; and above every age.
            let expected = f64::from(wait) * 2f64.powf(20.0 - f64::from(level) / 2.0) + f64::from(1 << 17);
            assert!((*rank as f64 / expected - 1.0).abs() < 1e-3, "gap {gap}, age {age}, level {level}: {rank}");
        }
        // What never comes back goes before all else.
        assert!(never > found[1]);
    }
    for age in [0, 300, u16::MAX] {
        assert_eq!(ranks(2, age, true), [u64::from(age) + 1; LEVELS]);
    }
}

#[test]
fn the_wait_is_the_gap_or_the_age_and_bends_at_the_gap_where_lru_lives_nearly_as_long() {
    let waits = |life| [0, 500, 1000, 4000, 16_000].map(|age| wait(age, 1000, life));
    assert_eq!(waits(Life::Short), [1000, 1000, 1000, 4000, 16_000]);
    assert_eq!(waits(Life::Long), [500, 500, 1000, 4000, 16_000]);
    // By 4^(1/4), which is 1.414 (362 / 256), and by 16^(1/4).
    assert_eq!(waits(Life::Middle), [1000, 875, 1000, 4000 * 362 / 256, 32_000]);
    // The ratio is rounded down to a quarter of its octave: 5/4 of it at most.
    for age in 1000..=u16::MAX {
        let exact = f64::from(age) * (f64::from(age) / 1000.0).powf(0.25);
        let found = wait(age, 1000, Life::Middle) as f64;
        assert!(found <= exact + 1.0 && found * 1.25_f64.powf(0.25) >= exact * 0.99, "{age}: {found}, {exact}");
    }
}

#[test]
fn what_was_found_often_outlives_a_scan_of_two_turnovers() {
    // Blocks 1 to 63 hold what is new again and again, block 0 is found in between: every 20 blocks or so.
    let mut bench = Bench::new(Adaptive::new(), 64);
    store(&mut bench, &[0]);
    bench.idle(&[0]);
    let mut token = 1000;
    let mut scan = |bench: &mut Bench<Adaptive>, blocks: u32, free: &mut alloc::vec::Vec<u32>| {
        for _ in 0..blocks {
            bench.request();
            let Some(block) = free.pop().or_else(|| bench.evict()) else { return false };
            if block == 0 {
                return false;
            }
            token += 1;
            bench.store(block, None, &[token]);
            bench.idle(&[block]);
        }
        true
    };
    let mut free = (1..64).collect();
    // For as long as it takes until the account has a few blocks to spare: a 384th of 4,200.
    for _ in 0..200 {
        assert!(scan(&mut bench, 20, &mut free));
        bench.request();
        bench.revive(0);
        assert_eq!(record(&bench, 0).state(), State::FoundKept);
        bench.idle(&[0]);
    }
    // It is worth at least 31^(1/2), by class 2^(9/4), of the oldest of the others, which is a turnover old. LRU would
    // take it after 63 blocks.
    assert!(scan(&mut bench, 128, &mut free));
    bench.revive(0);
    assert_eq!(record(&bench, 0).state(), State::Found);
}

#[test]
fn whether_lru_would_have_found_a_block_is_settled_when_it_was_idle_last() {
    use State::{Found, FoundKept, Fresh, Restored, RestoredKept};
    let mut bench = Bench::new(Adaptive::new(), 64);
    store(&mut bench, &[0]);
    pass(&mut bench, 10);
    // Of what is new, LRU would have kept it too.
    let pairs =
        [(Fresh, FoundKept), (Restored, Found), (RestoredKept, FoundKept), (Found, Found), (FoundKept, FoundKept)];
    for (held, found) in pairs {
        bench.policy.records[0].set_state(held);
        bench.revive(0);
        assert_eq!((record(&bench, 0).state(), record(&bench, 0).since()), (found, 10));
    }
}

#[test]
fn a_list_that_others_overtook_is_no_choice_after_16_blocks_more() {
    let mut bench = Bench::new(Adaptive::new(), 64);
    store(&mut bench, &[0, 1]);
    // LRU evicts nothing, so half the gap counts: of 32 blocks for one, of 256 for the other.
    bench.policy.learned.first_gap = 5;
    bench.idle(&[0]);
    pass(&mut bench, 119);
    bench.policy.learned.first_gap = 8;
    bench.idle(&[1]);
    // Block 0 is 120 blocks old.
    assert_eq!(bench.victim(), Some(1));
    pass(&mut bench, 17);
    assert_eq!(bench.victim(), Some(0));
    // And no list stays marked that is empty.
    bench.drain();
    assert_eq!(bench.policy.filled, 0);
}

#[test]
fn of_a_chain_the_last_two_blocks_and_every_sixth_are_sampled() {
    let mut bench = Bench::new(Adaptive::new(), 64);
    let sampled = |bench: &Bench<Adaptive>, blocks: core::ops::Range<u32>| -> Vec<u32> {
        let sampled = |&block: &u32| record(bench, block).state() == State::Sampled;
        blocks.clone().rev().filter(sampled).map(|block| blocks.end - 1 - block).collect()
    };
    bench.request();
    store_chain(&mut bench, None, 0..24);
    bench.idle(&(0..24).rev().collect::<Vec<_>>());
    assert_eq!(sampled(&bench, 0..24), [0, 1, 5, 11, 17, 23]);
    // The end is a kind of its own, and 24 new blocks are five binary digits.
    let kinds = |bench: &Bench<Adaptive>| [23, 22, 12, 3, 2, 0].map(|block| record(bench, block).kind());
    assert_eq!(kinds(&bench), [0, 5, 5, 5, 5, 5]);
    assert_eq!([0, 5].map(|kind| bench.policy.learned.odds(1, kind).idle), [1, 5]);

    // A request of its beginning alone begins anew, with nothing new, and its last block is no end of a chain. Of
    // what it finds, block 0 was a sample.
    bench.request();
    (0..4).for_each(|block| bench.revive(block));
    assert_eq!(bench.policy.learned.odds(1, 5).back, 1);
    bench.idle(&[3, 2, 1, 0]);
    assert_eq!(sampled(&bench, 0..4), [0, 1]);
    assert_eq!(kinds(&bench), [0, 5, 5, 1, 1, 1]);

    // One that adds three blocks.
    bench.request();
    (0..4).for_each(|block| bench.revive(block));
    store_chain(&mut bench, Some(3), 30..33);
    bench.idle(&[32, 31, 30, 3, 2, 1, 0]);
    assert_eq!([32, 31, 30].map(|block| record(&bench, block).kind()), [0, 2, 2]);
    assert_eq!(kinds(&bench), [0, 5, 5, 2, 2, 2]);

    // Two that end within one request are two chains.
    bench.request();
    store_chain(&mut bench, None, 40..43);
    store_chain(&mut bench, None, 50..51);
    bench.idle(&[42, 41, 40, 50]);
    assert_eq!([42, 41, 40, 50].map(|block| record(&bench, block).kind()), [0, 2, 2, 0]);
}

#[test]
fn a_chain_that_is_computed_again_is_as_old_as_what_is_remembered_of_it() {
    let mut bench = Bench::new(Adaptive::new(), 64);
    bench.request();
    store_chain(&mut bench, None, 0..24);
    bench.idle(&(0..24).rev().collect::<Vec<_>>());
    assert_eq!(bench.drain().len(), 24);
    // A turnover later, with six blocks more.
    pass(&mut bench, 64 - 24);
    bench.request();
    store_chain(&mut bench, None, 0..30);
    bench.idle(&(0..30).rev().collect::<Vec<_>>());
    let known = |block| (record(&bench, block).uses(), record(&bench, block).gap());
    let found: Vec<_> = (0..30).map(known).collect();
    // Nothing is known of what is new but the gap to begin with, which is a turnover.
    assert_eq!(found, [[(2, 6); 24].as_slice(), &[(1, 6); 6]].concat());
    // First gaps, all of a turnover or so.
    assert_eq!(bench.policy.learned.first_gaps.iter().sum::<u32>(), 24);
    assert_eq!(bench.policy.learned.first_gaps[6], 24);
    // Six samples of one use came back: the end and five of others.
    assert_eq!([0, 5].map(|kind| bench.policy.learned.odds(1, kind).back), [1, 5]);
}

#[test]
fn what_is_remembered_of_evicted_content_is_its_uses_kind_gap_and_age() {
    for (uses, kind, gap) in [(1, 0, 5), (2, 1, 12), (3, 5, 6), (12, 2, 9), (15, 7, 11), (31, 7, 15)] {
        let mut bench = Bench::new(Adaptive::new(), 512);
        store(&mut bench, &[0, 1]);
        let evict = |bench: &mut Bench<Adaptive>, block: u32, state: State| {
            let record = &mut bench.policy.records[ix(block)];
            record.set_uses(uses);
            record.set_kind(kind);
            record.set_gap(gap);
            record.set_state(state);
            record.set_since(bench.policy.clock.now);
            bench.policy.evicted(BlockId::new(block));
        };
        evict(&mut bench, 0, State::Sampled);
        evict(&mut bench, 1, State::Idle);
        pass(&mut bench, 1000);
        bench.store(2, None, &[0]);
        bench.store(3, None, &[1]);
        let found = record(&bench, 2);
        // Of uses four bits are kept, and of gaps eight octaves.
        assert_eq!((found.uses(), found.kind(), found.gap()), (uses.min(15), kind, gap.min(12)));
        // Half a unit, a 32nd of a turnover.
        assert!(bench.policy.clock.now.wrapping_sub(found.since()).abs_diff(1000) <= 16, "{}", found.since());
        assert_eq!(found.state(), State::RestoredKept);
        assert_eq!(bench.policy.learned.odds(uses, kind).back, 1);
        // What was no sample is new.
        assert_eq!((record(&bench, 3).uses(), record(&bench, 3).state()), (1, State::Fresh));
    }
}

#[test]
fn the_memory_forgets_before_its_clock_comes_round() {
    // 4,096 blocks, 8 of which are a tick: a rough time of 9 bits comes round after 16,384 ticks, 32 turnovers.
    let mut bench = Bench::new(Adaptive::new(), 4096);
    let evict = |bench: &mut Bench<Adaptive>| {
        for block in 0..100 {
            store(bench, &[block]);
            let record = &mut bench.policy.records[ix(block)];
            record.set_state(State::Sampled);
            record.set_since(0);
            bench.policy.evicted(BlockId::new(block));
        }
    };
    let remembered = |bench: &Bench<Adaptive>| {
        let mut ghost = bench.policy.ghost.clone();
        (0..100).filter(|&block| ghost.take(record(bench, block).key()).is_some()).count()
    };
    evict(&mut bench);
    pass(&mut bench, 4096 * 28 - 256);
    assert_eq!(remembered(&bench), 100);
    pass(&mut bench, 4096 * 3);
    assert_eq!(remembered(&bench), 0);
    // What is as old when it is evicted is not remembered at all.
    evict(&mut bench);
    assert_eq!(remembered(&bench), 0);
}

#[test]
fn a_bucket_sweeps_a_64th_of_the_memory_and_a_line() {
    // 8 bytes a block are 910 lines of 36, of which a 64th is 14, and 16 ticks of 8 blocks are a bucket.
    let mut bench = Bench::new(Adaptive::new(), 4096);
    for buckets in 1..100 {
        pass(&mut bench, 16 * 8);
        assert_eq!(bench.policy.sweep, buckets * 15 % 910);
    }
}

#[test]
fn the_account_is_looked_at_with_the_first_block_of_a_chain_and_every_eighth_behind_it() {
    for looks in [0, 8, 16] {
        let mut bench = Bench::new(Adaptive::new(), 64);
        bench.request();
        store_chain(&mut bench, None, 0..24);
        bench.idle(&(24 - looks..24).rev().collect::<Vec<_>>());
        assert!(!bench.policy.trust.is_bound());
        // A block is lost, of less than 384.
        bench.policy.trust.block(true, false);
        bench.idle(&[23 - looks]);
        assert!(bench.policy.trust.is_bound(), "{looks} blocks behind");
    }
}

#[test]
fn conclusions_are_drawn_four_times_a_turnover() {
    let mut bench = Bench::new(Adaptive::new(), 1024);
    for turn in 0..40 {
        let octave = 2 + turn % 2 * 5;
        bench.policy.learned.first_gaps = [0; 16];
        bench.policy.learned.first_gaps[octave] = 64;
        pass(&mut bench, 255);
        assert_ne!(usize::from(bench.policy.learned.first_gap), octave);
        pass(&mut bench, 1);
        assert_eq!(usize::from(bench.policy.learned.first_gap), octave);
    }
}

#[test]
fn the_gap_is_the_running_mean_of_a_third_each_and_no_longer_than_that_of_what_is_behind() {
    let mut bench = Bench::new(Adaptive::new(), 512);
    store(&mut bench, &[0]);
    bench.idle(&[0]);
    // (2 × 512 + 4096) / 3 is 3.3 turnovers, and (2 × 2048 + 128) / 3 is 2.75.
    for (uses, age, octave) in [(2, 512, 6), (3, 4096, 8), (4, 128, 7)] {
        pass(&mut bench, age - 1);
        bench.revive(0);
        bench.idle(&[0]);
        assert_eq!((record(&bench, 0).uses(), record(&bench, 0).gap()), (uses, octave));
    }
    // Only the first was a first one.
    let first = bench.policy.learned.first_gaps;
    assert_eq!((first[6], first.iter().sum::<u32>()), (1, 1));

    bench.request();
    store_chain(&mut bench, Some(0), 1..2);
    let behind = &mut bench.policy.records[1];
    behind.set_state(State::Restored);
    behind.set_uses(5);
    behind.set_gap(5);
    behind.set_since(bench.policy.clock.now.wrapping_sub(256));
    bench.revive(0);
    bench.idle(&[1, 0]);
    assert_eq!((record(&bench, 1).gap(), record(&bench, 0).gap()), (5, 5));
}

#[test]
fn uses_are_counted_up_to_31() {
    let mut bench = Bench::new(Adaptive::new(), 64);
    store(&mut bench, &[0]);
    for uses in 1..40 {
        bench.idle(&[0]);
        assert_eq!(record(&bench, 0).uses(), uses.min(31));
        bench.revive(0);
    }
}
