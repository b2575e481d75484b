//! Any sequence of calls, with any arguments, leaves the cache whole.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use paged_kv::cache::{Outcome, Release, Row, ViewRow};
use paged_kv::{CacheConfig, Extra, KvCache, Query, Scope, SeqId, Step, StepId};

#[derive(Arbitrary, Debug)]
struct Input {
    num_blocks: u8,
    block_size: u8,
    scratch: bool,
    withhold: bool,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
struct PlannedRow {
    seq: u8,
    tokens: u8,
    by_count: bool,
    drafts: u8,
    lookahead: u32,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Create { salt: u8, tokens: Vec<u8>, extra: Option<(u8, u8)>, no_cut: Option<(u8, u8)>, max_hit: Option<u32>, private: bool },
    Blank,
    Plan(Vec<PlannedRow>),
    Fits(Vec<PlannedRow>),
    Commit { step: u8, outcomes: Vec<(u8, u8)> },
    CommitAll { step: u8 },
    Abort { step: u8 },
    AbortAll,
    Retire { step: u8 },
    Fork { seq: u8, children: u8 },
    Select { beams: Vec<u8>, parents: Vec<u8> },
    Truncate { seq: u8, len: u32 },
    Free { seq: u8, discard: bool },
    Reserve { seq: u8, tokens: u32 },
    View { seq: u8, start: u32, len: u32 },
    Stale { bits: u64 },
}

/// Tokens that repeat, so that prefixes do.
const TOKENS: [u32; 256] = {
    let mut tokens = [0; 256];
    let mut at = 0;
    while at < 256 {
        tokens[at] = (at % 3) as u32;
        at += 1;
    }
    tokens
};

fuzz_target!(|input: Input| {
    let config = CacheConfig::new(u32::from(input.num_blocks), u32::from(input.block_size % 6))
        .with_scratch(input.scratch)
        .with_withhold(input.withhold);
    let Ok(mut cache) = KvCache::new(config) else { return };
    let (mut seqs, mut steps, mut step): (Vec<SeqId>, Vec<StepId>, Step) = Default::default();
    for op in input.ops.into_iter().take(64) {
        let pick = |at: u8| seqs.get(usize::from(at) % seqs.len().max(1)).copied().unwrap_or(SeqId::from_u64(at.into()));
        let pick_step = |at: u8| steps.get(usize::from(at) % steps.len().max(1)).copied().unwrap_or(StepId::new(at.into()));
        match op {
            Op::Create { salt, tokens, extra, no_cut, max_hit, private } => {
                let tokens: Vec<u32> = tokens.iter().map(|&token| u32::from(token % 3)).collect();
                let extras: Vec<_> = extra
                    .map(|(start, end)| Extra { range: start.into()..end.into(), digest: [start; 32] })
                    .into_iter()
                    .collect();
                let no_cut: Vec<_> = no_cut.map(|(start, end)| start.into()..end.into()).into_iter().collect();
                let mut query = Query::default().with_extras(&extras).with_no_cut(&no_cut).with_private(private);
                query.max_hit = max_hit;
                let scope = Scope::default().with_salt(&[salt % 2]);
                let peeked = cache.peek(&scope, &tokens, query);
                if let Ok(created) = cache.create(&scope, &tokens, query) {
                    assert!(created.cached_tokens <= peeked.expect("as create").cached_tokens);
                    seqs.push(created.seq);
                }
            }
            Op::Blank => seqs.extend(cache.create_blank(&Scope::default())),
            Op::Plan(rows) => {
                let rows: Vec<_> = rows.iter().map(|row| planned(row, pick(row.seq))).collect();
                if let Ok(id) = cache.plan(&rows, &mut step) {
                    steps.push(id);
                    let mut bytes = Vec::new();
                    step.encode(&mut bytes);
                    let mut copy = Step::new();
                    assert_eq!(copy.decode(&bytes, u32::MAX), Ok(bytes.len()));
                    assert_eq!(copy, step);
                }
            }
            Op::Fits(rows) => {
                let rows: Vec<_> = rows.iter().map(|row| planned(row, pick(row.seq))).collect();
                let _ = cache.fits(&rows);
            }
            Op::Commit { step, outcomes } => {
                let outcomes: Vec<_> = outcomes
                    .iter()
                    .map(|&(kind, count)| match kind % 3 {
                        0 => Outcome::All,
                        1 => Outcome::Accept(count.into()),
                        _ => Outcome::Ids(&TOKENS[..count.into()]),
                    })
                    .collect();
                let _ = cache.commit(pick_step(step), &outcomes);
            }
            Op::CommitAll { step } => drop(cache.commit_all(pick_step(step))),
            Op::Abort { step } => drop(cache.abort(pick_step(step))),
            Op::AbortAll => cache.abort_all(),
            Op::Retire { step } => drop(cache.retire(pick_step(step))),
            Op::Fork { seq, children } => {
                let mut forks = vec![pick(seq); usize::from(children % 4)];
                if cache.fork_into(pick(seq), &mut forks).is_ok() {
                    seqs.extend(forks);
                }
            }
            Op::Select { beams, parents } => {
                let mut beams: Vec<_> = beams.into_iter().take(8).map(pick).collect();
                let parents: Vec<_> = parents.into_iter().take(8).map(usize::from).collect();
                if cache.select(&mut beams, &parents).is_ok() {
                    seqs.extend(beams);
                }
            }
            Op::Truncate { seq, len } => drop(cache.truncate(pick(seq), len % 64)),
            Op::Free { seq, discard } => {
                let release = if discard { Release::Discard } else { Release::Cache };
                let _ = cache.free(pick(seq), release);
            }
            Op::Reserve { seq, tokens } => drop(cache.reserve(pick(seq), tokens)),
            Op::View { seq, start, len } => {
                let rows = [ViewRow { seq: pick(seq), start: start % 64, len: len % 64 }];
                let mut view = Step::new();
                let _ = cache.view(&rows, &mut view);
            }
            Op::Stale { bits } => drop(cache.free(SeqId::from_u64(bits), Release::Cache)),
        }
        cache.check_integrity().expect("whole");
    }
    for seq in seqs {
        let _ = cache.free(seq, Release::Cache);
    }
    cache.abort_all();
    cache.check_integrity().expect("whole");
    assert_eq!(cache.stats().held, 0, "nothing leaked");
});

fn planned(row: &PlannedRow, seq: SeqId) -> Row<'static> {
    let tokens = usize::from(row.tokens) % 20;
    let planned = if row.by_count { Row::count(seq, tokens as u32) } else { Row::ids(seq, &TOKENS[..tokens]) };
    // Mostly small, sometimes beyond all bounds.
    let lookahead = if row.lookahead > u32::MAX / 2 { row.lookahead } else { row.lookahead % 8 };
    planned.with_drafts(u32::from(row.drafts % 8)).with_lookahead(lookahead)
}
