//! The children of a node, told apart by their content: a crit-bit tree per parent, and no hash.
//!
//! Floor 1. A parent with one child points at it. Every further child brings one *fork*: a bit in which the children on
//! its two sides differ, the first such bit, counted from the top bit of the first token. A descent looks at one bit per
//! fork and ends at the child that shares the longest beginning with what is looked for; one comparison then decides.
//!
//! Behind the tokens, which all children have the same number of, come the extras, ten words each; a missing extra reads
//! as zeros, which no extra is, since its range ends behind position 0.
//!
//! A fork is kept in the place of one of the nodes below it, each node bringing one place, so that nothing is allocated
//! but what nodes are. Invariant: the fork in the place of node n, if it is in use, lies on the way from the parent to n.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::id::{TokenId, ix, len32};
use crate::list::NIL;
use crate::prefix::Extra;

/// Marks a link that leads to a fork; [`NIL`] is looked for first.
const FORK: u32 = 1 << 31;

/// Words of an extra: both ends of its range and its digest.
const EXTRA_WORDS: usize = 10;

/// What tells a child from its siblings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) extras: &'a [Extra],
}

impl Key<'_> {
    /// One word of the content as a number.
    #[inline]
    fn word(&self, at: usize) -> u32 {
        match self.tokens.get(at) {
            Some(&token) => token,
            None => self.extra_word(at - self.tokens.len()),
        }
    }

    #[cold]
    fn extra_word(&self, at: usize) -> u32 {
        let Some(extra) = self.extras.get(at / EXTRA_WORDS) else { return 0 };
        match at % EXTRA_WORDS {
            0 => extra.range.start,
            1 => extra.range.end,
            word => extra
                .digest
                .chunks_exact(4)
                .nth(word - 2)
                .map_or(0, |bytes| bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte))),
        }
    }

    /// Which side of a fork at `bit` this content lies on.
    #[inline]
    fn side(&self, bit: u32) -> usize {
        ix(self.word(ix(bit >> 5)) >> (31 - (bit & 31)) & 1)
    }

    /// The first bit in which two contents differ: word × 32 + bit from the top.
    fn first_difference(&self, other: &Key<'_>) -> Option<u32> {
        let words = self.tokens.len() + EXTRA_WORDS * self.extras.len().max(other.extras.len());
        let at = (0..words).find(|&at| self.word(at) != other.word(at))?;
        Some(len32(at) * 32 + (self.word(at) ^ other.word(at)).leading_zeros())
    }

    /// Tokens up to which two contents agree: tokens, and the extras that overlap them.
    pub(crate) fn agreement(&self, other: &Key<'_>, start: u32) -> u32 {
        let tokens = len32(self.tokens.iter().zip(other.tokens).take_while(|(a, b)| a == b).count());
        let at = self.extras.iter().zip(other.extras).take_while(|(a, b)| a == b).count();
        let next = [self.extras.get(at), other.extras.get(at)];
        let until = next.into_iter().flatten().map(|extra| extra.range.start.saturating_sub(start)).min();
        tokens.min(until.unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Copy, Debug)]
struct Fork {
    bit: u32,
    sides: [u32; 2],
}

/// All forks. `key` in the calls below gives the content of a node, `top` is the parent's link to its children.
#[derive(Clone, Debug, Default)]
pub(super) struct Forks(Vec<Fork>);

impl Forks {
    /// Room for so many nodes; `None` where memory does not suffice.
    pub(super) fn reserve(&mut self, nodes: usize) -> Option<()> {
        self.0.try_reserve_exact(nodes).ok()
    }

    /// Makes room for the fork that node `id` may bring.
    #[inline]
    pub(super) fn grow(&mut self, id: u32) {
        if ix(id) >= self.0.len() {
            self.0.resize(ix(id) + 1, Fork { bit: 0, sides: [NIL; 2] });
        }
    }

    /// Room for more.
    pub(super) fn reserve_more(&mut self, nodes: usize) {
        self.0.reserve_exact(nodes);
    }

    /// Forgets the places from `id` on, which are not in use.
    pub(super) fn truncate(&mut self, id: u32) {
        self.0.truncate(ix(id));
    }

    /// Keeps room for no more than there are.
    pub(super) fn shrink_to_fit(&mut self) {
        self.0.shrink_to_fit();
    }

    /// The child that shares the longest beginning with a content, or [`NIL`] where there are no children.
    #[inline]
    pub(super) fn nearest(&self, mut link: u32, key: &Key<'_>) -> u32 {
        while link & FORK != 0 && link != NIL {
            let fork = &self.0[ix(link & !FORK)];
            link = fork.sides[key.side(fork.bit)];
        }
        link
    }

