//! Doubly linked lists threaded through an array by index: O(1) removal from the middle, no allocation, no pointers.
//!
//! Floor 0. [`Links`] holds one pair of links per block; any number of [`List`]s may be threaded through it, as long as
//! a block is on at most one of them at a time.

use alloc::vec::Vec;

use crate::id::ix;

/// No block: the end of a list.
pub const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// The links of all blocks.
#[derive(Clone, Debug, Default)]
pub struct Links(Vec<Link>);

impl Links {
    /// Links for `len` blocks, or `None` where memory does not suffice.
    pub fn new(len: u32) -> Option<Self> {
        let mut links = Vec::new();
        links.try_reserve_exact(ix(len)).ok()?;
        links.resize(ix(len), Link { prev: NIL, next: NIL });
        Some(Self(links))
    }
}

/// A list of blocks.
#[derive(Clone, Copy, Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }

    /// Blocks on it.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// The first block.
    pub const fn front(&self) -> Option<u32> {
        if self.head == NIL { None } else { Some(self.head) }
    }

    /// The first block, or [`NIL`].
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    /// Appends a block that is on no list.
    pub fn push_back(&mut self, links: &mut Links, id: u32) {
        self.insert(links, id, self.tail, NIL);
    }

    /// Prepends a block that is on no list.
    pub fn push_front(&mut self, links: &mut Links, id: u32) {
        self.insert(links, id, NIL, self.head);
    }

    /// Puts a block that is on no list in front of `next`, which is on this one.
    pub fn insert_before(&mut self, links: &mut Links, id: u32, next: u32) {
        let prev = links.0[ix(next)].prev;
        self.insert(links, id, prev, next);
    }

    fn insert(&mut self, links: &mut Links, id: u32, prev: u32, next: u32) {
        links.0[ix(id)] = Link { prev, next };
        match prev {
            NIL => self.head = id,
            prev => links.0[ix(prev)].next = id,
        }
        match next {
            NIL => self.tail = id,
            next => links.0[ix(next)].prev = id,
        }
        self.len += 1;
    }

    /// Takes `id`, which must be on this list, out of it.
    pub fn remove(&mut self, links: &mut Links, id: u32) {
        let Link { prev, next } = links.0[ix(id)];
        match prev {
            NIL => self.head = next,
            prev => links.0[ix(prev)].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => links.0[ix(next)].prev = prev,
        }
        self.len -= 1;
    }

    /// The block behind `id` on its list, or [`NIL`].
    pub fn after(links: &Links, id: u32) -> u32 {
        links.0[ix(id)].next
    }

    /// The blocks in order.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + use<'a> {
        let mut at = self.head;
        core::iter::from_fn(move || {
            let id = (at != NIL).then_some(at)?;
            at = Self::after(links, id);
            Some(id)
        })
    }
}

/// A list without ends or length, named by its first block: four bytes where most lists are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ring(pub(crate) u32);

impl Ring {
    pub(crate) const EMPTY: Self = Self(NIL);

    pub(crate) fn push_back(&mut self, links: &mut Links, id: u32) {
        if self.0 == NIL {
            links.0[ix(id)] = Link { prev: id, next: id };
            self.0 = id;
            return;
        }
        let last = core::mem::replace(&mut links.0[ix(self.0)].prev, id);
        links.0[ix(last)].next = id;
        links.0[ix(id)] = Link { prev: last, next: self.0 };
    }

    pub(crate) fn push_front(&mut self, links: &mut Links, id: u32) {
        self.push_back(links, id);
        self.0 = id;
    }

    /// Takes `id`, which must be on this ring, out of it.
    pub(crate) fn remove(&mut self, links: &mut Links, id: u32) {
        let Link { prev, next } = links.0[ix(id)];
        if next == id {
            self.0 = NIL;
            return;
        }
        links.0[ix(prev)].next = next;
        links.0[ix(next)].prev = prev;
        if self.0 == id {
            self.0 = next;
        }
    }

    pub(crate) fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + use<'a> {
        let (first, mut at) = (self.0, self.0);
        core::iter::from_fn(move || {
            let id = (at != NIL).then_some(at)?;
            at = links.0[ix(id)].next;
            if at == first {
                at = NIL;
            }
            Some(id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_order_through_removals_at_both_ends_and_inside() {
        let mut links = Links::new(6).unwrap();
        let mut list = List::new();
        for id in [2, 4, 0] {
            list.push_back(&mut links, id);
        }
        list.push_front(&mut links, 5);
        assert!(list.iter(&links).eq([5, 2, 4, 0]));
        list.remove(&mut links, 4);
        list.insert_before(&mut links, 4, 0);
        assert!(list.iter(&links).eq([5, 2, 4, 0]));
        list.remove(&mut links, 4);
        list.remove(&mut links, 5);
        list.remove(&mut links, 0);
        assert!(list.iter(&links).eq([2]));
        list.remove(&mut links, 2);
        assert_eq!((list.len(), list.head()), (0, NIL));
        list.push_front(&mut links, 1);
        assert!(list.iter(&links).eq([1]));
    }

    #[test]
    fn a_ring_keeps_order_through_removals() {
        let mut links = Links::new(6).unwrap();
        let mut ring = Ring::EMPTY;
        for id in [2, 4, 0] {
            ring.push_back(&mut links, id);
        }
        ring.push_front(&mut links, 5);
        assert!(ring.iter(&links).eq([5, 2, 4, 0]));
        ring.remove(&mut links, 5);
        ring.remove(&mut links, 4);
        assert!(ring.iter(&links).eq([2, 0]));
        ring.remove(&mut links, 0);
        ring.remove(&mut links, 2);
        assert_eq!(ring, Ring::EMPTY);
    }
}
