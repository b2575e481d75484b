//! Scopes: what must be equal before any token is compared.
//!
//! Floor 1.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::id::{ix, len32};
use crate::list::NIL;

/// What a first block stands on: everything but tokens and extras that the content of K and V depends on, and whoever
/// must not share. Compared in full. The default is the empty scope: one model, no adapters, one tenant.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct Scope {
    /// Model and revision.
    pub model: Box<[u8]>,
    /// Name of the adapter, `LoRA` or other; empty without.
    pub adapter: Box<[u8]>,
    /// Version of the adapter's *content*: an adapter that is replaced under its name is another one.
    pub adapter_version: u64,
    /// Salt of a tenant: two tenants with different salts share nothing, and learn nothing from timing.
    pub salt: Box<[u8]>,
}

impl Scope {
    /// The same for another model.
    pub fn with_model(self, model: &[u8]) -> Self {
        Self { model: model.into(), ..self }
    }

    /// The same with an adapter of this name and content version.
    pub fn with_adapter(self, name: &[u8], version: u64) -> Self {
        Self { adapter: name.into(), adapter_version: version, ..self }
    }

    /// The same for a tenant.
    pub fn with_salt(self, salt: &[u8]) -> Self {
        Self { salt: salt.into(), ..self }
    }
}

/// The scopes in use, each with a number and a count of its users.
#[derive(Clone, Debug)]
pub(crate) struct Scopes {
    /// Picks candidates and decides nothing: scopes are compared.
    hasher: FixedState,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    table: HashTable<u32>,
}

#[derive(Clone, Debug)]
struct Entry {
    scope: Arc<Scope>,
    uses: u32,
    /// The index's link to the first blocks under this scope.
    top: u32,
}

impl Scopes {
    pub(crate) fn new(hash_seed: u64) -> Self {
        let hasher = FixedState::with_seed(hash_seed);
        Self { hasher, entries: Vec::new(), vacant: Vec::new(), table: HashTable::new() }
    }

    #[inline]
    fn hash(&self, scope: &Scope) -> u64 {
        #[cfg(test)]
        if crate::planted::all_scopes_collide() {
            return 0;
        }
        self.hasher.hash_one(scope)
    }

    pub(crate) fn find(&self, scope: &Scope) -> Option<u32> {
        let same = |&id: &u32| *self.entries[ix(id)].scope == *scope;
        self.table.find(self.hash(scope), same).copied()
    }

    /// The number of a scope, with one more user.
    pub(crate) fn acquire(&mut self, scope: &Scope) -> u32 {
        if let Some(id) = self.find(scope) {
            self.entries[ix(id)].uses += 1;
            return id;
        }
        let entry = Entry { scope: Arc::new(scope.clone()), uses: 1, top: NIL };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.entries[ix(id)] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                len32(self.entries.len() - 1)
            }
        };
        let hash = self.hash(scope);
        let mut table = core::mem::take(&mut self.table);
        table.insert_unique(hash, id, |&id| self.hash(&self.entries[ix(id)].scope));
        self.table = table;
        id
    }

    /// One more user of a scope that has one.
    pub(crate) fn share(&mut self, id: u32) {
        self.entries[ix(id)].uses += 1;
    }

    /// One user less; the last one takes the scope along.
    pub(crate) fn release(&mut self, id: u32) {
        let entry = &mut self.entries[ix(id)];
        entry.uses -= 1;
        if entry.uses > 0 {
            return;
        }
        let scope = core::mem::take(&mut entry.scope);
        let hash = self.hash(&scope);
        if let Ok(found) = self.table.find_entry(hash, |&other| other == id) {
            found.remove();
        }
        self.vacant.push(id);
    }

    #[inline]
    pub(super) fn top(&self, id: u32) -> u32 {
        self.entries.get(ix(id)).map_or(NIL, |entry| entry.top)
    }

    pub(super) fn set_top(&mut self, id: u32, top: u32) {
        self.entries[ix(id)].top = top;
    }

    /// The links of all scopes.
    pub(super) fn tops(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|entry| entry.top)
    }

    pub(crate) fn uses(&self, id: u32) -> u32 {
        self.entries.get(ix(id)).map_or(0, |entry| entry.uses)
    }

    pub(crate) fn get(&self, id: u32) -> &Arc<Scope> {
        &self.entries[ix(id)].scope
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(number: u32) -> Scope {
        Scope::default().with_salt(&number.to_le_bytes())
    }

    #[test]
    fn the_last_user_of_a_scope_takes_it_along_and_the_next_scope_has_its_place() {
        let mut scopes = Scopes::new(0);
        let id = scopes.acquire(&tenant(0));
        assert_eq!((scopes.acquire(&tenant(0)), scopes.uses(id)), (id, 2));
        scopes.share(id);
        scopes.release(id);
        scopes.release(id);
        assert_eq!((scopes.find(&tenant(0)), scopes.uses(id)), (Some(id), 1));
        let scope = Arc::downgrade(scopes.get(id));
        scopes.release(id);
        assert_eq!((scopes.find(&tenant(0)), scopes.uses(id)), (None, 0));
        assert!(scope.upgrade().is_none(), "nothing is kept of it");
        assert_eq!((scopes.acquire(&tenant(1)), scopes.len()), (id, 1));
    }

    #[test]
    fn scopes_are_told_apart_by_a_hash_before_they_are_compared() {
        // Of 10,000 numbers of 64 bits two are equal with a chance of 10^8 / 2^65.
        let hashes = |seed| {
            let scopes = Scopes::new(seed);
            (0..5_000).map(move |number| scopes.hash(&tenant(number)))
        };
        let mut all: Vec<u64> = hashes(1).chain(hashes(2)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
    }
}
