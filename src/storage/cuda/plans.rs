//! Plans of a step on the device: how its rows are cut into work.
//!
//! `pk_plan` makes one for each way of attending that the layers of a model have, once in a step, into one of a few
//! buffers; where there are more ways than buffers, the one that was used longest ago is made anew. A graph runs again
//! with other steps, so that it must make its own plans: those that are made in a capture are good in that capture, and
//! nowhere else. They have buffers of their own, because a replay, of which the host knows nothing, writes to them.
#![allow(unsafe_code)]

use alloc::sync::Arc;

use cudarc::driver::CudaContext;

use super::driver::Capture;
use super::kernels::{Grid, Kernel};
use super::limits::CudaLimits;
use super::memory::DeviceMemory;
use super::params::{self, PLAN_HEAD_BYTES, PLAN_SHARED_BYTES, SPAN_BYTES};
use super::pool::int;
use super::stream::Turn;
use crate::id::ix;
use crate::storage::StorageError;

/// Plans that are kept of a step, and of a capture.
const PLANS: usize = 4;

/// What a plan depends on beside the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) part_heads: i32,
    pub(super) columns: i32,
    pub(super) window: i32,
    pub(super) has_mask: bool,
}

/// Where a plan is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    /// In the step of this number, outside of captures.
    Step(u64),
    Capture(u64),
}

/// A buffer and what is in it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    plan: params::Plan,
    made: Option<(Way, Scope)>,
    used: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Plans {
    kernel: Kernel<params::MakePlan>,
    limits: CudaLimits,
    block_size: i32,
    of_step: [Entry; PLANS],
    of_capture: [Entry; PLANS],
    /// Counts uses.
    uses: u64,
    _memory: DeviceMemory,
}

/// Bytes of a plan of the largest step: its head, the first spans of rows, and no more spans than query tokens.
fn plan_bytes(limits: &CudaLimits) -> u64 {
    PLAN_HEAD_BYTES + row_bytes(limits) + u64::from(limits.max_tokens) * SPAN_BYTES
}

/// Bytes of the first spans of rows, with what brings the spans behind them to a multiple of 16.
fn row_bytes(limits: &CudaLimits) -> u64 {
    (u64::from(limits.max_rows) * 4).next_multiple_of(16)
}

/// Bytes of all buffers.
pub(super) fn plans_bytes(limits: &CudaLimits) -> u64 {
    plan_bytes(limits) * 2 * PLANS as u64
}

impl Plans {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        kernel: Kernel<params::MakePlan>,
        limits: CudaLimits,
        block_size: u32,
    ) -> Result<Self, StorageError> {
        let bytes = plans_bytes(&limits);
        let memory = DeviceMemory::zeroed(context, bytes, StorageError::NoBuffers { bytes })?;
        let entry = |number: usize| {
            let head = memory.first() + number as u64 * plan_bytes(&limits);
            let row_spans = head + PLAN_HEAD_BYTES;
            let plan = params::Plan { head, row_spans, spans: row_spans + row_bytes(&limits) };
            Entry { plan, made: None, used: 0 }
        };
        Ok(Self {
            kernel,
            limits,
            block_size: int("tokens in a block", ix(block_size))?,
            of_step: core::array::from_fn(entry),
            of_capture: core::array::from_fn(|number| entry(PLANS + number)),
            uses: 0,
            _memory: memory,
        })
    }

    /// Where the plan of the prepared step, the `number`th, is when the stream is there.
    pub(super) fn get(
        &mut self,
        turn: &Turn<'_>,
        capture: Capture,
        number: u64,
        way: Way,
        step: params::Step,
    ) -> Result<params::Plan, StorageError> {
        let (entries, scope) = match capture {
            Capture::None => (&mut self.of_step, Some(Scope::Step(number))),
            Capture::Number(number) => (&mut self.of_capture, Some(Scope::Capture(number))),
            Capture::Unknown => (&mut self.of_capture, None),
        };
        #[cfg(test)]
        let (entries, scope) = {
            use crate::planted::{Bug, is};
            match scope {
                Some(Scope::Step(_)) if is(Bug::PlanOfAnotherStep) => (entries, Some(Scope::Step(0))),
                Some(Scope::Capture(_)) if is(Bug::PlanOfAnotherCapture) => (entries, Some(Scope::Capture(0))),
                Some(Scope::Capture(_)) if is(Bug::PlanInOnePlace) => (&mut self.of_step, scope),
                _ => (entries, scope),
            }
        };
        self.uses += 1;
        let made = scope.map(|scope| (way, scope));
        if let Some(entry) = entries.iter_mut().find(|entry| made.is_some() && entry.made == made) {
            entry.used = self.uses;
            return Ok(entry.plan);
        }
        // Those of other steps and captures are good for nothing.
        let is_good = |entry: &Entry| entry.made.is_some_and(|(_, other)| Some(other) == scope);
        let oldest = entries.iter_mut().min_by_key(|entry| (is_good(entry), entry.used));
        let Some(entry) = oldest else { unreachable!("there are buffers") };
        entry.made = None;
        let params = params::MakePlan {
            step,
            plan: entry.plan,
            part_heads: way.part_heads,
            columns: way.columns,
            window: way.window,
            has_mask: i32::from(way.has_mask),
            block_size: self.block_size,
            max_rows: int("rows", ix(self.limits.max_rows))?,
            max_tables: int("tables", ix(self.limits.max_rows.max(self.limits.max_sequences)))?,
            max_spans: int("query tokens in a step", ix(self.limits.max_tokens))?,
        };
        let grid = Grid { ctas: 1, threads: 256, shared_bytes: PLAN_SHARED_BYTES };
        // SAFETY: the kernel reads rows within the limits and writes no more than a buffer has room for.
        unsafe { self.kernel.launch(turn, grid, &params) }?;
        (entry.made, entry.used) = (made, self.uses);
        Ok(entry.plan)
    }
}
