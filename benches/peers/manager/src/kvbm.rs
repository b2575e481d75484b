//! `kvbm-logical`: a [`BlockManager`], and a [`RequestSequence`] per living sequence.
//!
//! [`RequestSequence`] is the cheaper of its two fronts; the other adds a state machine over it. The block that an
//! appended token needs is allocated when it is needed and not one boundary earlier, as `paged-kv` does.

use std::hint::black_box;
use std::mem;

use kvbm_logical::registry::BlockRegistry;
use kvbm_logical::{BlockManager, BlockSequence, MutableBlock, RequestSequence};

use crate::manager::{BLOCK_SIZE, Counts, Entrant, Manager};

/// More tokens than any workload appends.
const MAX_OUTPUT_TOKENS: usize = 1 << 20;

/// How blocks that nobody holds are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inactive {
    /// What the builder chooses where nothing is said: leaves first, ordered by a tick.
    Default,
    /// The crate's plain LRU: the fastest of its backends at freeing.
    Lru,
}

pub(crate) fn entrant(inactive: Inactive) -> Entrant {
    let name = match inactive {
        Inactive::Default => "kvbm-logical",
        Inactive::Lru => "kvbm-logical lru",
    };
    Entrant { name: name.to_owned(), make: Box::new(move |num_blocks| Box::new(Kvbm::new(inactive, num_blocks))) }
}

/// The tier of the blocks; the manager only needs a type.
#[derive(Clone, Debug)]
struct Tier;

struct Kvbm {
    manager: BlockManager<Tier>,
    living: Vec<RequestSequence<Tier>>,
    blank: Vec<Vec<MutableBlock<Tier>>>,
}

impl Kvbm {
    fn new(inactive: Inactive, num_blocks: u32) -> Self {
        let builder = BlockManager::builder()
            .block_count(num_blocks as usize)
            .block_size(BLOCK_SIZE as usize)
            .registry(BlockRegistry::new());
        let builder = match inactive {
            Inactive::Default => builder,
            Inactive::Lru => builder.with_lru_backend(),
        };
        let manager = builder.build().unwrap_or_else(|error| panic!("options are checked: {error}"));
        Self { manager, living: Vec::new(), blank: Vec::new() }
    }
}

impl Manager for Kvbm {
    fn counts(&self) -> Counts {
        let metrics = self.manager.metrics().snapshot();
        let [blank, cached] = [metrics.reset_pool_size, metrics.inactive_pool_size].map(i64::cast_unsigned);
        Counts { blank, cached, evictions: metrics.evictions }
    }

    fn held_blocks(&self) -> u64 {
        self.living
            .iter()
            .map(|seq| (seq.assigned_blocks() + seq.staged_blocks() + seq.unassigned_blocks()) as u64)
            .sum()
    }

    fn admit(&mut self, prompts: &mut [Vec<u32>]) {
        for prompt in prompts {
            let mut seq = RequestSequence::new(mem::take(prompt), MAX_OUTPUT_TOKENS, BLOCK_SIZE);
            let found = seq.match_and_add_prefix(&self.manager).expect("a new sequence");
            let blocks = seq.total_tokens().div_ceil(BLOCK_SIZE as usize) - found;
            assert!(seq.allocate_blocks(blocks, &self.manager));
            seq.complete_and_register_pending(&self.manager);
            self.living.push(seq);
        }
    }

    fn append(&mut self, tokens: &[u32]) {
        for step in tokens.chunks(self.living.len()) {
            for (seq, &token) in self.living.iter_mut().zip(step) {
                if seq.total_tokens() % BLOCK_SIZE as usize == 0 {
                    assert!(seq.allocate_blocks(1, &self.manager));
                }
                if seq.append_token(token).is_some() {
                    seq.complete_and_register_pending(&self.manager);
                }
            }
        }
    }

    fn free_all(&mut self) {
        // Blocks return to the pool when their guards drop.
        self.living.clear();
    }

    fn peek(&mut self, prompts: &mut [Vec<u32>], found: &mut Vec<u32>) {
        for prompt in prompts {
            let sequence = BlockSequence::new(mem::take(prompt), BLOCK_SIZE, None);
            let presence = self.manager.block_registry().check_presence::<Tier>(&sequence.all_sequence_hashes());
            found.push(presence.iter().take_while(|(_, present)| *present).map(|_| 1).sum());
        }
    }

    fn adopt(&mut self, prompts: &mut [Vec<u32>]) {
        for prompt in prompts {
            let mut seq = RequestSequence::new(mem::take(prompt), MAX_OUTPUT_TOKENS, BLOCK_SIZE);
            black_box(seq.match_and_add_prefix(&self.manager).expect("a new sequence"));
            self.living.push(seq);
        }
    }

    fn allocate(&mut self, blocks: u32) {
        self.blank.push(self.manager.allocate_blocks(blocks as usize).expect("room"));
    }

    fn release_blank(&mut self) {
        self.blank.clear();
    }

    fn reset(&mut self) {
        self.free_all();
        self.release_blank();
        self.manager.reset_inactive_pool().expect("nothing is held");
    }
}
