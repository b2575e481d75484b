//! Where the rows of a tile begin, and where they end.

use super::pass::Pass;
use super::state::State;
use crate::storage::cpu::element::Stored;
use crate::storage::cpu::isa::Isa;
use crate::storage::cpu::tensor::OutTile;

/// From nothing, or from the states after a prefix that was walked together with others; to the output, or to states that
/// others go on from. A state that is kept and taken up again is the same bits, so that it makes no difference to a row
/// who walked its spans.
pub(in super::super) struct Ends<'a> {
    /// States of paused rows, `[queries of the cascade, q_heads, v_dim + 2]`: those of the tile.
    pub(in super::super) paused: Option<OutTile<'a>>,
    /// Which of these queries is the first of the tile.
    pub(in super::super) place: usize,
    /// Whether the rows go on from there.
    pub(in super::super) resume: bool,
    /// Where the output goes; where there is none, rows are paused.
    pub(in super::super) out: Option<OutTile<'a>>,
}

impl Ends<'_> {
    /// Puts the rows of a pass where they begin.
    #[inline(always)]
    pub(super) fn begin<E: Stored>(&mut self, pass: &Pass<'_, E>, state: &mut State<'_>) {
        if self.resume {
            self.each(pass, |row, paused| state.resume(row, paused));
        }
    }

    /// Takes the rows of a pass to where they end.
    #[inline(always)]
    pub(super) fn end<I: Isa, E: Stored>(&mut self, isa: I, pass: &Pass<'_, E>, state: &State<'_>) {
        if let Some(out) = &mut self.out {
            pass.finish(isa, state, out);
        } else {
            self.each(pass, |row, paused| state.pause(row, paused));
        }
    }

    /// Calls `each` with every row of a pass and its paused state.
    #[inline(always)]
    fn each<E: Stored>(&mut self, pass: &Pass<'_, E>, mut each: impl FnMut(usize, &mut [f32])) {
        let Some(paused) = &mut self.paused else { return };
        let Pass { tile, first, rows } = *pass;
        pass.each(|index, row| {
            let (_, head) = tile.query(tile.heads.start + index, first + row);
            each(index * rows + row, paused.head(self.place + (first + row) / tile.group, head));
        });
    }
}
