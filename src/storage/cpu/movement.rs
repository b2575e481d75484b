//! Moving K and V: writes of new tokens, copies of blocks, and records of blocks for swaps and slower tiers.
//!
//! Storage wing. What is small is copied as it comes. What is large goes past the caches ([`stream`]) and over the threads
//! of the current `rayon` pool, where the layout ([`regions`]) and the step prove that its parts share no memory. Bytes
//! that are moved are the same either way.

mod copies;
mod records;
mod regions;
mod stream;
#[cfg(test)]
mod tests;
mod writes;

pub(super) use copies::copy_blocks;
pub(super) use records::Records;
pub(super) use regions::Regions;
pub(super) use writes::{write, write_token};

use stream::{Mover, streaming};

/// Bytes from which a call's stores go past the caches. Below, they are left there for whoever reads next.
const PAST_CACHES_BYTES: usize = if cfg!(test) { 4 << 10 } else { 256 << 10 };

/// Bytes from which other threads are woken, which takes about as long as moving a tenth of them.
const THREADS_BYTES: usize = if cfg!(test) { 8 << 10 } else { 1 << 20 };

/// Runs `tasks` tasks that move `bytes` together, in any order and perhaps at once.
fn spread(tasks: usize, bytes: usize, task: impl Fn(usize, &Mover) + Sync) {
    let past_caches = bytes >= PAST_CACHES_BYTES;
    #[cfg(feature = "rayon")]
    if bytes >= THREADS_BYTES && tasks > 1 && rayon::current_num_threads() > 1 {
        use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
        // Some shares more than threads, as one of them may be busy elsewhere; each a range, as neighbours lie together.
        let shares = tasks.min(rayon::current_num_threads().saturating_mul(8));
        let first = |share: usize| share * (tasks / shares) + share.min(tasks % shares);
        return (0..shares).into_par_iter().with_max_len(1).for_each(|share| {
            streaming(past_caches, |mover| (first(share)..first(share + 1)).for_each(|index| task(index, mover)));
        });
    }
    let _ = THREADS_BYTES;
    streaming(past_caches, |mover| (0..tasks).for_each(|index| task(index, mover)));
}
