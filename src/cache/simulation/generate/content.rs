//! Which call on content comes next.

use alloc::rc::Rc;

use super::Generator;
use crate::cache::simulation::calls::{Invalid, Op};
use crate::cache::simulation::events::SinkSpec;
use crate::cache::simulation::world::World;
use crate::id::BlockId;

impl Generator {
    pub(super) fn content(&mut self, world: &World) -> Op {
        match self.rng.below(100) {
            0..=29 if world.pins.len() < 3 => self.pin(world),
            0..=44 => match self.rng.pick(&world.pins).map(|pin| pin.id) {
                Some(pin) => {
                    self.old_pin.get_or_insert(pin);
                    let stale = self.old_pin.filter(|_| self.rng.chance(5));
                    Op::Unpin { pin: stale.unwrap_or(pin) }
                }
                None => self.pin(world),
            },
            45..=60 => Op::SetTime { now: u64::from(self.rng.below(1 << 16)) },
            61 => Op::Invalidate(Invalid::All),
            62..=63 => Op::Invalidate(Invalid::Scope(self.scope())),
            64..=68 => Op::Invalidate(Invalid::Block(self.block(world))),
            69..=71 => {
                let block = self.rng.chance(90).then(|| self.block(world));
                Op::Invalidate(Invalid::Identity(block))
            }
            72..=75 => {
                let kind = self.rng.below(4);
                let spec = SinkSpec {
                    refuses: if kind > 1 { 40 } else { 0 },
                    panics: if kind > 2 { 20 } else { 0 },
                    seed: self.rng.next(),
                };
                Op::Listen((kind > 0).then_some(spec))
            }
            76 => Op::Unlisten,
            77..=84 => Op::Flush,
            _ => Op::Identity { block: self.block(world) },
        }
    }

    fn pin(&mut self, world: &World) -> Op {
        let (scope, query) = (self.scope(), Rc::new(self.query()));
        let mut prompt = self.prompt();
        if self.rng.chance(2) {
            prompt.clear();
        } else if self.rng.chance(2) {
            prompt.resize(crate::id::ix(world.cache.capacity() * world.block_size() + 1), 0);
        }
        Op::Pin { scope, prompt: Rc::from(prompt), query }
    }

    /// A block, most often one that has a name.
    fn block(&mut self, world: &World) -> BlockId {
        let num_blocks = world.cache.config().num_blocks;
        let block = |generator: &mut Self| BlockId::new(generator.rng.below(num_blocks));
        let tries = self.rng.below(8);
        let named = (0..tries).map(|_| block(self)).find(|&block| world.content_of(block).is_some());
        named.unwrap_or_else(|| block(self))
    }
}
