//! Batches on their way to subscribers: numbers, frames, and the last ones kept for those who missed some.
//!
//! Floor 1. No transport: a message is three frames, and whoever has a socket sends them. Over ZeroMQ as vLLM does it:
//! ```text
//! PUB      topic | number | batch             to all subscribers
//! ROUTER   client | empty | number            a request: everything from this number on, please
//!          client | empty | topic | number | batch     the answer, once per batch that is kept
//!          client | empty | empty | -1 | empty         and its end
//! ```
//! Numbers are eight bytes, big-endian. Older subscribers want answers without the topic; leave it out for them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;

use crate::id::len32;

/// Numbers batches, and keeps the last of them.
///
/// # Example
/// ```
/// use paged_kv::event::Publisher;
///
/// let mut publisher = Publisher::new(b"kv-events", 10_000);
/// let first = publisher.publish(b"a batch");
/// assert_eq!(first.parts(), [&b"kv-events"[..], &[0; 8], b"a batch"]);
///
/// // A subscriber that missed it asks for all from 0 on.
/// let answer: Vec<_> = publisher.replay(&[0; 8])?.collect();
/// assert_eq!((&answer[0], answer[1].sequence()), (&first, None));
/// # Ok::<(), paged_kv::event::BadRequest>(())
/// ```
#[derive(Clone, Debug)]
pub struct Publisher {
    topic: Arc<[u8]>,
    /// The number of the next batch.
    next: u64,
    /// The last batches, oldest first: their numbers end before `next`.
    kept: VecDeque<Frames>,
    keep: usize,
}

impl Publisher {
    /// A publisher that has published nothing, and will keep the last `keep` batches. vLLM keeps 10,000, and has an empty
    /// topic.
    pub fn new(topic: &[u8], keep: usize) -> Self {
        Self { topic: topic.into(), next: 0, kept: VecDeque::new(), keep }
    }

    /// The number of the next batch, which is how many there were.
    pub const fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Gives a batch its number, and keeps it.
    pub fn publish(&mut self, batch: &[u8]) -> Frames {
        let frames = Frames { topic: self.topic.clone(), sequence: self.next.to_be_bytes(), payload: batch.into() };
        self.next += 1;
        if self.keep > 0 {
            if self.kept.len() == self.keep {
                self.kept.pop_front();
            }
            self.kept.push_back(frames.clone());
        }
        frames
    }

    /// The answer to a request, eight bytes with the first number that is wanted: all batches from there on that are
    /// kept, then the end. Where the first one has a higher number, those before it are lost to the subscriber.
    ///
    /// # Errors
    /// [`BadRequest`]: a request of another length.
    pub fn replay(&self, request: &[u8]) -> Result<impl Iterator<Item = Frames>, BadRequest> {
        let from: [u8; 8] = request.try_into().map_err(|_| BadRequest { len: len32(request.len()) })?;
        let oldest = self.next - u64::try_from(self.kept.len()).unwrap_or(self.next);
        let skip = u64::from_be_bytes(from).saturating_sub(oldest);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(self.kept.len());
        Ok(self.kept.range(skip..).cloned().chain([Frames::end()]))
    }
}

/// One message. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frames {
    topic: Arc<[u8]>,
    sequence: [u8; 8],
    payload: Arc<[u8]>,
}

impl Frames {
    /// The number −1, which no batch gets: there were 2⁶⁴ − 1 before it.
    const END: [u8; 8] = (-1_i64).to_be_bytes();

    fn end() -> Self {
        Self { topic: [].into(), sequence: Self::END, payload: [].into() }
    }

    /// The number of the batch; `None` for the end of an answer.
    pub fn sequence(&self) -> Option<u64> {
        (self.sequence != Self::END).then_some(u64::from_be_bytes(self.sequence))
    }

    /// Topic, number and batch, as they go onto the wire.
    pub fn parts(&self) -> [&[u8]; 3] {
        [&self.topic, &self.sequence, &self.payload]
    }
}

/// A request for a replay that is no number of eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRequest {
    /// How many bytes it has.
    pub len: u32,
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request for a replay has 8 bytes, this one {}", self.len)
    }
}

impl core::error::Error for BadRequest {}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn replayed(publisher: &Publisher, from: u64) -> Vec<Option<u64>> {
        publisher.replay(&from.to_be_bytes()).unwrap().map(|frames| frames.sequence()).collect()
    }

    #[test]
    fn a_replay_has_what_is_kept_from_the_number_on_and_an_end() {
        let mut publisher = Publisher::new(b"t", 3);
        assert_eq!(replayed(&publisher, 0), [None]);
        for at in 0..5_u8 {
            publisher.publish(&[at]);
        }
        assert_eq!(publisher.next_sequence(), 5);
        // 5 were published, 2 to 4 are kept.
        for from in [0, 1, 2] {
            assert_eq!(replayed(&publisher, from), [Some(2), Some(3), Some(4), None]);
        }
        assert_eq!(replayed(&publisher, 4), [Some(4), None]);
        for from in [5, u64::MAX - 1, u64::MAX] {
            assert_eq!(replayed(&publisher, from), [None]);
        }
    }

    #[test]
    fn frames_are_topic_big_endian_number_and_batch() {
        let mut publisher = Publisher::new(b"kv", 10);
        for _ in 0..258 {
            publisher.publish(b"x");
        }
        // 258 = 0x0102.
        let frames = publisher.publish(b"batch");
        assert_eq!(frames.parts(), [&b"kv"[..], &[0, 0, 0, 0, 0, 0, 1, 2], b"batch"]);
        let answer: Vec<_> = publisher.replay(&258_u64.to_be_bytes()).unwrap().collect();
        assert_eq!(answer[0], frames);
        assert_eq!(answer[1].parts(), [&b""[..], &[0xff; 8], b""]);
    }

    #[test]
    fn a_publisher_that_keeps_nothing_still_numbers() {
        let mut publisher = Publisher::new(b"", 0);
        publisher.publish(b"a");
        assert_eq!(publisher.publish(b"b").sequence(), Some(1));
        assert_eq!(replayed(&publisher, 0), [None]);
    }

    #[test]
    fn a_request_of_another_length_is_refused() {
        let publisher = Publisher::new(b"", 1);
        for len in [0, 1, 7, 9] {
            assert_eq!(publisher.replay(&[0; 9][..len]).err(), Some(BadRequest { len: len32(len) }));
        }
    }
}
