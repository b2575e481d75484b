//! What is around a job while it advances.

use paged_kv::KvCache;

use super::EngineError;
use super::request::{Event, Generated, Response};
use crate::report::FinishReason;

/// What a job needs around it to advance.
pub(super) struct Turn<'a> {
    pub(super) cache: &'a mut KvCache,
    /// Tokens at which generation stops.
    pub(super) ends: &'a [u32],
    /// Whether claims are dropped once what they were for is computed.
    pub(super) release_claims: bool,
    pub(super) response: &'a mut Response,
    pub(super) observer: &'a mut dyn FnMut(Event) -> std::io::Result<()>,
}

impl Turn<'_> {
    pub(super) fn tell(&mut self, event: Event) -> Result<(), EngineError> {
        (self.observer)(event).map_err(EngineError::Output)
    }

    pub(super) fn finish(&mut self, request: usize, output: usize, generated: Generated) -> Result<(), EngineError> {
        let outputs = &mut self.response.outputs;
        if outputs.len() <= output {
            // Samples finish in any order; every place is filled in the end.
            let hole = Generated { tokens: Vec::new(), finish_reason: FinishReason::Length };
            outputs.resize(output + 1, hole);
        }
        outputs[output] = generated;
        self.tell(Event::Finished { request, output })
    }
}
