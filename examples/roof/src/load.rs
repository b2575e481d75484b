//! What the figures depend on beside the code: the machine, who else is at work on it, and what was asked for.

use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::storage::CpuStorage;
use serde::Serialize;

use crate::error::Error;
use crate::options::Options;

/// A machine and its load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// Threads that the machine runs at once, as far as this process may use them.
    pub cpus: usize,
    /// The instruction set that attention uses: the best of the machine's, or the one that `PAGED_KV_ISA` names.
    pub isa: &'static str,
    /// Means over 1, 5 and 15 minutes of threads that want to run, before the run began; this program is not among
    /// them. `None` where the system does not say.
    pub load_average: Option<[f64; 3]>,
    /// The same when it had ended, this program included.
    pub load_average_after: Option<[f64; 3]>,
    /// MiB of K and V that the passes rotated over, at least.
    pub pool_mib: u32,
    /// Rounds that were measured.
    pub rounds: u32,
}

impl Load {
    /// The load before a run.
    ///
    /// # Errors
    /// That of the storage where `PAGED_KV_ISA` names nothing that the machine has.
    pub fn now(options: &Options) -> Result<Self, Error> {
        let Options { pool_mib, rounds, .. } = *options;
        let isa = isa()?;
        Ok(Self { cpus: cpus(), isa, load_average: load_average(), load_average_after: None, pool_mib, rounds })
    }

    /// The same, after the run.
    #[must_use]
    pub fn ended(self) -> Self {
        Self { load_average_after: load_average(), ..self }
    }
}

/// Threads that this process may run at once.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// MiB of memory that could be had without swapping, where the system says.
pub fn available_mib() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    u32::try_from(kib >> 10).ok()
}

fn load_average() -> Option<[f64; 3]> {
    parse_load_average(&std::fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_load_average(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// What a storage says that it uses.
fn isa() -> Result<&'static str, Error> {
    let layout = KvLayout::per_layer(&KvShape::new(1, 1, 1, DType::F32), 1, 1)?;
    Ok(CpuStorage::new(layout)?.stats().isa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_averages_are_the_first_three_numbers() {
        assert_eq!(parse_load_average("0.52 1.04 2.00 3/417 12345\n"), Some([0.52, 1.04, 2.0]));
        assert_eq!(parse_load_average("0.52 x"), None);
        assert_eq!(parse_load_average(""), None);
    }
}
