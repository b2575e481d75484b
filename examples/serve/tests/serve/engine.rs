//! The engine on a small crafted model: whatever the cache does, a request gets what it would get alone.

use std::collections::HashMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serve::engine::{Engine, EngineError, Event, Generated, Kv, Outcome, Request, Settings};
use serve::model::{Model, WeightFormat};
use serve::options::{Decoding, KvDtype, Policy};
use serve::report::FinishReason;

use crate::crafted::Crafted;
use crate::dense::beam_search;

/// Settings that get in nobody's way.
pub(crate) fn plain() -> Settings {
    Settings {
        num_blocks: 256,
        block_size: 16,
        kv_dtype: KvDtype::F32,
        max_batch: 8,
        policy: Policy::Paged,
        share_prefixes: true,
        step_tokens: 512,
        model: "test".into(),
    }
}

/// Runs requests to their end and checks what must always hold: the blocks are all given back, and what the observer
/// was told is what came out.
pub(crate) fn run(model: &Model, settings: &Settings, requests: &[Request], ends: &[u32]) -> Outcome {
    let kv = Kv::new(model.config(), settings.clone()).unwrap();
    let mut engine = Engine::new(model, kv, ends.to_vec());
    let mut told: HashMap<(usize, usize), (Vec<u32>, bool)> = HashMap::new();
    let mut started = Vec::new();
    let mut observer = |event| {
        match event {
            Event::Started { request } => started.push(request),
            Event::Token { request, output, token } => {
                let told = told.entry((request, output)).or_default();
                assert!(!told.1, "a token after the end");
                told.0.push(token);
            }
            Event::Finished { request, output } => told.get_mut(&(request, output)).unwrap().1 = true,
        }
        Ok(())
    };
    let outcome = engine.run(requests, &mut observer).unwrap();
    let stats = engine.cache().stats();
    assert_eq!((stats.held, stats.sequences, stats.open_steps, stats.reserved), (0, 0, 0, 0));
    engine.cache().check_integrity().unwrap();
    assert!(started.is_sorted(), "first come, first served: {started:?}");
    let came: usize = outcome.responses.iter().map(|response| response.outputs.len()).sum();
    assert_eq!(told.len(), came);
    for (request, response) in outcome.responses.iter().enumerate() {
        for (output, generated) in response.outputs.iter().enumerate() {
            assert_eq!(told[&(request, output)], (generated.tokens.clone(), true));
        }
    }
    outcome
}

/// The outputs of each request.
pub(crate) fn outputs(outcome: &Outcome) -> Vec<Vec<Generated>> {
    outcome.responses.iter().map(|response| response.outputs.clone()).collect()
}

fn crafted() -> Model {
    Model::open(&Crafted::new().write().path, WeightFormat::F32).unwrap()
}

/// What a request gets alone, with blocks of one token for each of its samples in turn, and nothing shared.
fn alone(model: &Model, request: &Request, ends: &[u32]) -> Vec<Generated> {
    let settings = Settings { share_prefixes: false, max_batch: 64, block_size: 64, ..plain() };
    let single = |sample: u32| {
        let mut request = Request { n: 1, ..request.clone() };
        if let Decoding::Sample { seed, .. } = &mut request.decoding {
            *seed += u64::from(sample);
        }
        outputs(&run(model, &settings, &[request], ends)).remove(0)
    };
    (0..request.n).flat_map(single).collect()
}

/// Random requests that share beginnings.
fn requests(rng: &mut Pcg64, beams: bool) -> Vec<Request> {
    let mut below = |bound: u32| u32::try_from(rng.next_u64() % u64::from(bound)).unwrap();
    let common: Vec<u32> = (0..below(20)).map(|_| 3 + below(250)).collect();
    let count = 1 + below(6);
    let request = |_| {
        let shared = usize::try_from(below(20)).unwrap().min(common.len());
        let mut prompt = common[..shared].to_vec();
        prompt.extend((0..1 + below(8)).map(|_| 3 + below(250)));
        let decoding = match below(4) {
            0 if beams => Decoding::Beam { width: 1 + below(4) },
            0 | 1 => Decoding::Greedy,
            _ => Decoding::Sample { temperature: 1.0, top_p: 0.95, seed: below(100).into() },
        };
        let n = if matches!(decoding, Decoding::Beam { .. }) { 1 } else { 1 + below(4) };
        Request { prompt, max_tokens: 1 + below(20), n, decoding }
    };
    (0..count).map(request).collect()
}

