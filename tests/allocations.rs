//! The steady state allocates nothing: counted, not timed.

use paged_kv::cache::{Fit, Release, Row};
use paged_kv::evict::{Adaptive, Evict, Lru};
use paged_kv::step::Padding;
use paged_kv::{CacheConfig, Extra, KvCache, Query, Scope, SeqId, Step};

const BLOCK_SIZE: u32 = 4;
const BATCH: usize = 8;

struct Engine {
    cache: KvCache,
    step: Step,
    prompts: Vec<Vec<u32>>,
}

impl Engine {
    /// A whole life: prompts are admitted, 100 tokens each decoded with a fork on the way, everything written out for
    /// kernels, then freed.
    fn serve(&mut self, round: u32) {
        let Self { cache, step, prompts } = self;
        let mut seqs = [SeqId::from_u64(u64::MAX); BATCH];
        for (seq, prompt) in seqs.iter_mut().zip(prompts.iter()) {
            let created = cache.create(&Scope::default(), prompt, Query::default()).expect("room");
            let rest = &prompt[created.cached_tokens as usize..];
            let id = cache.plan(&[Row::ids(created.seq, rest)], step).expect("room");
            cache.commit_all(id).expect("open");
            *seq = created.seq;
        }
        let fork = cache.fork(seqs[0]).expect("alive");
        for at in 0..100 {
            // Other tokens in every round, so that blocks are evicted and named anew.
            let token = [round * 1_000 + at];
            let mut rows = [Row::ids(fork, &token); BATCH];
            for (row, &seq) in rows.iter_mut().zip(&seqs).skip(1) {
                *row = Row::ids(seq, &token);
            }
            let id = cache.plan(&rows, step).expect("room");
            let (mut slots, mut lens, mut tables) = ([0_i64; BATCH], [0_i32; BATCH], [0_i32; BATCH * 64]);
            step.write_slot_mapping(0..BATCH, Padding::AliasFirst, &mut slots).expect("fits");
            step.write_seq_lens(0..BATCH, Padding::AliasFirst, &mut lens).expect("fits");
            step.write_block_tables(0..BATCH, 64, Padding::AliasFirst, &mut tables).expect("fits");
            cache.commit_all(id).expect("open");
        }
        for seq in seqs.into_iter().chain([fork]) {
            cache.free(seq, Release::Cache).expect("alive");
        }
    }
}

#[test]
fn serving_allocates_nothing_once_buffers_have_grown() {
    let prompts = (0_u32..).take(BATCH).map(|i| (0..150).map(|at| i * 10_000 + at).collect()).collect();
    let cache = KvCache::new(CacheConfig::new(600, BLOCK_SIZE)).expect("valid");
    let mut engine = Engine { cache, step: Step::new(), prompts };
    for round in 0..4 {
        engine.serve(round);
    }
    let evictions = engine.cache.stats().evictions;
    let info = allocation_counter::measure(|| {
        for round in 4..8 {
            engine.serve(round);
        }
    });
    assert!(engine.cache.stats().evictions > evictions, "the pool was full all along");
    assert_eq!(info.count_total, 0, "{info:?}");
}

#[test]
fn a_sequence_that_has_ended_keeps_nothing_of_its_query() {
    let mut cache = KvCache::new(CacheConfig::new(8, BLOCK_SIZE)).expect("valid");
    let extras: Vec<_> = (0..1_000).map(|at| Extra { range: at..at + 1, digest: [0; 32] }).collect();
    let mut once = |extras| {
        let query = Query::default().with_extras(extras);
        let seq = cache.create(&Scope::default(), &[1, 2, 3], query).expect("room").seq;
        cache.free(seq, Release::Cache).expect("alive");
    };
    once(&[]);
    let info = allocation_counter::measure(|| once(&extras));
    assert_eq!(info.bytes_current, 0, "{info:?}");
}

#[test]
fn a_plan_of_much_more_than_there_is_leaves_no_memory_behind() {
    let mut cache = KvCache::new(CacheConfig::new(1_000, BLOCK_SIZE)).expect("valid");
    let prompts: Vec<Vec<u32>> = (0..64).map(|i| (0..3_900).map(|at| i + at * 64).collect()).collect();
    let mut fits = |prompts: &[Vec<u32>]| {
        let create =
            |prompt: &Vec<u32>| cache.create(&Scope::default(), prompt, Query::default()).expect("handles").seq;
        let seqs: Vec<_> = prompts.iter().map(create).collect();
        let rows: Vec<_> = seqs.iter().zip(prompts).map(|(&seq, prompt)| Row::ids(seq, prompt)).collect();
        let fit = cache.fits(&rows).expect("rows are right");
        seqs.into_iter().for_each(|seq| cache.free(seq, Release::Cache).expect("alive"));
        fit
    };
    assert_eq!(fits(&prompts[..1]), Fit::Now);
    let info = allocation_counter::measure(|| assert!(matches!(fits(&prompts), Fit::Later(_))));
    // 62,400 blocks were asked for, and the index takes some 60 bytes for each. What stays are the buffers of the plan, 8
    // bytes each, and those of 64 spare sequences, 16.
    assert!(info.bytes_current < 62_400 * 28, "{info:?}");
}

