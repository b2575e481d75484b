//! Pins: cached prefixes that are held without a sequence.

use super::KvCache;
use super::create::Nodes;
use crate::error::{CreateError, SequenceError};
use crate::evict::Evict;
use crate::id::{SeqId, TokenId, len32};
use crate::prefix::{Query, Scope};

/// A handle to a pin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PinId(SeqId);

/// What [`KvCache::pin`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pinned {
    /// Its handle.
    pub pin: PinId,
    /// Leading tokens whose blocks are held: whole blocks, as far as they are in the cache.
    pub tokens: u32,
}

impl<E: Evict> KvCache<E> {
    /// Holds what is in the cache of a prefix, in whole blocks, until [`unpin`](Self::unpin): the system prompt that
    /// every request begins with, say. Nothing is computed; a pin of what is not there yet holds nothing. As a hit, a pin
    /// never takes blocks that are reserved.
    ///
    /// # Errors
    /// As [`create`](Self::create); then nothing changed.
    ///
    /// # Complexity
    /// O(tokens found).
    pub fn pin(&mut self, scope: &Scope, tokens: &[TokenId], query: Query<'_>) -> Result<Pinned, CreateError> {
        self.check_prompt(tokens, &query)?;
        if !self.pins.has_room(1) {
            return Err(CreateError::TooManySequences);
        }
        let scope = self.blocks.index.scopes.acquire(scope);
        let mut nodes = Nodes::new();
        let computed = |node| self.blocks.index.computed_entry(node).is_some();
        let (_, hits) = self.walk_blocks(scope, tokens, query, len32(tokens.len()), computed, &mut nodes);
        let mut sequence = self.seqs.fresh(scope, query.to_owned());
        self.adopt(&nodes[..hits], None, &mut sequence);
        let tokens = sequence.committed;
        Ok(Pinned { pin: PinId(self.pins.insert(sequence)), tokens })
    }

    /// Lets go of what a pin holds.
    ///
    /// # Errors
    /// [`SequenceError::UnknownPin`] for a pin that is gone.
    ///
    /// # Complexity
    /// O(blocks).
    pub fn unpin(&mut self, pin: PinId) -> Result<(), SequenceError> {
        let Some(mut sequence) = self.pins.remove(pin.0) else {
            return Err(SequenceError::UnknownPin);
        };
        super::commit::shrink(&mut self.blocks, &mut sequence, 0, 0);
        self.blocks.index.scopes.release(sequence.scope);
        self.pins.recycle(sequence);
        self.deliver();
        Ok(())
    }
}
