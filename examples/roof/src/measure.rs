//! Rounds of passes, and the rates they reach.

use core::hint::black_box;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::Error;
use crate::options::Options;
use crate::pool::{Order, Pass, Pool, shuffle};
use crate::read::{FORMS, Form};
use crate::report::{Rates, Row};

/// Bytes that a pass reads at once, at least, if the pool has them: some milliseconds.
const SAMPLE_BYTES: u64 = 64 << 20;

const PASSES: [Pass; 6] = [
    Pass::Decode(Order::Random),
    Pass::Decode(Order::Consecutive),
    Pass::Sequential(Form::Bytes),
    Pass::Sequential(Form::Lines),
    Pass::Scattered(Form::Bytes),
    Pass::Scattered(Form::Lines),
];

/// Measures everything that the options name: element types, in each the shapes, in each the numbers of threads.
///
/// # Errors
/// [`Error`], where memory or threads cannot be had.
pub fn measure(options: &Options) -> Result<Vec<Row>, Error> {
    let threads: Vec<ThreadPool> = options
        .threads
        .iter()
        .map(|&threads| ThreadPoolBuilder::new().num_threads(threads).build())
        .collect::<Result<_, _>>()?;
    let bar = bar(options.dtypes.len() * options.shapes.len() * options.threads.len());
    let mut rows = Vec::new();
    for &(name, dtype) in &options.dtypes {
        for &shape in &options.shapes {
            let mut pool = Pool::new(dtype, shape, u64::from(options.pool_mib) << 20, options.seed)?;
            for threads in &threads {
                bar.set_message(format!("{name} {shape}"));
                let times = rounds(&mut pool, threads, options)?;
                rows.push(Row::new(name, shape, threads.current_num_threads(), &times.rates(&pool)));
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Seconds that the passes took for a sample of some layers, round after round.
struct Times {
    sample: u32,
    seconds: [Vec<f64>; PASSES.len()],
}

/// One round to warm up, then those that count: every pass once, in an order of its own in every round.
fn rounds(pool: &mut Pool, threads: &ThreadPool, options: &Options) -> Result<Times, Error> {
    let layers = pool.layers();
    let wanted = SAMPLE_BYTES.div_ceil(pool.layer_bytes(Pass::Decode(Order::Random)));
    let sample = u32::try_from(wanted).unwrap_or(u32::MAX).min(layers);
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
    let mut order: [usize; PASSES.len()] = core::array::from_fn(|index| index);
    let mut seconds = core::array::from_fn(|_| Vec::new());
    let mut next = 0;
    for round in 0..=options.rounds {
        shuffle(&mut order, &mut rng);
        for &index in &order {
            let pass = PASSES[index];
            let range: Vec<u32> = (0..sample).map(|layer| (next + layer) % layers).collect();
            next = (next + sample) % layers;
            pool.prepare(pass)?;
            let start = Instant::now();
            let sum = threads.install(|| pool.run(pass, &range))?;
            let elapsed = start.elapsed();
            black_box(sum);
            if round > 0 {
                seconds[index].push(elapsed.as_secs_f64());
            }
        }
    }
    Ok(Times { sample, seconds })
}

impl Times {
    fn rates(&self, pool: &Pool) -> Rates {
        let rate = |pass: Pass| {
            let index = PASSES.iter().position(|&known| known == pass).expect("every pass is in the list");
            #[expect(clippy::cast_precision_loss, reason = "a pool has less than 2^53 bytes")]
            let gigabytes = (pool.layer_bytes(pass) * u64::from(self.sample)) as f64 / 1e9;
            let mut seconds = self.seconds[index].clone();
            seconds.sort_by(f64::total_cmp);
            Rate { median: gigabytes / median(&seconds), best: gigabytes / seconds[0] }
        };
        let roof = |pass: fn(Form) -> Pass| FORMS.map(|form| rate(pass(form))).into_iter().reduce(Rate::max);
        Rates {
            decode: rate(Pass::Decode(Order::Random)),
            contiguous: rate(Pass::Decode(Order::Consecutive)),
            sequential: roof(Pass::Sequential).expect("there are forms"),
            scattered: roof(Pass::Scattered).expect("there are forms"),
        }
    }
}

/// GB/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// At the median of the times.
    pub median: f64,
    /// At the shortest time.
    pub best: f64,
}

impl Rate {
    /// The better one, in each respect.
    fn max(self, other: Self) -> Self {
        Self { median: self.median.max(other.median), best: self.best.max(other.best) }
    }
}

/// Of sorted numbers, of which there is one at least: the middle one, or the mean of both.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

/// A bar on standard error, which hides itself where that is no terminal.
fn bar(cases: usize) -> ProgressBar {
    let template = "{bar:40} {pos} of {len}, {msg}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(u64::try_from(cases).unwrap_or(u64::MAX)).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_over_times_and_the_better_form_is_the_roof() {
        // As in `pool`: 245,760 bytes of the contexts in a layer, 393,216 in all; two layers in a sample.
        let pool = Pool::new(paged_kv::layout::DType::F16, crate::options::Shape { batch: 3, context: 20 }, 1 << 20, 0)
            .unwrap();
        let seconds = [
            vec![0.003, 0.001, 0.002],
            vec![0.002, 0.002, 0.002],
            vec![0.004, 0.001, 0.004],
            vec![0.002, 0.003, 0.003],
            vec![0.001, 0.001, 0.002],
            vec![0.002, 0.002, 0.002],
        ];
        let rates = Times { sample: 2, seconds }.rates(&pool);
        // 491,520 bytes in 2 ms, and in 1 ms.
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
        assert!(close(rates.decode.median, 0.245_76) && close(rates.decode.best, 0.491_52), "{rates:?}");
        assert!(close(rates.contiguous.median, 0.245_76), "{rates:?}");
        // 786,432 bytes: the second form has the better median, 3 ms, the first the best time, 1 ms.
        assert!(close(rates.sequential.median, 0.262_144) && close(rates.sequential.best, 0.786_432), "{rates:?}");
        assert!(close(rates.scattered.median, 0.491_52), "{rates:?}");
    }

    #[test]
    fn the_median_of_an_even_number_is_between() {
        assert_eq!((median(&[1.0, 4.0]), median(&[1.0, 4.0, 5.0])), (2.5, 4.0));
    }
}