#[test]
fn a_block_keeps_its_own_extras_and_not_all_of_its_prompt() {
    let mut cache = KvCache::new(CacheConfig::new(64, BLOCK_SIZE)).expect("valid");
    let (mut step, extras) = (Step::new(), (0..10_000).map(|at| Extra::new(at..at + 1, [0; 32])).collect::<Vec<_>>());
    let mut once = |token: u32| {
        let query = Query::default().with_extras(&extras);
        let prompt = [token, 2, 3, 4];
        let seq = cache.create(&Scope::default(), &prompt, query).expect("room").seq;
        let id = cache.plan(&[Row::ids(seq, &prompt)], &mut step).expect("room");
        cache.commit_all(id).expect("open");
        cache.free(seq, Release::Cache).expect("alive");
    };
    once(0);
    let info = allocation_counter::measure(|| (1..33).for_each(&mut once));
    // Four extras of 40 bytes a block, and their place in the index.
    assert!(info.bytes_current < 32 * 1_000, "{info:?}");
}

#[test]
fn sequences_that_have_ended_keep_no_long_buffer_of_tokens() {
    // A prompt that was planned and never committed; its buffer is kept for the next sequence, but not all of it.
    let mut cache = KvCache::new(CacheConfig::new(8_000, BLOCK_SIZE)).expect("valid");
    let (mut step, prompt) = (Step::new(), (0..30_000).collect::<Vec<u32>>());
    let mut once = |sequences: usize| {
        let seqs: Vec<_> = (0..sequences)
            .map(|_| cache.create(&Scope::default(), &prompt, Query::default()).expect("handles are left").seq)
            .collect();
        for &seq in &seqs {
            let id = cache.plan(&[Row::ids(seq, &prompt)], &mut step).expect("room");
            cache.abort(id).expect("open");
        }
        for seq in seqs {
            cache.free(seq, Release::Cache).expect("alive");
        }
    };
    once(1);
    let info = allocation_counter::measure(|| once(32));
    // A table of 7,500 entries is 30 kB, and grows in powers of two; the tokens were 120 kB.
    assert!(info.bytes_current < 32 * 40_000, "{info:?}");
}

#[test]
fn bookkeeping_takes_48_bytes_a_block_beside_the_kept_tokens_and_16_more_where_it_learns() {
    per_block(48.0, Lru::new);
    per_block(64.0, Adaptive::new);
}

fn per_block<E: Evict>(most: f64, policy: impl Fn() -> E) {
    let bytes = |blocks: u32| {
        let mut cache = None;
        let config = CacheConfig::new(blocks, BLOCK_SIZE).with_scratch(false);
        let info = allocation_counter::measure(|| cache = Some(KvCache::with_policy(config, policy()).expect("valid")));
        let mut cache = cache.expect("made");
        // Full of content, so that every block has its place in the index.
        let mut step = Step::new();
        let filled = allocation_counter::measure(|| {
            for from in (0..blocks * BLOCK_SIZE).step_by(4_096) {
                let prompt: Vec<u32> = (from..from + 4_096).collect();
                let seq = cache.create(&Scope::default(), &prompt, Query::default()).expect("room").seq;
                let id = cache.plan(&[Row::ids(seq, &prompt)], &mut step).expect("room");
                cache.commit_all(id).expect("open");
                cache.free(seq, Release::Cache).expect("alive");
            }
        });
        assert_eq!(cache.stats().cached, blocks);
        // And full again of other content, so that every block was evicted.
        let again = allocation_counter::measure(|| {
            for from in (0..blocks * BLOCK_SIZE).step_by(4_096) {
                let prompt: Vec<u32> = (from..from + 4_096).map(|token| token + (1 << 30)).collect();
                let seq = cache.create(&Scope::default(), &prompt, Query::default()).expect("room").seq;
                let id = cache.plan(&[Row::ids(seq, &prompt)], &mut step).expect("room");
                cache.commit_all(id).expect("open");
                cache.free(seq, Release::Cache).expect("alive");
            }
        });
        assert!(cache.stats().evictions >= u64::from(blocks));
        info.bytes_current + filled.bytes_current + again.bytes_current
    };
    // What does not grow with the pool, buffers of plans among it, falls out of the difference. Nine blocks have 16
    // remembered entries, in whole lines, so pools of multiples of nine have no rounding in it.
    let per_block = (bytes(36_864) - bytes(18_432)) as f64 / 18_432.0;
    let tokens = f64::from(BLOCK_SIZE) * 4.0;
    assert!(per_block - tokens <= most, "{per_block} bytes, {tokens} of them tokens");
}
