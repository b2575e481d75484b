//! The children of a node, told apart by their tokens: a crit-bit tree per parent, and no hash.
//!
//! Floor 1. A parent with one child points at it. Every further child brings one *fork*: a bit in which the children on
//! its two sides differ, the first such bit, counted from the top bit of the first token. A descent looks at one bit per
//! fork and ends at the child that shares the longest beginning with what is looked for; one comparison then decides.
//!
//! A fork is kept in the place of one of the nodes below it, each node bringing one place, so that nothing is allocated
//! but what nodes are. Invariant: the fork in the place of node n, if it is in use, lies on the way from the parent to n.

use alloc::vec::Vec;

use crate::id::{TokenId, ix, len32};
use crate::list::NIL;

/// Marks a link that leads to a fork; [`NIL`] is looked for first. Nodes are numbered below it: twice as many as blocks
/// at most in ordinary life, and [`CacheConfig`](crate::CacheConfig) allows 2^30 of those.
const FORK: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
struct Fork {
    /// The bit in which the two sides differ: token × 32 + bit from the top.
    bit: u64,
    sides: [u32; 2],
}

/// All forks. `tokens` in the calls below gives the tokens of a node, `top` is the parent's link to its children.
#[derive(Clone, Debug, Default)]
pub(super) struct Forks(Vec<Fork>);

/// Which side of a fork at `bit` these tokens lie on.
#[inline]
fn side(tokens: &[TokenId], bit: u64) -> usize {
    let token = usize::try_from(bit >> 5).ok().and_then(|at| tokens.get(at)).copied().unwrap_or(0);
    ix(token >> (31 - (bit & 31)) & 1)
}

impl Forks {
    /// Makes room for the fork that node `id` may bring.
    pub(super) fn grow(&mut self, id: u32) {
        if ix(id) >= self.0.len() {
            self.0.resize(ix(id) + 1, Fork { bit: 0, sides: [NIL; 2] });
        }
    }

    /// The child that shares the longest beginning with `tokens`, or [`NIL`] where there are no children.
    #[inline]
    pub(super) fn nearest(&self, mut link: u32, tokens: &[TokenId]) -> u32 {
        while link & FORK != 0 && link != NIL {
            let fork = &self.0[ix(link & !FORK)];
            link = fork.sides[side(tokens, fork.bit)];
        }
        link
    }

    /// Adds node `id`, whose tokens no child has, to the children under `top`.
    pub(super) fn add<'a>(&mut self, top: &mut u32, id: u32, tokens: impl Fn(u32) -> &'a [TokenId]) {
        if *top == NIL {
            *top = id;
            return;
        }
        let own = tokens(id);
        let near = tokens(self.nearest(*top, own));
        let differs = own.iter().zip(near).zip(0_u64..).find(|((a, b), _)| a != b);
        let Some(((a, b), at)) = differs else {
            debug_assert!(false, "a child with these tokens is there already");
            return;
        };
        let bit = at * 32 + u64::from((a ^ b).leading_zeros());
        // The new fork goes where the bits that are looked at pass its own.
        let (mut link, mut above) = (*top, None);
        while link & FORK != 0 {
            let fork = &self.0[ix(link & !FORK)];
            if fork.bit > bit {
                break;
            }
            let way = side(own, fork.bit);
            above = Some((link & !FORK, way));
            link = fork.sides[way];
        }
        let mut sides = [id, link];
        if side(own, bit) == 1 {
            sides.swap(0, 1);
        }
        self.0[ix(id)] = Fork { bit, sides };
        self.set(top, above, id | FORK);
    }

    /// Takes node `id` out of the children under `top`.
    pub(super) fn remove(&mut self, top: &mut u32, id: u32, tokens: &[TokenId]) {
        // The last two forks on the way to the node, and who points at the fork in the node's own place.
        let (mut link, mut above, mut parent) = (*top, None, None);
        let mut own = None;
        while link & FORK != 0 && link != NIL {
            let fork = link & !FORK;
            if fork == id {
                own = Some(above);
            }
            parent = above;
            let way = side(tokens, self.0[ix(fork)].bit);
            above = Some((fork, way));
            link = self.0[ix(fork)].sides[way];
        }
        debug_assert_eq!(link, id, "the node is a child");
        let Some((gone, way)) = above else {
            *top = NIL;
            return;
        };
        // The fork above the node goes with it: its other side moves up.
        let other = self.0[ix(gone)].sides[1 - way];
        self.set(top, parent, other);
        if let Some(above) = own {
            if gone != id {
                // The fork in the node's place lives on, in the place that has just become free.
                self.0[ix(gone)] = self.0[ix(id)];
                self.set(top, above, gone | FORK);
            }
        }
    }

    fn set(&mut self, top: &mut u32, at: Option<(u32, usize)>, link: u32) {
        match at {
            None => *top = link,
            Some((fork, way)) => self.0[ix(fork)].sides[way] = link,
        }
    }

    /// The children under `top`, in the order of their tokens.
    pub(super) fn each(&self, top: u32, mut visit: impl FnMut(u32)) {
        let mut open: smallvec::SmallVec<[u32; 16]> = smallvec::smallvec![top];
        while let Some(link) = open.pop() {
            if link == NIL {
                continue;
            }
            if link & FORK == 0 {
                visit(link);
                continue;
            }
            let [low, high] = self.0[ix(link & !FORK)].sides;
            open.push(high);
            open.push(low);
        }
    }

    /// Whether bits ascend along every way down, and every child is where its own bits lead. Returns the children.
    pub(super) fn check<'a>(&self, top: u32, tokens: impl Fn(u32) -> &'a [TokenId]) -> Result<u32, &'static str> {
        let mut children = Vec::new();
        self.each(top, |id| children.push(id));
        for &id in &children {
            if self.nearest(top, tokens(id)) != id {
                return Err("a child is not where its tokens lead");
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

    #[test]
    fn children_are_found_by_their_longest_beginning_whatever_comes_and_goes() {
        // Every pair of tokens from a few that differ in high and low bits; nodes come and go in an order that mixes
        // them; a plain list is the reference.
        let values = [0, 1, 2, 0x8000_0000, 0x8000_0001, u32::MAX];
        let all: Vec<[u32; 2]> = values.iter().flat_map(|&a| values.map(|b| [a, b])).collect();
        let tokens = |id: u32| &all[ix(id)][..];
        let (mut forks, mut top, mut present) = (Forks::default(), NIL, Vec::new());
        let mut state = 7_usize;
        for _ in 0..20_000 {
            // A linear congruence; its upper bits are random enough to pick a node.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = len32((state >> 33) % all.len());
            forks.grow(id);
            if let Some(at) = present.iter().position(|&other| other == id) {
                present.remove(at);
                forks.remove(&mut top, id, tokens(id));
            } else {
                present.push(id);
                forks.add(&mut top, id, tokens);
            }
            assert_eq!(forks.check(top, tokens), Ok(len32(present.len())));
            let wanted = &all[(state >> 13) % all.len()];
            let bits = |id: u32| {
                let differs = tokens(id).iter().zip(wanted).position(|(a, b)| a != b);
                differs.map_or(64, |at| len32(at) * 32 + (tokens(id)[at] ^ wanted[at]).leading_zeros())
            };
            let nearest = forks.nearest(top, wanted);
            let best = present.iter().map(|&id| bits(id)).max();
            assert_eq!((nearest != NIL).then(|| bits(nearest)), best);
        }
    }
}
