//! Whether the pool contradicts itself.

#[cfg(test)]
use alloc::vec::Vec;

use super::BlockPool;
use crate::evict::Evict;
use crate::id::{BlockId, ix, len32};

impl<E: Evict> BlockPool<E> {
    /// Checks the lists against the counts; `expected` gives references and displaced ones of each block.
    pub(crate) fn check(&self, expected: impl Fn(BlockId) -> (u32, u32)) -> Result<(), &'static str> {
        let mut on_list = alloc::vec![false; self.records.len()];
        for list in [&self.blank, &self.withheld] {
            let mut len = 0;
            for id in list.iter(&self.links) {
                if len == list.len() || core::mem::replace(&mut on_list[ix(id)], true) {
                    return Err("a block is on two lists, or a list is longer than it says");
                }
                len += 1;
            }
            if len != list.len() {
                return Err("a list is shorter than it says");
            }
        }
        let idle = self.records.iter().filter(|record| record.refs() == 0);
        if idle.filter(|record| record.identity.is_some()).count() != ix(self.cached) {
            return Err("the number of cached blocks is wrong");
        }
        if self.records.iter().filter(|record| record.refs() > 1).count() != ix(self.shared) {
            return Err("the number of shared blocks is wrong");
        }
        let (first, mut candidates, mut displaced) = (self.records.len() - ix(self.capacity), 0, 0);
        for (index, record) in self.records.iter().enumerate() {
            let block = BlockId::new(len32(index));
            let gone = self.displaced.get(&block.get()).map_or(0, |gone| gone.count);
            displaced += usize::from(gone > 0);
            if (record.refs(), gone) != expected(block) {
                return Err("a reference count is not the number of holders");
            }
            if index < first {
                if record.refs != 0 {
                    return Err("a reserved block is in use");
                }
            } else if (record.refs() > 0) == record.is_listed() {
                return Err("a block is neither held nor idle, or both");
            }
            let candidate = self.is_candidate(block);
            candidates += u32::from(candidate);
            if record.is_listed() && on_list[index] == candidate {
                return Err("an idle block is on the wrong list");
            }
        }
        if self.displaced.len() != displaced {
            return Err("a block waits for a holder that does not come back");
        }
        if self.available != self.blank.len() + candidates {
            return Err("the number of available blocks is wrong");
        }
        Ok(())
    }

    /// Everything that a caller could tell apart, as numbers, but for the policy's order.
    #[cfg(test)]
    pub(crate) fn snapshot(&self, out: &mut Vec<u64>) {
        for (record, id) in self.records.iter().zip(0_u32..) {
            let gone = self.displaced.get(&id).copied().unwrap_or_default();
            out.extend([record.refs, gone.count, gone.len, u32::from(record.identity.is_some())].map(u64::from));
        }
        out.extend(&self.fences);
        out.extend(self.blank.iter(&self.links).map(u64::from));
        out.push(u64::MAX);
        out.extend(self.withheld.iter(&self.links).map(u64::from));
        out.push(self.retired);
    }
}

#[cfg(test)]
impl<E: Evict + Clone> BlockPool<E> {
    /// The candidates in the order in which the policy would evict them, until it names one that is none.
    pub(crate) fn order(&self) -> Vec<u64> {
        let (mut policy, mut links, mut out) = (self.policy.clone(), self.links.clone(), Vec::new());
        while let Some(block) = policy.victim(&links) {
            if !self.is_candidate(block) || out.contains(&u64::from(block.get())) {
                break;
            }
            policy.remove(&mut links, block);
            out.push(u64::from(block.get()));
        }
        out
    }
}
