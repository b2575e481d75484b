//! Huge pages: the advice, and what came of it.
//!
//! A walk over K and V touches every page of its context. With pages of 4 KiB a scattered one spends 20 to 40 % of its
//! time on translations, so that large allocations ask for pages of 2 MiB. Whether they get them is the system's affair.

use core::ops::Range;
use core::ptr::NonNull;

/// Asks for huge pages under memory that the caller owns, and says whether the system took the advice.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn advise(first: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: this advice changes no byte and no protection of any page, only which pages back the range; where the
    // range is none or not on page boundaries, the call returns an error.
    let status = unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    status == 0
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn advise(_: NonNull<u8>, _: usize) -> bool {
    false
}

/// How many bytes of these ranges lie on huge pages now; `None` where the system does not say.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn measure(ranges: impl Iterator<Item = Range<*const u8>>) -> Option<u64> {
    let ranges: alloc::vec::Vec<_> = ranges.map(|range| range.start.addr()..range.end.addr()).collect();
    huge_in(&std::fs::read_to_string("/proc/self/smaps").ok()?, &ranges)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn measure(_: impl Iterator<Item = Range<*const u8>>) -> Option<u64> {
    None
}

/// Reads what `/proc/self/smaps` says: per mapping a line `start-end …` in hexadecimal, then lines of `Name: … kB`. Of a
/// mapping that reaches beyond the ranges, as many of its huge bytes are taken for theirs as fit.
#[cfg(any(test, all(target_os = "linux", not(miri))))]
fn huge_in(smaps: &str, ranges: &[Range<usize>]) -> Option<u64> {
    let mut said = false;
    let mut huge = 0;
    let mut common = 0;
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            let overlap =
                |range: &Range<usize>| range.end.min(mapping.end).saturating_sub(range.start.max(mapping.start)) as u64;
            common = ranges.iter().map(overlap).sum();
        } else if let Some(kib) = line.strip_prefix("AnonHugePages:").and_then(|rest| rest.trim().strip_suffix(" kB")) {
            said = true;
            huge += kib.trim().parse::<u64>().ok()?.saturating_mul(1024).min(common);
        }
    }
    said.then_some(huge)
}

/// The addresses of a mapping, from its first line.
#[cfg(any(test, all(target_os = "linux", not(miri))))]
fn mapping(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings of which the first has 4 MiB on huge pages.
    const SMAPS: &str = "\
40200000-40800000 rw-p 00000000 00:00 0 
Size:               6144 kB
Rss:                5120 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac sd hg 
40900000-40901000 r-xp 00000000 08:01 77                         /usr/lib/a-b.so
AnonHugePages:         0 kB
";

    #[test]
    fn huge_pages_are_counted_in_the_given_ranges() {
        let all = 0x4020_0000..0x4080_0000;
        let count = |ranges: &[[usize; 2]]| {
            let ranges: alloc::vec::Vec<_> = ranges.iter().map(|[start, end]| *start..*end).collect();
            huge_in(SMAPS, &ranges)
        };
        assert_eq!(count(&[[0x4020_0000, 0x4080_0000]]), Some(4 << 20));
        assert_eq!(count(&[[0x4070_0000, 0x4090_1000]]), Some(1 << 20));
        assert_eq!(count(&[[0x4020_0000, 0x4050_0000], [0x4050_0000, 0x4080_0000]]), Some(4 << 20));
        assert_eq!(count(&[[0x1000, 0x2000]]), Some(0));
        assert_eq!(count(&[]), Some(0));
        let silent = "40200000-40800000 rw-p\nSize: 6144 kB\n";
        assert_eq!(huge_in(silent, core::slice::from_ref(&all)), None);
        assert_eq!(huge_in("", &[]), None);
    }
}
