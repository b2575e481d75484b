//! A toy workload: chats that begin alike, on a cache that is too small for all of them.

use std::error::Error;
use std::sync::mpsc::{Receiver, channel};

use paged_kv::cache::{Release, Row};
use paged_kv::event::{Event, Refused};
use paged_kv::{CacheConfig, Extra, KvCache, Query, Scope, Step};

use crate::options::Options;

/// Tokens of a system prompt, of a turn of the user's, and of an answer.
const SYSTEM: u32 = 100;
const TURN: u32 = 60;
const ANSWER: u32 = 24;
/// Tokens of a chat at its end; there is one at a time.
pub(crate) const CHAT: u32 = SYSTEM + TURN + ANSWER;

/// A cache, and who sends it chats.
pub(crate) struct Workload {
    cache: KvCache,
    step: Step,
    events: Receiver<Event>,
    scopes: [Scope; 3],
    served: u32,
}

impl Workload {
    pub(crate) fn new(options: &Options) -> Result<Self, Box<dyn Error>> {
        let mut cache = KvCache::new(CacheConfig::new(options.num_blocks, options.block_size))?;
        let (sink, events) = channel();
        // A sink is called inside of the cache's calls: it takes note, and others do the work.
        cache.set_events(options.hasher(), move |event: &Event| sink.send(event.clone()).map_err(|_| Refused));
        let scopes = [
            Scope::default(),
            Scope::default().with_salt(b"tenant-1"),
            Scope::default().with_adapter(b"sql", 3).with_salt(b"tenant-2"),
        ];
        Ok(Self { cache, step: Step::new(), events, scopes, served: 0 })
    }

    /// Runs one chat to its end. Returns what changed of what can be found.
    pub(crate) fn chat(&mut self) -> Result<Vec<Event>, Box<dyn Error>> {
        let at = self.served;
        self.served += 1;
        let scope = &self.scopes[at as usize % self.scopes.len()];
        // Ten system prompts, the same for every tenant; some chats begin a turn of their own.
        let system = at / 3 % 10;
        let turn = (at * 7) % 30;
        let mut tokens: Vec<u32> = (0..SYSTEM).map(|i| system * 1_000 + i).collect();
        tokens.extend((0..TURN).map(|i| 100_000 + turn * TURN + i));
        // Every fourth shows an image, which stands for 20 tokens.
        let image = [Extra::new(110..130, [system.to_be_bytes()[3] + 1; 32])];
        let query = Query::default().with_extras(if at % 4 == 3 { &image } else { &[] });

        let created = self.cache.create(scope, &tokens, query)?;
        let rest = &tokens[created.cached_tokens as usize..];
        let id = self.cache.plan(&[Row::ids(created.seq, rest)], &mut self.step)?;
        self.cache.commit_all(id)?;
        for i in 0..ANSWER {
            let token = [(at * 31 + i) % 50_000];
            let id = self.cache.plan(&[Row::ids(created.seq, &token)], &mut self.step)?;
            self.cache.commit_all(id)?;
        }
        self.cache.free(created.seq, Release::Cache)?;
        Ok(self.events.try_iter().collect())
    }
}
