//! The real model through the engine: the golden tokens, whatever the cache does, and samples and beams by their law.

use serve::engine::{Generated, Outcome, Request, Settings};
use serve::options::{Decoding, KvDtype, Policy};
use serve::report::FinishReason;
use serve::sampling::Sampler;

use crate::dense::{Dense, beam_search};
use crate::engine::{outputs, plain, run};
use crate::golden::{Case, cases, model};

/// The end token of the model.
const END: u32 = 2;

fn request(prompt: &[u32], max_tokens: usize, decoding: Decoding) -> Request {
    Request { prompt: prompt.to_vec(), max_tokens: u32::try_from(max_tokens).unwrap(), n: 1, decoding }
}

/// The golden prompts, as many times over as asked for.
fn golden_requests(cases: &[Case], copies: usize) -> Vec<Request> {
    let one = cases.iter().map(|case| request(&case.prompt_ids, case.tokens.len(), Decoding::Greedy));
    let one: Vec<Request> = one.collect();
    one.iter().cycle().take(one.len() * copies).cloned().collect()
}

/// Runs the golden prompts and checks that the golden tokens come.
#[track_caller]
fn golden(cases: &[Case], copies: usize, settings: &Settings) -> Outcome {
    let outcome = run(model(), settings, &golden_requests(cases, copies), &[END]);
    for (case, got) in cases.iter().cycle().zip(outputs(&outcome)) {
        let ended = case.tokens.last() == Some(&END);
        let finish_reason = if ended { FinishReason::Stop } else { FinishReason::Length };
        assert_eq!(got, [Generated { tokens: case.tokens.clone(), finish_reason }], "{settings:?} {:?}", outcome.kv);
    }
    let tokens: usize = outputs(&outcome).iter().flatten().map(|output| output.tokens.len()).sum();
    let per_second = f64::from(u32::try_from(tokens).unwrap()) / outcome.seconds;
    eprintln!("{per_second:.1} tokens per second, {} in flight", outcome.kv.max_running);
    outcome
}

#[test]
fn golden_tokens_come_alone_one_after_the_other() {
    let Some(cases) = cases() else { return };
    let outcome = golden(&cases, 1, &Settings { max_batch: 1, ..plain() });
    assert_eq!(outcome.kv.max_running, 1);
}

#[test]
fn golden_tokens_come_in_blocks_of_any_size() {
    let Some(cases) = cases() else { return };
    for block_size in [1, 16, 64] {
        let outcome = golden(&cases, 1, &Settings { block_size, ..plain() });
        assert_eq!((outcome.kv.max_running, outcome.kv.preemptions), (2, 0));
    }
}

#[test]
fn golden_tokens_come_in_a_full_batch_with_and_without_sharing() {
    let Some(cases) = cases() else { return };
    let shared = Settings { block_size: 1, max_batch: 8, ..plain() };
    let outcome = golden(&cases, 5, &shared);
    assert_eq!(outcome.kv.max_running, 8);
    assert!(outcome.kv.prefix_hit_tokens > 0 && outcome.kv.shared_blocks > 0);
    let outcome = golden(&cases, 4, &Settings { share_prefixes: false, ..shared });
    assert_eq!((outcome.kv.prefix_hit_tokens, outcome.kv.shared_blocks), (0, 0));
}

#[test]
fn golden_tokens_come_in_spite_of_preemption() {
    let Some(cases) = cases() else { return };
    // 4 + 48 - 1 tokens take 13 blocks of 4: exactly one request of that length fits.
    for share_prefixes in [true, false] {
        let tiny = Settings { num_blocks: 13, block_size: 4, share_prefixes, ..plain() };
        let outcome = golden(&cases, 2, &tiny);
        assert!(outcome.kv.preemptions > 0);
        assert!(outcome.kv.max_running > 1 && outcome.kv.peak_blocks <= 13);
    }
}

#[test]
fn golden_tokens_come_when_prompts_are_computed_in_pieces() {
    let Some(cases) = cases() else { return };
    // One token of a prompt in each step, beside the others' decoding.
    let outcome = golden(&cases, 2, &Settings { step_tokens: 1, block_size: 2, ..plain() });
    assert!(outcome.kv.steps > 50);
}

#[test]
fn golden_tokens_come_from_contiguous_stretches_to_fewer_at_a_time() {
    let Some(cases) = cases() else { return };
    // The golden requests take 9 and 13 blocks of 4 at their longest: 22 for two of them, of 30.
    let paged = Settings { num_blocks: 30, block_size: 4, ..plain() };
    let contiguous = Settings { policy: Policy::Contiguous, share_prefixes: false, ..paged.clone() };
    let (paged, contiguous) = (golden(&cases, 3, &paged), golden(&cases, 3, &contiguous));
    assert_eq!(contiguous.kv.max_running, 2);
    assert!(paged.kv.max_running > 3);
    assert_eq!(paged.kv.paged_bytes, contiguous.kv.paged_bytes);
}

