//! Time of the thread that runs: what others do on the machine meanwhile does not count.

use rustix::time::{ClockId, clock_gettime};

/// A clock of thread CPU time that knows what reading it costs.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The shortest of many empty intervals, in nanoseconds.
    overhead_ns: u64,
}

impl Clock {
    /// Reads the clock some thousand times to learn what an empty interval takes.
    pub(crate) fn calibrated() -> Self {
        let empty = Self { overhead_ns: 0 };
        let mut intervals: Vec<u64> = (0..4_096).map(|_| empty.time(|| ())).collect();
        intervals.sort_unstable();
        Self { overhead_ns: intervals[intervals.len() / 2] }
    }

    pub(crate) fn overhead_ns(&self) -> u64 {
        self.overhead_ns
    }

    /// How many nanoseconds `work` takes, without those of reading the clock.
    pub(crate) fn time(&self, work: impl FnOnce()) -> u64 {
        let start = now_ns();
        work();
        (now_ns() - start).saturating_sub(self.overhead_ns)
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).expect("CPU time grows from 0"));
    seconds * 1_000_000_000 + nanoseconds
}
