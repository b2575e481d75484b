//! By the priority that requests ask for, for as long as they ask for it.

use alloc::vec::Vec;

use super::{Content, Evict, Now, Retention};
use crate::error::ConfigError;
use crate::id::{BlockId, ix, len32};
use crate::list::{Links, List, NIL};

const PRIORITIES: usize = 101;

/// Evicts the lowest priority first; of one priority what has been idle longest.
///
/// Requests say by [`Retention`] how to keep the blocks they stored or found; the last word counts, until the content
/// goes. A priority above 100 counts as 100. With a duration the priority holds until that much time has passed since the
/// block became idle; then it falls back to the default and queues behind the blocks that have that priority already.
/// Time is the caller's clock; while it stands still nothing expires, and what would hold beyond its end, 2^64 - 1, never
/// does.
///
/// Where the priority is higher further down a chain, this policy names a parent before its children, and relies on the
/// cache to take the children first.
///
/// # Complexity
/// O(1), and O(log n) for blocks with a duration: a heap by expiry with exact removal, so that it never holds more than
/// the candidates. 44 bytes a block: the queues have links of their own, since blocks change queues when time passes,
/// and then the pool's links are not at hand.
///
/// # Source
/// NVIDIA's `TensorRT-LLM`, `KvCacheRetentionConfig`.
#[derive(Clone, Debug)]
pub struct Priority {
    blocks: Vec<Block>,
    links: Links,
    lists: [List; PRIORITIES],
    /// A bit per priority whose list is not empty.
    filled: u128,
    /// Candidates that will expire, the earliest first; of equal ones the one idle longest.
    heap: Vec<u32>,
    now: u64,
    /// Counts idle calls, to tell equal expiries apart.
    calls: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// How long its priority holds once it is idle, where it expires at all.
    duration: u64,
    /// Of a candidate in the heap: the first time at which it no longer holds.
    expiry: u64,
    /// Where it is in the heap, or [`NIL`].
    at: u32,
    call: u32,
    priority: u8,
    list: u8,
    expires: bool,
}

const BLANK: Block =
    Block { duration: 0, expiry: 0, at: NIL, call: 0, priority: Retention::DEFAULT_PRIORITY, list: 0, expires: false };

impl Default for Priority {
    fn default() -> Self {
        Self::new()
    }
}

impl Priority {
    /// The policy.
    pub fn new() -> Self {
        Self {
            blocks: Vec::new(),
            links: Links::default(),
            lists: [List::new(); PRIORITIES],
            filled: 0,
            heap: Vec::new(),
            now: 0,
            calls: 0,
        }
    }

    fn enqueue(&mut self, id: u32, priority: u8) {
        self.blocks[ix(id)].list = priority;
        self.lists[usize::from(priority)].push_back(&mut self.links, id);
        self.filled |= 1 << priority;
    }

    fn dequeue(&mut self, id: u32) {
        let priority = self.blocks[ix(id)].list;
        let list = &mut self.lists[usize::from(priority)];
        list.remove(&mut self.links, id);
        self.filled &= !(u128::from(list.is_empty()) << priority);
    }

    fn earlier(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.blocks[ix(a)], &self.blocks[ix(b)]);
        (a.expiry, a.call) < (b.expiry, b.call)
    }

    fn seat(&mut self, at: usize, id: u32) {
        self.heap[at] = id;
        self.blocks[ix(id)].at = len32(at);
    }

    /// Moves `id` from the open place `at` up, or else down, to where it belongs.
    fn settle(&mut self, mut at: usize, id: u32) {
        while at > 0 {
            let up = (at - 1) / 2;
            if !self.earlier(id, self.heap[up]) {
                break;
            }
            self.seat(at, self.heap[up]);
            at = up;
        }
        loop {
            let mut down = 2 * at + 1;
            if down >= self.heap.len() {
                break;
            }
            if down + 1 < self.heap.len() && self.earlier(self.heap[down + 1], self.heap[down]) {
                down += 1;
            }
            if !self.earlier(self.heap[down], id) {
                break;
            }
            self.seat(at, self.heap[down]);
            at = down;
        }
        self.seat(at, id);
    }

    fn unheap(&mut self, id: u32) {
        let at = core::mem::replace(&mut self.blocks[ix(id)].at, NIL);
        if at == NIL {
            return;
        }
        if let Some(last) = self.heap.pop()
            && last != id
        {
            self.settle(ix(at), last);
        }
    }

    /// Lets fall back what has expired.
    fn expire(&mut self) {
        while let Some(&id) = self.heap.first() {
            if self.blocks[ix(id)].expiry > self.now {
                break;
            }
            self.unheap(id);
            self.dequeue(id);
            self.enqueue(id, Retention::DEFAULT_PRIORITY);
        }
    }
}

