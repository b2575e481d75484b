//! What a storage says about itself.

/// The memory of a [`CpuStorage`](super::CpuStorage), and what computes on it, as [`stats`](super::CpuStorage::stats) finds
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CpuStats {
    /// The instruction set of its attention: `"avx512"`, `"avx2"`, `"neon"` or `"portable"`.
    pub isa: &'static str,
    /// Bytes of all allocations: K and V of all blocks, and their scales.
    pub bytes: u64,
    /// Those of them for which the system was asked for huge pages and took the advice: allocations of 4 MiB or more, on
    /// Linux. 0 where the system has none to give.
    pub huge_advised_bytes: u64,
    /// Those of them that lie on huge pages now; `None` where the system does not say. Memory that was never written
    /// lies on no page, and a system that is short of whole huge pages gives small ones whatever it was asked.
    pub huge_bytes: Option<u64>,
}