    /// The children, those that share the longest beginning with a content first, until `visit` is satisfied.
    ///
    /// # Complexity
    /// O(depth + children visited).
    pub(super) fn nearest_first(&self, top: u32, key: &Key<'_>, mut visit: impl FnMut(u32) -> bool) {
        let mut open: SmallVec<[u32; 16]> = smallvec::smallvec![top];
        while let Some(mut link) = open.pop() {
            // The other sides of the forks on a way differ from the content at that fork: the deeper, the later.
            while link & FORK != 0 && link != NIL {
                let fork = &self.0[ix(link & !FORK)];
                let way = key.side(fork.bit);
                open.push(fork.sides[1 - way]);
                link = fork.sides[way];
            }
            if link != NIL && visit(link) {
                return;
            }
        }
    }

    /// Adds node `id`, whose content no child has, to the children under `top`.
    pub(super) fn add<'a>(&mut self, top: &mut u32, id: u32, key: impl Fn(u32) -> Key<'a>) {
        if *top == NIL {
            *top = id;
            return;
        }
        let own = key(id);
        let Some(bit) = own.first_difference(&key(self.nearest(*top, &own))) else {
            debug_assert!(false, "a child with this content is there already");
            return;
        };
        // The new fork goes where the bits that are looked at pass its own.
        let (mut link, mut above) = (*top, None);
        while link & FORK != 0 {
            let fork = &self.0[ix(link & !FORK)];
            if fork.bit > bit {
                break;
            }
            let way = own.side(fork.bit);
            above = Some((link & !FORK, way));
            link = fork.sides[way];
        }
        let mut sides = [id, link];
        if own.side(bit) == 1 {
            sides.swap(0, 1);
        }
        self.0[ix(id)] = Fork { bit, sides };
        self.set(top, above, id | FORK);
    }

    /// Takes node `id`, of this content, out of the children under `top`.
    #[inline]
    pub(super) fn remove(&mut self, top: &mut u32, id: u32, key: &Key<'_>) {
        if *top == id {
            *top = NIL;
            return;
        }
        // The last two forks on the way to the node, and who points at the fork in the node's own place.
        let (mut link, mut above, mut parent) = (*top, None, None);
        let mut own = None;
        while link & FORK != 0 && link != NIL {
            let fork = link & !FORK;
            if fork == id {
                own = Some(above);
            }
            parent = above;
            let way = key.side(self.0[ix(fork)].bit);
            above = Some((fork, way));
            link = self.0[ix(fork)].sides[way];
        }
        debug_assert_eq!(link, id, "the node is a child");
        let Some((gone, way)) = above else { return };
        // The fork above the node goes with it: its other side moves up.
        let other = self.0[ix(gone)].sides[1 - way];
        self.set(top, parent, other);
        if let Some(above) = own
            && gone != id
        {
            // The fork in the node's place lives on, in the place that has just become free.
            self.0[ix(gone)] = self.0[ix(id)];
            self.set(top, above, gone | FORK);
        }
    }

    fn set(&mut self, top: &mut u32, at: Option<(u32, usize)>, link: u32) {
        match at {
            None => *top = link,
            Some((fork, way)) => self.0[ix(fork)].sides[way] = link,
        }
    }

    /// The first child in the order of contents, or [`NIL`].
    pub(super) fn first(&self, mut link: u32) -> u32 {
        while link & FORK != 0 && link != NIL {
            link = self.0[ix(link & !FORK)].sides[0];
        }
        link
    }

    /// The children under `top`, in the order of their contents, until `visit` is satisfied.
    pub(super) fn each(&self, top: u32, mut visit: impl FnMut(u32) -> bool) {
        let mut open: SmallVec<[u32; 16]> = smallvec::smallvec![top];
        while let Some(link) = open.pop() {
            if link == NIL {
                continue;
            }
            if link & FORK == 0 {
                if visit(link) {
                    return;
                }
                continue;
            }
            let [low, high] = self.0[ix(link & !FORK)].sides;
            open.push(high);
            open.push(low);
        }
    }

    /// Whether bits ascend along every way down, and every child is where its own bits lead. Returns the children.
    pub(super) fn check<'a>(&self, top: u32, key: impl Fn(u32) -> Key<'a>) -> Result<u32, &'static str> {
        let mut children = Vec::new();
        self.each(top, |id| {
            children.push(id);
            false
        });
        for &id in &children {
            if self.nearest(top, &key(id)) != id {
                return Err("a child is not where its content leads");
            }
        }
        let mut open = alloc::vec![(top, None)];
        while let Some((link, above)) = open.pop() {
            if link & FORK != 0 && link != NIL {
                let fork = self.0[ix(link & !FORK)];
                if above.is_some_and(|above| above >= fork.bit) {
                    return Err("forks do not ascend");
                }
                open.extend(fork.sides.map(|link| (link, Some(fork.bit))));
            }
        }
        Ok(len32(children.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contents of two tokens that differ in high and low bits, some with extras in their second half.
    fn contents() -> Vec<(Vec<TokenId>, Vec<Extra>)> {
        let values = [0, 1, 2, 0x8000_0000, 0x8000_0001, u32::MAX];
        let plain = values.iter().flat_map(|&a| values.map(|b| alloc::vec![a, b]));
        let mut all: Vec<_> = plain.map(|tokens| (tokens, Vec::new())).collect();
        let digests = [[0; 32], [1; 32]];
        for (digest, range) in digests.iter().flat_map(|&digest| [0..1, 0..2, 1..2].map(|range| (digest, range))) {
            all.push((alloc::vec![0, 0], alloc::vec![Extra::new(range.clone(), digest)]));
            // These two differ in nothing but the digest of their second extra.
            for second in digests {
                all.push((alloc::vec![0, 1], alloc::vec![Extra::new(range.clone(), digest), Extra::new(1..3, second)]));
            }
        }
        all
    }

    #[test]
    fn children_are_found_by_their_longest_beginning_whatever_comes_and_goes() {
        // Nodes come and go in an order that mixes them; a plain list is the reference.
        let all = contents();
        let key = |id: u32| Key { tokens: &all[ix(id)].0, extras: &all[ix(id)].1 };
        // The words of a content, written out: two tokens, then ten words for each of two extras.
        let words = |id: u32| {
            let (tokens, extras) = &all[ix(id)];
            let mut words = tokens.clone();
            for extra in extras {
                words.extend([extra.range.start, extra.range.end]);
                words.extend([u32::from_be_bytes([extra.digest[0]; 4]); 8]);
            }
            words.resize(22, 0);
            words
        };
        let (mut forks, mut top, mut present) = (Forks::default(), NIL, Vec::new());
        let mut state = 7_usize;
        for _ in 0..20_000 {
            // A linear congruence; its upper bits are random enough to pick a node.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = len32((state >> 33) % all.len());
            forks.grow(id);
            if let Some(at) = present.iter().position(|&other| other == id) {
                present.remove(at);
                forks.remove(&mut top, id, &key(id));
            } else {
                present.push(id);
                forks.add(&mut top, id, key);
            }
            assert_eq!(forks.check(top, key), Ok(len32(present.len())));
            let wanted = len32((state >> 13) % all.len());
            let bits = |id: u32| {
                let (own, wanted) = (words(id), words(wanted));
                let differs = own.iter().zip(&wanted).position(|(a, b)| a != b);
                differs.map_or(u32::MAX, |at| len32(at) * 32 + (own[at] ^ wanted[at]).leading_zeros())
            };
            let nearest = forks.nearest(top, &key(wanted));
            let best = present.iter().map(|&id| bits(id)).max();
            assert_eq!((nearest != NIL).then(|| bits(nearest)), best);
            let mut visited = Vec::new();
            forks.nearest_first(top, &key(wanted), |id| {
                visited.push(bits(id));
                false
            });
            assert_eq!(visited.len(), present.len());
            assert!(visited.is_sorted_by(|a, b| a >= b), "{visited:?}");
        }
    }

    #[test]
    fn contents_agree_up_to_the_first_token_or_extra_that_differs() {
        let extra = |range, digest| Extra::new(range, [digest; 32]);
        let (a, b) = ([extra(10..12, 1), extra(13..14, 1)], [extra(10..12, 1), extra(13..14, 2)]);
        let before = [extra(4..11, 1)];
        let key = |tokens, extras| Key { tokens, extras };
        // The block starts at position 10.
        let agreement = |a: Key<'_>, b: Key<'_>| (a.agreement(&b, 10), b.agreement(&a, 10));
        assert_eq!(agreement(key(&[1, 2, 3, 4], &[]), key(&[1, 2, 9, 4], &[])), (2, 2));
        assert_eq!(agreement(key(&[1, 2, 3, 4], &a), key(&[1, 2, 3, 4], &b)), (3, 3));
        assert_eq!(agreement(key(&[1, 2, 3, 4], &a[1..]), key(&[1, 2, 3, 4], &[])), (3, 3));
        assert_eq!(agreement(key(&[1, 2, 3, 4], &before), key(&[1, 2, 3, 4], &[])), (0, 0));
        assert_eq!(agreement(key(&[1, 2, 3, 4], &a), key(&[1, 2, 3, 4], &a)), (4, 4));
    }
}
