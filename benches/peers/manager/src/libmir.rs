//! `libmir-runtime`: its [`KvCache`], and a [`KvSessionState`] per living sequence.

use std::hint::black_box;

use libmir_runtime::kv::{BlockTable, CacheConfig, KvCache, KvSessionState};
use uuid::Uuid;

use crate::manager::{BLOCK_SIZE, Counts, Entrant, Manager};

/// Goes into every hash.
const MODEL: &str = "model";

pub(crate) fn entrant() -> Entrant {
    Entrant { name: "libmir-runtime".to_owned(), make: Box::new(|num_blocks| Box::new(Libmir::new(num_blocks))) }
}

struct Libmir {
    cache: KvCache,
    living: Vec<KvSessionState>,
    blank: Vec<BlockTable>,
    sessions: u128,
}

impl Libmir {
    fn new(num_blocks: u32) -> Self {
        let config = CacheConfig { block_size: BLOCK_SIZE as usize, ..CacheConfig::new(num_blocks) };
        Self { cache: KvCache::with_config(config), living: Vec::new(), blank: Vec::new(), sessions: 0 }
    }

    /// A session with a counted id: a random one would cost a system call.
    fn session(&mut self) -> KvSessionState {
        self.sessions += 1;
        KvSessionState::new(Uuid::from_u128(self.sessions), MODEL, BLOCK_SIZE as usize)
    }
}

impl Manager for Libmir {
    fn counts(&self) -> Counts {
        let stats = self.cache.stats();
        Counts {
            blank: stats.free_blocks as u64,
            cached: stats.cached_prefixes as u64,
            evictions: stats.counters.evictions as u64,
        }
    }

    fn held_blocks(&self) -> u64 {
        self.living.iter().map(|session| session.table().blocks().len() as u64).sum()
    }

    fn admit(&mut self, prompts: &mut [Vec<u32>]) {
        for prompt in prompts {
            let mut session = self.session();
            session.prepare_prefill_in_place(&mut self.cache, prompt).expect("room");
            black_box(session.commit_ready_prefix_blocks(&mut self.cache).expect("blocks are held"));
            self.living.push(session);
        }
    }

    fn append(&mut self, tokens: &[u32]) {
        for step in tokens.chunks(self.living.len()) {
            for (session, &token) in self.living.iter_mut().zip(step) {
                session.append_decode_in_place(&mut self.cache, token).expect("room");
                if session.token_len() % BLOCK_SIZE as usize == 0 {
                    session.commit_ready_prefix_blocks(&mut self.cache).expect("blocks are held");
                }
            }
        }
    }

    fn free_all(&mut self) {
        for mut session in self.living.drain(..) {
            session.release(&mut self.cache).expect("held");
        }
    }

    fn peek(&mut self, prompts: &mut [Vec<u32>], found: &mut Vec<u32>) {
        for prompt in prompts {
            let probe = self.cache.probe_prefix(MODEL, prompt);
            found.push(u32::try_from(probe.cached_blocks.len()).expect("blocks of a pool"));
        }
    }

    fn adopt(&mut self, prompts: &mut [Vec<u32>]) {
        for prompt in prompts {
            let mut session = self.session();
            session.probe_prefill_with_reserve_in_place(&mut self.cache, prompt, 0).expect("a new session");
            self.living.push(session);
        }
    }

    fn allocate(&mut self, blocks: u32) {
        let allocation = self.cache.allocate_for_tokens((blocks * BLOCK_SIZE) as usize).expect("room");
        self.blank.push(allocation.table);
    }

    fn release_blank(&mut self) {
        for table in self.blank.drain(..) {
            self.cache.release_table(&table).expect("held");
        }
    }

    fn reset(&mut self) {
        self.free_all();
        self.release_blank();
        // Whoever takes every block evicts all content.
        let blocks = u32::try_from(self.cache.stats().total_blocks).expect("made from a u32");
        self.allocate(blocks);
        self.release_blank();
    }
}
