//! What changed of what can be found, by asking the cache.

use std::collections::HashMap;
use std::sync::Arc;

use paged_kv::error::CreateError;
use paged_kv::event::{Event, Stored};
use paged_kv::prefix::hash::{BlockHasher, Digest, identities};
use paged_kv::{BlockId, Extra, KvCache, Query, Scope};

/// Knows what was announced, and looks what of it is still there.
pub(crate) struct Watch {
    hasher: Box<dyn BlockHasher>,
    block_size: u32,
    known: HashMap<Digest, Known>,
}

/// Content that was announced, with the prompt that leads to its end.
struct Known {
    scope: Arc<Scope>,
    tokens: Vec<u32>,
    extras: Vec<Extra>,
}

impl Watch {
    pub(crate) fn new(hasher: Box<dyn BlockHasher>, block_size: u32) -> Self {
        Self { hasher, block_size, known: HashMap::new() }
    }

    /// The events since the last call, in which nothing was computed but `tokens`.
    pub(crate) fn changes(
        &mut self,
        cache: &KvCache,
        scope: &Arc<Scope>,
        tokens: &[u32],
        extras: &[Extra],
    ) -> Result<Vec<Event>, CreateError> {
        let mut gone = Vec::new();
        for (&identity, known) in &self.known {
            if found(cache, &known.scope, &known.tokens, &known.extras)? < known.tokens.len() {
                gone.push((known.tokens.len(), identity));
            }
        }
        // Ends of chains first, so that no child is without its parent in between; then in any order that is always one.
        gone.sort_by(|a, b| b.cmp(a));
        let mut events = Vec::new();
        for (_, identity) in gone {
            self.known.remove(&identity);
            events.push(Event::Removed { identity });
        }

        let there = found(cache, scope, tokens, extras)?;
        let mut parent = None;
        let mut end = 0;
        for identity in identities(&*self.hasher, scope, &tokens[..there], self.block_size, extras)? {
            let start = end;
            end += self.block_size as usize;
            let overlapping: Vec<_> =
                extras.iter().filter(|extra| (extra.range.start as usize) < end).cloned().collect();
            let known = Known { scope: scope.clone(), tokens: tokens[..end].to_vec(), extras: overlapping.clone() };
            if self.known.insert(identity, known).is_none() {
                let extras = overlapping.into_iter().filter(|extra| extra.range.end as usize > start).collect();
                let position = u32::try_from(start).unwrap_or(u32::MAX);
                let stored = Stored::new(identity, parent, scope.clone(), position, tokens[start..end].into());
                events.push(Event::Stored(stored.with_extras(extras).in_block(BlockId::new(0))));
            }
            parent = Some(identity);
        }
        Ok(events)
    }
}

/// How many tokens of whole blocks can be found. One more token than there are: the last token of a prompt is never
/// found, so that there is one to compute.
fn found(cache: &KvCache, scope: &Scope, tokens: &[u32], extras: &[Extra]) -> Result<usize, CreateError> {
    let longer = [tokens, &[0]].concat();
    Ok(cache.peek(scope, &longer, Query::default().with_extras(extras))?.cached_tokens as usize)
}