impl Evict for Priority {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        self.links = Links::new(num_blocks).ok_or(ConfigError::OutOfMemory { num_blocks })?;
        self.blocks.try_reserve_exact(ix(num_blocks)).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
        self.blocks.resize(ix(num_blocks), BLANK);
        self.heap.try_reserve_exact(ix(num_blocks)).map_err(|_| ConfigError::OutOfMemory { num_blocks })
    }

    fn tick(&mut self, now: Now) {
        self.now = now.time;
        self.expire();
    }

    fn stored(&mut self, block: BlockId, _content: &Content<'_>) {
        self.blocks[block.index()] = BLANK;
    }

    fn retain(&mut self, block: BlockId, retention: Retention) {
        let block = &mut self.blocks[block.index()];
        block.priority = retention.priority.min(100);
        block.expires = retention.duration.is_some();
        block.duration = retention.duration.unwrap_or(0);
    }

    fn idle(&mut self, _links: &mut Links, block: BlockId) {
        let id = block.get();
        self.calls = self.calls.wrapping_add(1);
        let (call, now) = (self.calls, self.now);
        let block = &mut self.blocks[ix(id)];
        block.call = call;
        if block.expires && block.duration == 0 {
            self.enqueue(id, Retention::DEFAULT_PRIORITY);
            return;
        }
        // A time that the clock cannot show never comes.
        let expiry = now.checked_add(block.duration).filter(|_| block.expires);
        block.expiry = expiry.unwrap_or(0);
        let priority = block.priority;
        self.enqueue(id, priority);
        if expiry.is_some() {
            self.heap.push(id);
            self.settle(self.heap.len() - 1, id);
        }
    }

    fn remove(&mut self, _links: &mut Links, block: BlockId) {
        self.unheap(block.get());
        self.dequeue(block.get());
    }

    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        let lowest = self.filled.trailing_zeros();
        let list = self.lists.get(ix(lowest))?;
        list.front().map(BlockId::new)
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{Bench, store};
    use super::*;

    fn keep(priority: u8, duration: Option<u64>) -> Retention {
        Retention { priority, duration }
    }

    #[test]
    fn lowest_priority_goes_first_and_within_one_the_longest_idle() {
        let mut bench = Bench::new(Priority::new(), 5);
        store(&mut bench, &[0, 1, 2, 3, 4]);
        bench.retain(0, keep(80, None));
        bench.retain(1, keep(0, None));
        bench.retain(3, keep(200, None));
        bench.retain(4, keep(80, None));
        bench.idle(&[0, 1, 2, 3, 4]);
        // 1 has 0, 2 the default 35, 0 and 4 have 80 and 0 was idle first, 3 is clamped to 100.
        assert_eq!(bench.drain(), [1, 2, 0, 4, 3]);
    }

    #[test]
    fn priority_falls_back_when_its_duration_has_passed_since_the_block_became_idle() {
        let mut bench = Bench::new(Priority::new(), 4);
        store(&mut bench, &[0, 1, 2, 3]);
        bench.retain(0, keep(90, Some(10)));
        bench.retain(1, keep(10, Some(30)));
        bench.retain(2, keep(50, Some(5)));
        bench.time(100);
        bench.idle(&[0, 1, 2, 3]);
        // Priorities now 90, 10, 50, 35: block 1.
        assert_eq!(bench.victim(), Some(1));
        bench.time(104);
        assert_eq!(bench.victim(), Some(1));
        // At 105 block 2 falls back behind 3, at 110 block 0 behind 2; 1 holds its 10 until 130.
        bench.time(105);
        bench.time(110);
        assert_eq!(bench.victim(), Some(1));
        bench.time(130);
        assert_eq!(bench.drain(), [3, 2, 0, 1]);
    }

    #[test]
    fn a_clock_that_stands_still_lets_nothing_expire_but_a_duration_of_none_at_all() {
        let mut bench = Bench::new(Priority::new(), 3);
        store(&mut bench, &[0, 1, 2]);
        bench.retain(0, keep(36, Some(1)));
        bench.retain(1, keep(99, Some(0)));
        bench.idle(&[0, 1, 2]);
        assert_eq!(bench.drain(), [1, 2, 0]);
    }

    #[test]
    fn what_holds_beyond_the_end_of_the_clock_does_not_expire_there() {
        let mut bench = Bench::new(Priority::new(), 5);
        store(&mut bench, &[0, 1, 2, 3, 4]);
        bench.retain(0, keep(90, Some(6)));
        bench.retain(1, keep(90, Some(5)));
        bench.retain(2, keep(90, Some(u64::MAX)));
        bench.retain(3, keep(90, Some(1)));
        bench.time(u64::MAX - 5);
        bench.idle(&[0, 1, 2]);
        bench.time(u64::MAX - 1);
        assert_eq!(bench.victim(), Some(0));
        // 5 more are the end of the clock, where block 1 falls back; 6 are beyond it, as is 1 behind the end.
        bench.time(u64::MAX);
        bench.idle(&[3, 4]);
        assert_eq!(bench.drain(), [1, 4, 0, 2, 3]);
    }

    #[test]
    fn priorities_fall_back_in_order_of_time_whatever_comes_and_goes_between() {
        // 7 is prime to 101, so the durations are each of 1 to 100 once, in an order that mixes them.
        let mut bench = Bench::new(Priority::new(), 101);
        let duration = |block: u32| block * 7 % 101;
        let blocks: Vec<u32> = (1..=100).collect();
        store(&mut bench, &blocks);
        for &block in &blocks {
            bench.retain(block, keep(90, Some(duration(block).into())));
        }
        bench.idle(&blocks);
        let is_held = |block: u32| block.is_multiple_of(3);
        blocks.iter().filter(|&&block| is_held(block)).for_each(|&block| bench.revive(block));
        for time in 1..=100 {
            bench.time(time.into());
            let block = blocks.iter().copied().find(|&block| duration(block) == time);
            if let Some(block) = block.filter(|&block| !is_held(block)) {
                assert_eq!(bench.evict(), Some(block), "at {time}");
            }
        }
        assert_eq!(bench.victim(), None);
    }

    #[test]
    fn being_held_again_starts_the_duration_anew() {
        let mut bench = Bench::new(Priority::new(), 2);
        store(&mut bench, &[0, 1]);
        bench.retain(0, keep(90, Some(10)));
        bench.idle(&[0, 1]);
        bench.time(9);
        bench.revive(0);
        bench.time(50);
        bench.idle(&[0]);
        bench.time(59);
        assert_eq!(bench.victim(), Some(1));
        bench.time(60);
        assert_eq!(bench.drain(), [1, 0]);
    }

    #[test]
    fn new_content_starts_from_the_default() {
        let mut bench = Bench::new(Priority::new(), 2);
        store(&mut bench, &[0, 1]);
        bench.retain(0, keep(90, None));
        bench.idle(&[0]);
        assert_eq!(bench.drain(), [0]);
        store(&mut bench, &[0]);
        bench.idle(&[0, 1]);
        assert_eq!(bench.drain(), [0, 1]);
    }
}