/// The golden requests begin as in full precision; what the cache took.
fn begins_as_full_precision_does(cases: &[Case], kv_dtype: KvDtype) -> u64 {
    let requests: Vec<Request> = cases.iter().map(|case| request(&case.prompt_ids, 2, Decoding::Greedy)).collect();
    let outcome = run(model(), &Settings { kv_dtype, ..plain() }, &requests, &[END]);
    for (case, got) in cases.iter().zip(outputs(&outcome)) {
        assert_eq!(got[0].tokens, case.tokens[..2], "{kv_dtype:?}");
    }
    outcome.kv.paged_bytes
}

#[test]
fn half_precision_begins_as_full_precision_does() {
    let Some(cases) = cases() else { return };
    for kv_dtype in [KvDtype::F16, KvDtype::Bf16] {
        let bytes = begins_as_full_precision_does(&cases, kv_dtype);
        let full = Settings { kv_dtype: KvDtype::F32, ..plain() };
        let full = run(model(), &full, &[request(&[5], 1, Decoding::Greedy)], &[END]);
        assert_eq!(bytes * 2, full.kv.paged_bytes);
    }
}

#[test]
fn eight_bits_begin_as_full_precision_does() {
    let Some(cases) = cases() else { return };
    for kv_dtype in [KvDtype::Int8, KvDtype::Fp8] {
        begins_as_full_precision_does(&cases, kv_dtype);
    }
}

#[test]
fn four_samples_equal_four_runs_with_their_seeds() {
    let Some(cases) = cases() else { return };
    let prompt = &cases[1].prompt_ids;
    let sampled = |seed| Decoding::Sample { temperature: 1.0, top_p: 0.95, seed };
    let single = |seed| outputs(&run(model(), &plain(), &[request(prompt, 12, sampled(seed))], &[END])).remove(0);
    let singles: Vec<Generated> = (70..74).flat_map(single).collect();
    for (sample, single) in singles.iter().enumerate() {
        // Dense attention and another kind of loop, drawing from the same numbers.
        let mut sampler = Sampler::new(70, u32::try_from(sample).unwrap(), 1.0, 0.95);
        let mut dense = Dense::new(model(), 1);
        let mut logits = dense.step(model(), &[(0, prompt)]);
        for (place, &token) in single.tokens.iter().enumerate() {
            assert_eq!(sampler.draw(logits.row(0)), token, "sample {sample}, token {place}");
            logits = dense.step(model(), &[(0, &[token])]);
        }
    }
    assert!(singles[1..].iter().any(|other| other.tokens != singles[0].tokens), "the seeds make no difference");
    // A prompt of 4 tokens ends at the border of a block of 4, and inside one of 16. Then all samples but one copy it.
    assert_eq!(prompt.len(), 4);
    for (block_size, copies) in [(16, 3), (4, 0)] {
        let four = Request { n: 4, ..request(prompt, 12, sampled(70)) };
        let outcome = run(model(), &Settings { block_size, ..plain() }, &[four], &[END]);
        assert_eq!(outputs(&outcome)[0], singles);
        assert_eq!(outcome.kv.copies, copies);
        assert_eq!((outcome.kv.max_running, outcome.kv.steps), (4, 12));
    }
}

#[test]
fn one_beam_is_greedy() {
    let Some(cases) = cases() else { return };
    let beam = Decoding::Beam { width: 1 };
    let requests: Vec<Request> = cases.iter().map(|case| request(&case.prompt_ids, case.tokens.len(), beam)).collect();
    let outcome = run(model(), &plain(), &requests, &[END]);
    for (case, got) in cases.iter().zip(outputs(&outcome)) {
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].tokens, case.tokens);
    }
}

#[test]
fn three_beams_equal_a_search_that_recomputes_every_hypothesis() {
    let Some(cases) = cases() else { return };
    for (case, block_size) in cases.iter().zip([4, 2]) {
        // Full stops end a text as well, so that some hypotheses end before others.
        let ends = [END, 30];
        let beams = request(&case.prompt_ids, 9, Decoding::Beam { width: 3 });
        let outcome = run(model(), &Settings { block_size, ..plain() }, &[beams], &ends);
        let want = beam_search(model(), &case.prompt_ids, 3, 9, &ends);
        eprintln!("{want:?}");
        let want: Vec<Generated> = want.into_iter().map(|(_, generated)| generated).collect();
        assert_eq!(outputs(&outcome), [want]);
        assert!(outcome.kv.copies > 0 && outcome.kv.shared_blocks > 0);
    }
}