#[test]
fn a_request_gets_what_it_would_get_alone() {
    let model = crafted();
    let mut seen = (0, 0, 0, 0, 0);
    for seed in 0..400 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let requests = requests(&mut rng, true);
        let mut below = |bound: u32| u32::try_from(rng.next_u64() % u64::from(bound)).unwrap();
        // Every third token or so ends a text.
        let ends: Vec<u32> = (0..below(40)).map(|_| below(261)).collect();
        let mut settings = Settings {
            num_blocks: 1,
            block_size: [1, 2, 4, 16, 64][below(5) as usize],
            max_batch: 4 + below(5),
            share_prefixes: below(3) > 0,
            step_tokens: [1, 5, 512][below(3) as usize],
            ..plain()
        };
        // The smallest pool that is not refused, or a little more.
        while let Err(error) = settings.check(model.config(), &requests) {
            assert!(matches!(error, EngineError::NeverFits { .. }), "{error}");
            settings.num_blocks += 1;
        }
        settings.num_blocks += below(settings.num_blocks);
        let outcome = run(&model, &settings, &requests, &ends);
        for (request, got) in requests.iter().zip(outputs(&outcome)) {
            assert_eq!(got, alone(&model, request, &ends), "seed {seed}: {settings:?} {request:?}");
        }
        let kv = outcome.kv;
        assert!(kv.peak_blocks <= kv.num_blocks && kv.max_running <= settings.max_batch.into());
        seen.0 += kv.preemptions;
        seen.1 += kv.copies;
        seen.2 += kv.prefix_hit_tokens;
        seen.3 += u64::from(kv.max_running > 4);
        let all = outcome.responses.iter().flat_map(|response| &response.outputs);
        seen.4 += all.filter(|output| output.finish_reason == FinishReason::Stop).count();
        assert!(settings.share_prefixes || kv.prefix_hit_tokens == 0);
    }
    println!("preemptions, copies, hits, full batches, stops: {seen:?}");
    assert!(seen.0 > 100 && seen.1 > 100 && seen.2 > 100 && seen.3 > 30 && seen.4 > 100, "{seen:?}");
}

#[test]
fn samples_and_beams_that_are_preempted_go_on_where_they_were() {
    let model = crafted();
    let sampled = Decoding::Sample { temperature: 1.0, top_p: 1.0, seed: 3 };
    for (decoding, n) in [(Decoding::Greedy, 1), (sampled, 1), (sampled, 3), (Decoding::Beam { width: 3 }, 1)] {
        for (block_size, share_prefixes) in [(1, true), (4, true), (4, false), (16, true)] {
            let request = |first| Request { prompt: (first..first + 10).collect(), max_tokens: 30, n, decoding };
            let requests = [request(10), request(60), request(110), request(60)];
            let mut settings = Settings { num_blocks: 1, block_size, max_batch: 12, share_prefixes, ..plain() };
            while settings.check(model.config(), &requests).is_err() {
                settings.num_blocks += 1;
            }
            let outcome = run(&model, &settings, &requests, &[]);
            assert!(outcome.kv.preemptions > 0, "{settings:?} {decoding:?}");
            for (request, got) in requests.iter().zip(outputs(&outcome)) {
                assert_eq!(got, alone(&model, request, &[]), "{settings:?} {decoding:?}");
            }
        }
    }
}

#[test]
fn beams_equal_a_search_that_recomputes_every_hypothesis() {
    let model = crafted();
    let mut stopped = 0;
    for seed in 0..60 {
        let mut rng = Pcg64::seed_from_u64(1000 + seed);
        let mut below = |bound: u32| u32::try_from(rng.next_u64() % u64::from(bound)).unwrap();
        let prompt: Vec<u32> = (0..1 + below(10)).map(|_| 3 + below(250)).collect();
        let (width, max_tokens) = (1 + below(4), 1 + below(9));
        let ends: Vec<u32> = (0..below(60)).map(|_| below(261)).collect();
        let request = Request { prompt: prompt.clone(), max_tokens, n: 1, decoding: Decoding::Beam { width } };
        let settings = Settings { block_size: 4, ..plain() };
        let got = outputs(&run(&model, &settings, &[request], &ends)).remove(0);
        let want = beam_search(&model, &prompt, width as usize, max_tokens as usize, &ends);
        let want: Vec<Generated> = want.into_iter().map(|(_, generated)| generated).collect();
        assert_eq!(got, want, "seed {seed}");
        stopped += got.iter().filter(|output| output.finish_reason == FinishReason::Stop).count();
    }
    assert!(stopped > 20, "{stopped}");
}

