//! Handles: sequences in a slab, each index with a generation.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::id::{SeqId, ix, len32};
use crate::prefix::OwnedQuery;
use crate::sequence::{Plain, Sequence};

/// All living sequences.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub(super) struct Sequences {
    entries: Vec<Entry>,
    /// Indices without a sequence, the last one to be used next.
    vacant: Vec<u32>,
    /// Buffers of sequences that have ended.
    spare: Vec<Sequence>,
    len: u32,
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    generation: u32,
    sequence: Option<Sequence>,
}

impl Sequences {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Whether `extra` more sequences have handles left.
    pub(super) fn has_room(&self, extra: usize) -> bool {
        let fresh = extra.saturating_sub(self.vacant.len());
        self.entries.len().checked_add(fresh).is_some_and(|len| len < ix(u32::MAX))
    }

    /// An empty sequence, in the buffers of one that has ended if there is any.
    pub(super) fn fresh(&mut self, scope: u32, query: Option<Box<OwnedQuery>>) -> Sequence {
        let spare = self.spare.pop().map_or_else(Default::default, |spare| (spare.table, spare.tail));
        Sequence::new(scope, query, spare)
    }

    /// Keeps the buffers of a sequence that has given its blocks back.
    pub(super) fn recycle(&mut self, mut sequence: Sequence) {
        debug_assert!(sequence.table.is_empty() && sequence.displaced.is_none());
        sequence.query = None;
        sequence.tail.clear();
        sequence.shrink_tail(0);
        self.spare.push(sequence);
    }

    pub(super) fn insert(&mut self, sequence: Sequence) -> SeqId {
        self.len += 1;
        if let Some(index) = self.vacant.pop() {
            let entry = &mut self.entries[ix(index)];
            entry.sequence = Some(sequence);
            return SeqId { index, generation: entry.generation };
        }
        self.entries.push(Entry { generation: 0, sequence: Some(sequence) });
        SeqId { index: len32(self.entries.len() - 1), generation: 0 }
    }

    #[inline]
    pub(super) fn get(&self, id: SeqId) -> Option<&Sequence> {
        let entry = self.entries.get(ix(id.index))?;
        entry.sequence.as_ref().filter(|_| entry.generation == id.generation)
    }

    /// A sequence to be changed in any way: it is ready for plain appends no more.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let sequence = self.get_plain(id)?;
        sequence.plain = Plain::NONE;
        Some(sequence)
    }

    /// A sequence to be changed in nothing that its [plain appends](Plain) rely on.
    #[inline]
    pub(super) fn get_plain(&mut self, id: SeqId) -> Option<&mut Sequence> {
        match self.entries.get_mut(ix(id.index))? {
            Entry { generation, sequence } if *generation == id.generation => sequence.as_mut(),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        self.get(id)?;
        let entry = &mut self.entries[ix(id.index)];
        let sequence = entry.sequence.take();
        self.len -= 1;
        // An index whose generations are used up is never used again: a handle cannot come alive a second time.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.vacant.push(id.index);
        }
        sequence
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.entries.iter().zip(0_u32..).filter_map(|(entry, index)| {
            let id = SeqId { index, generation: entry.generation };
            entry.sequence.as_ref().map(|sequence| (id, sequence))
        })
    }

    /// All of them, to be changed in any way.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (SeqId, &mut Sequence)> {
        self.entries.iter_mut().zip(0_u32..).filter_map(|(entry, index)| {
            let id = SeqId { index, generation: entry.generation };
            let sequence = entry.sequence.as_mut()?;
            sequence.plain = Plain::NONE;
            Some((id, sequence))
        })
    }

    /// What a caller could tell apart, as numbers.
    #[cfg(test)]
    pub(super) fn snapshot(&self, out: &mut Vec<u64>) {
        out.extend(self.entries.iter().map(|entry| u64::from(entry.generation)));
        out.extend(self.vacant.iter().map(|&index| u64::from(index)));
    }
}