#[test]
fn contiguous_stretches_give_the_same_tokens_to_fewer_at_a_time() {
    let model = crafted();
    let (mut paged_running, mut contiguous_running) = (0, 0);
    for seed in 0..100 {
        let mut rng = Pcg64::seed_from_u64(2000 + seed);
        let requests = requests(&mut rng, false);
        let paged = Settings { num_blocks: 30, block_size: 4, ..plain() };
        let contiguous = Settings { policy: Policy::Contiguous, share_prefixes: false, ..paged.clone() };
        let (paged, contiguous) = (run(&model, &paged, &requests, &[]), run(&model, &contiguous, &requests, &[]));
        assert_eq!(outputs(&paged), outputs(&contiguous));
        assert_eq!(paged.kv.paged_bytes, contiguous.kv.paged_bytes);
        let kv = contiguous.kv;
        assert_eq!((kv.preemptions, kv.copies, kv.prefix_hit_tokens, kv.shared_blocks), (0, 0, 0, 0));
        assert!(kv.contiguous_bytes <= kv.paged_bytes, "what is reserved is there");
        paged_running += paged.kv.max_running;
        contiguous_running += kv.max_running;
    }
    assert!(paged_running > contiguous_running, "{paged_running} and {contiguous_running}");
}

#[test]
fn what_can_never_be_served_is_refused_before_anything_runs() {
    let model = crafted();
    let request =
        |prompt: usize, max_tokens| Request { prompt: vec![5; prompt], max_tokens, n: 1, decoding: Decoding::Greedy };
    let settings = Settings { num_blocks: 3, block_size: 4, max_batch: 2, ..plain() };
    let refused = |settings: &Settings, request: &Request| {
        let kv = Kv::new(model.config(), settings.clone()).unwrap();
        let mut engine = Engine::new(&model, kv, vec![]);
        let fine = Request { prompt: vec![4], max_tokens: 1, n: 1, decoding: Decoding::Greedy };
        let result = engine.run(&[fine, request.clone()], &mut |event| panic!("{event:?}"));
        let message = result.unwrap_err().to_string();
        assert!(message.lines().count() == 1, "{message}");
        message
    };
    // 12 slots: the last token that is generated needs none.
    run(&model, &settings, &[request(5, 8)], &[]);
    run(&model, &settings, &[request(12, 1)], &[]);
    assert!(refused(&settings, &request(5, 9)).contains("4 blocks of 4 and the cache has 3"));
    assert!(refused(&settings, &request(13, 1)).contains("never fits"));
    assert!(refused(&settings, &request(0, 1)).contains("no token"));
    // The crafted model has a context of 64.
    let large = Settings { num_blocks: 100, ..settings.clone() };
    run(&model, &large, &[request(4, 60)], &[]);
    assert!(refused(&large, &request(4, 61)).contains("context of 64"));
    assert!(refused(&large, &request(4, u32::MAX)).contains("context of 64"));
    let wide = Request { n: 3, ..request(4, 4) };
    assert!(refused(&large, &wide).contains("needs 3 sequences at once and --max-batch allows 2"));
    // Two samples of 5 + 7 tokens: one block is shared, two more for each.
    let two = Request { n: 2, ..request(5, 8) };
    assert!(refused(&settings, &two).contains("5 blocks of 4 and the cache has 3"));
    run(&model, &Settings { num_blocks: 5, ..settings.clone() }, &[two], &[]);
    let beams = Request { decoding: Decoding::Beam { width: 2 }, ..request(4, 4) };
    let contiguous = Settings { policy: Policy::Contiguous, share_prefixes: false, ..large };
    assert!(refused(&contiguous, &beams).contains("--policy paged"));
}

#[test]
fn observer_that_fails_ends_the_run_and_leaves_nothing_behind() {
    let model = crafted();
    let kv = Kv::new(model.config(), plain()).unwrap();
    let mut engine = Engine::new(&model, kv, vec![]);
    let request = Request { prompt: vec![7; 20], max_tokens: 9, n: 3, decoding: Decoding::Greedy };
    let requests = [request.clone(), request];
    for after in 0..60 {
        let mut events = 0;
        let result = engine.run(&requests, &mut |_| {
            events += 1;
            if events > after { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        });
        assert!(result.is_err() == (events > after), "{after}");
        let stats = engine.cache().stats();
        assert_eq!((stats.held, stats.sequences, stats.reserved), (0, 0, 0), "{after}");
        engine.cache().check_integrity().unwrap();
    }
    assert!(engine.run(&requests, &mut |_| Ok(())).is_ok());
}

#[test]
fn equal_prompts_of_one_step_are_computed_once() {
    let model = crafted();
    let request = Request { prompt: (10..43).collect(), max_tokens: 3, n: 1, decoding: Decoding::Greedy };
    let outcome = run(&model, &plain(), &vec![request; 5], &[]);
    // 33 tokens: two full blocks of 16 are found by all but the first.
    let cached: Vec<u64> = outcome.responses.iter().map(|response| response.cached_tokens).collect();
    assert_eq!(cached, [0, 32, 32, 32, 32]);
    assert_eq!((outcome.kv.prefix_hit_tokens, outcome.kv.shared_blocks, outcome.kv.peak_blocks), (128, 2, 7));
}
