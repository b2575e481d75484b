//! Prefixes that rows of a step share: found by equal leading block ids, so that each is read once for all of them.
//!
//! Cascade attention: Ye et al., "Cascade Inference" (FlashInfer, 2024); Juravsky et al., "Hydragen" (2024). There the
//! parts of a softmax are merged, which rounds otherwise than one pass does; here rows go on from the very state that
//! they would have had, so that no bit changes.
//!
//! A prefix is counted in whole [spans](SPAN), those before the first query token of every row that shares it. Prefixes
//! are a forest: below that of a system prompt lie those of documents that some of its rows share, and so on. Level after
//! level they are walked, each from where the one above it ended; then every row goes its own way.
//!
//! ```text
//! spans      0     1     2     3     4
//! row 0      S     S     A     A     own
//! row 1      S     S     A     A     own       level 1: S, rows 0 to 3, spans 0 and 1
//! row 2      S     S     B     own             level 2: A, rows 0 and 1, spans 2 and 3
//! row 3      S     S     C     D     own
//! row 4      E     own
//! ```

use alloc::vec::Vec;
use core::ops::Range;

use super::kernel::{Query, SPAN};
use super::prepared::QueryTile;
use crate::id::{BlockId, ix};
#[cfg(test)]
use crate::planted::{self, Bug};

/// Query tokens of a row that shares, at most: rows of more have enough queries of their own for each read of K and V.
const ROW_TOKENS: u32 = 16;

/// Leading spans that several rows share, but for those that they share with more rows, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Prefix {
    /// The tiles of the rows, in [`Cascade::order`].
    tiles: Range<usize>,
    /// Their queries, in [`Cascade::queries`].
    pub(super) queries: Range<usize>,
    pub(super) spans: Range<usize>,
    /// 1, or one more than that of the prefix which the first of the spans follows.
    pub(super) level: usize,
    /// How far the sequences reach of all rows that share the first span.
    pub(super) reach: usize,
    /// Where blocks of the context begin, in those of all rows: of one row's as good as of another's.
    pub(super) table: usize,
}

/// The role of a row in a cascade.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Role {
    /// Leading spans that are walked together with other rows.
    pub(super) spans: usize,
    /// The row's first query in [`Cascade::queries`].
    pub(super) place: usize,
    /// [`Prefix::reach`] of its prefixes.
    pub(super) reach: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Cascade {
    /// Tiles of rows that may share, those that share a prefix side by side.
    order: Vec<usize>,
    /// Level by level; the first one stands for none, and is shared by all.
    prefixes: Vec<Prefix>,
    queries: Vec<Query>,
}

impl Cascade {
    /// Finds the prefixes that rows share, and each row's role in them. `blocks` are those of all rows.
    ///
    /// # Complexity
    /// O(length of the tables × log(rows)) at most, in blocks or spans, whichever are more; rows that share nothing are
    /// told apart by their first differing block.
    pub(super) fn find(&mut self, tiles: &mut [QueryTile], blocks: &[BlockId], block_size: usize) {
        let Self { order, prefixes, queries } = self;
        order.clear();
        prefixes.clear();
        queries.clear();
        let may_share = |tile: &QueryTile| tile.row_tokens <= ROW_TOKENS && whole(tile) > 0;
        order.extend((0..tiles.len()).filter(|&index| may_share(&tiles[index])));
        let none = Prefix { tiles: 0..order.len(), queries: 0..0, spans: 0..0, level: 0, reach: 0, table: 0 };
        prefixes.push(none);
        // Breadth first, so that levels come one after the other.
        let mut next = 0;
        while let Some(Prefix { tiles: range, spans, level, reach, .. }) = prefixes.get(next).cloned() {
            next += 1;
            let of_span = spans.end * SPAN / block_size..((spans.end + 1) * SPAN).div_ceil(block_size);
            // The blocks of the next span, for rows that have it whole before their queries.
            let key = |index: usize| {
                #[cfg(test)]
                tests::KEYS.set(tests::KEYS.get() + 1);
                let tile: &QueryTile = &tiles[index];
                (whole(tile) > spans.end).then(|| &blocks[tile.table..][of_span.clone()])
            };
            let rest = &mut order[range.clone()];
            // In any order among equals: one row or a few leave the others at most levels, and a sort of few different keys
            // takes a time linear in the rows, which one by key and index does not.
            rest.sort_unstable_by_key(|&index| key(index));
            let mut at = range.start;
            for class in rest.chunk_by(|&left, &right| key(left) == key(right)) {
                let here = at..at + class.len();
                at = here.end;
                if class.len() < 2 || key(class[0]).is_none() {
                    continue;
                }
                let table = |index: usize| &blocks[tiles[index].table..][..tiles[index].blocks];
                let first = table(class[0]);
                // Blocks up to the end of this span are the same, as the class shares it and all spans before. More are
                // looked at in pieces that double: what some of the class share and others do not is not looked at to its
                // end here, and again in each of the prefixes below.
                let (mut alike, mut piece) = (of_span.end, of_span.len());
                loop {
                    let upto = first.len().min(alike + piece);
                    let found = class.iter().fold(upto, |upto, &index| {
                        #[cfg(test)]
                        tests::COMPARED.set(tests::COMPARED.get() + upto - alike);
                        alike + same(&first[alike..upto], &table(index)[alike..])
                    });
                    let all = found == alike + piece;
                    (alike, piece) = (found, 2 * piece);
                    if !all {
                        break;
                    }
                }
                let whole = class.iter().map(|&index| whole(&tiles[index])).min().unwrap_or(0);
                #[cfg(test)]
                let alike = if planted::is(Bug::SharedTooLong) { alike + SPAN.div_ceil(block_size) } else { alike };
                let ends = class.iter().map(|&index| ix(tiles[index].row_start) + ix(tiles[index].row_tokens));
                prefixes.push(Prefix {
                    tiles: here,
                    queries: 0..0,
                    spans: spans.end..whole.min(alike * block_size / SPAN),
                    level: level + 1,
                    reach: if level == 0 { ends.max().unwrap_or(0) } else { reach },
                    table: tiles[class[0]].table,
                });
            }
        }
        // A row's last prefix is its longest.
        for prefix in &prefixes[1..] {
            for &index in &order[prefix.tiles.clone()] {
                tiles[index].role = Role { spans: prefix.spans.end, place: 0, reach: prefix.reach };
            }
        }
        for &index in order.iter() {
            let tile = &mut tiles[index];
            if tile.role.spans > 0 {
                tile.role.place = queries.len();
                queries.extend(tile.queries());
            }
        }
        #[cfg(test)]
        if planted::is(Bug::PausedElsewhere) {
            queries.reverse();
        }
        for prefix in &mut prefixes[1..] {
            let [first, last] = [prefix.tiles.start, prefix.tiles.end - 1].map(|at| &tiles[order[at]]);
            prefix.queries = first.role.place..last.role.place + ix(last.len);
        }
    }

    /// The prefixes, level by level.
    pub(super) fn prefixes(&self) -> &[Prefix] {
        self.prefixes.get(1..).unwrap_or(&[])
    }

    /// The queries of all rows that share something.
    pub(super) fn queries(&self) -> &[Query] {
        &self.queries
    }
}

/// Spans before the first query token of a tile's row.
fn whole(tile: &QueryTile) -> usize {
    ix(tile.row_start) / SPAN
}

/// How many leading blocks two tables share.
fn same(left: &[BlockId], right: &[BlockId]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use alloc::vec;

    use super::*;
    use crate::id::GroupId;
    use crate::layout::{DType, KvLayout, KvShape};
    use crate::step::{Step, TableRow};
    use crate::storage::cpu::prepared::Prepared;

    std::thread_local! {
        /// Blocks that were compared to find how far rows go on together, at most.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
        /// Times that blocks of a row's next span were looked up to sort and part the rows of a prefix.
        pub(super) static KEYS: Cell<usize> = const { Cell::new(0) };
    }

    /// A row: first position, query tokens, blocks.
    type Row = (u32, u32, Vec<u32>);

    fn prepared(block_size: u32, rows: &[Row]) -> Prepared {
        let num_blocks = 1 + rows.iter().flat_map(|(_, _, blocks)| blocks.iter().copied()).max().unwrap();
        let layout = KvLayout::per_layer(&KvShape::new(1, 1, 8, DType::F32), num_blocks, block_size).unwrap();
        let tables: Vec<Vec<_>> =
            rows.iter().map(|(_, _, ids)| ids.iter().copied().map(BlockId::new).collect()).collect();
        let rows: Vec<_> = rows
            .iter()
            .zip(&tables)
            .map(|((start, len, _), blocks)| TableRow { start: *start, len: *len, blocks })
            .collect();
        let mut prepared = Prepared::default();
        prepared
            .set(&layout, GroupId::default(), &Step::from_tables(block_size, &rows, &[]).unwrap(), u32::MAX)
            .unwrap();
        prepared
    }

    /// Level, spans, reach and query tokens of all prefixes.
    fn found(prepared: &Prepared) -> Vec<(usize, Range<usize>, usize, Vec<u32>)> {
        let cascade = prepared.cascade();
        let tokens = |prefix: &Prefix| {
            let mut tokens: Vec<_> = cascade.queries[prefix.queries.clone()].iter().map(|query| query.token).collect();
            tokens.sort_unstable();
            tokens
        };
        cascade
            .prefixes()
            .iter()
            .map(|prefix| (prefix.level, prefix.spans.clone(), prefix.reach, tokens(prefix)))
            .collect()
    }

    /// The figure of the [module](super), a block a span, and each row with two query tokens.
    #[test]
    fn prefixes_are_found_level_by_level() {
        let [s0, s1, a0, a1, b, c, d, e] = [7, 3, 9, 1, 0, 12, 5, 2];
        let rows = [
            (1024, 2, vec![s0, s1, a0, a1, 20]),
            (1030, 2, vec![s0, s1, a0, a1, 21]),
            (768, 2, vec![s0, s1, b, 22]),
            (1100, 2, vec![s0, s1, c, d, 23]),
            (256, 2, vec![e, 24]),
        ];
        let prepared = prepared(256, &rows);
        let system = (1, 0..2, 1102, vec![0, 1, 2, 3, 4, 5, 6, 7]); // 1100 + 2
        let document = (2, 2..4, 1102, vec![0, 1, 2, 3]);
        assert_eq!(found(&prepared), [system, document]);
        let spans: Vec<_> = prepared.tiles().iter().map(|tile| tile.role.spans).collect();
        assert_eq!(spans, [4, 4, 2, 2, 0]);
        // Nothing is kept for who shares nothing.
        assert_eq!(prepared.cascade().queries().len(), 8);
    }

    #[test]
    fn a_span_is_shared_where_all_its_blocks_are_and_queries_come_after_it() {
        // Blocks of 100: the first span needs three of them.
        let share = |start, len, third| {
            let rows = [(start, len, vec![0, 1, 2, 3]), (300, 1, vec![0, 1, third, 4])];
            prepared(100, &rows).tiles()[0].role.spans
        };
        assert_eq!(share(300, 1, 2), 1);
        assert_eq!(share(300, 1, 5), 0);
        assert_eq!(share(256, 1, 2), 1);
        assert_eq!(share(255, 1, 2), 0); // the query is in the span
        assert_eq!(share(300, 16, 2), 1);
        assert_eq!(share(300, 17, 2), 0); // many queries
    }

    /// Each row leaves the first one sooner than the one before it: a prefix for every row, below each other.
    #[test]
    fn what_rows_share_is_not_looked_at_again_at_every_level() {
        const ROWS: u32 = 200;
        for block_size in [64, 256] {
            let per_span = 256 / block_size;
            let rows: Vec<Row> = (0..ROWS)
                .map(|row| {
                    let spans = ROWS - row;
                    let blocks = (0..spans * per_span).chain([ROWS * per_span + row]).collect();
                    (spans * 256, 1, blocks)
                })
                .collect();
            let blocks: usize = rows.iter().map(|(_, _, blocks)| blocks.len()).sum();
            COMPARED.set(0);
            let prepared = prepared(block_size, &rows);
            assert_eq!(prepared.cascade().prefixes().len(), ix(ROWS) - 1);
            assert!(COMPARED.get() <= 4 * blocks, "{} of {blocks}", COMPARED.get());
        }
    }

    /// All rows lie in one block, and each ends in another span: at every level one leaves, and the others go on.
    #[test]
    fn rows_that_end_one_after_the_other_are_not_sorted_anew_at_every_level() {
        const ROWS: u32 = 1024;
        let orders: [fn(u32) -> u32; 3] = [|row| ROWS - row, |row| row + 1, |row| 1 + row * 389 % ROWS];
        for (spans, name) in orders.into_iter().zip(["falling", "rising", "mixed"]) {
            let rows: Vec<Row> = (0..ROWS).map(|row| (spans(row) * 256, 1, vec![0])).collect();
            KEYS.set(0);
            let prepared = prepared(1 << 19, &rows);
            assert_eq!(prepared.cascade().prefixes().len(), ix(ROWS) - 1);
            // Level after level there are 1024, 1023, .. rows. Sorted by two keys and parted they take some eight look-ups
            // each; a sort of as many different keys would take log2(1024) = 10 pairs of them.
            let at_levels = ix(ROWS * (ROWS + 1) / 2);
            std::println!("{name}: {} of {at_levels}", KEYS.get());
            assert!(KEYS.get() <= 10 * at_levels, "{name}: {} of {at_levels}", KEYS.get());
        }
    }

    /// Against every pair of rows: forests of random tables.
    #[test]
    fn what_is_found_is_what_pairs_of_rows_share() {
        let mut state = 1_u32;
        let mut below = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % bound
        };
        let mut prefixes = 0;
        for case in 0..200 {
            let block_size = [1, 16, 100, 256, 512][case % 5];
            let (mut rows, mut fresh) = (Vec::<Row>::new(), 0);
            for _ in 0..2 + below(12) {
                let (start, len) = (below(2000), 1 + below(20));
                let blocks = ix((start + len).div_ceil(block_size));
                let mut table = match rows.len() {
                    0 => Vec::new(),
                    n => rows[ix(below(u32::try_from(n).unwrap()))].2.clone(),
                };
                table.truncate(blocks.min(ix(below(2000) / block_size)));
                while table.len() < blocks {
                    table.push(fresh);
                    fresh += 1;
                }
                rows.push((start, len, table));
            }
            let prepared = prepared(block_size, &rows);
            let whole = |row: &Row| if row.1 > 16 { 0 } else { ix(row.0) / 256 };
            let share = |one: &Row, other: &Row| {
                let alike = one.2.iter().zip(&other.2).take_while(|(one, other)| one == other).count();
                (alike * ix(block_size) / 256).min(whole(one)).min(whole(other))
            };
            // The first tile of every row; what a row shares is the most that it shares with any other.
            let tiles: Vec<_> = prepared.tiles().iter().filter(|tile| tile.skipped == 0).collect();
            let most: Vec<usize> = (0..rows.len())
                .map(|row| {
                    (0..rows.len()).filter(|&other| other != row).map(|other| share(&rows[row], &rows[other])).max()
                })
                .map(Option::unwrap)
                .collect();
            for (tile, most) in tiles.iter().zip(&most) {
                assert_eq!(tile.role.spans, *most, "case {case}");
                if *most > 0 {
                    assert!(
                        prepared.cascade().queries()[tile.role.place..]
                            .starts_with(&tile.queries().collect::<Vec<_>>())
                    );
                }
            }
            let found = found(&prepared);
            prefixes += found.len();
            // Every span that rows share is in one prefix of exactly these rows.
            for (row, most) in most.iter().enumerate() {
                for span in 0..*most {
                    let of_row = |tokens: &[u32]| tokens.contains(&tiles[row].first_token);
                    let mut here = found.iter().filter(|(_, spans, _, tokens)| spans.contains(&span) && of_row(tokens));
                    let tokens: Vec<u32> = (0..rows.len())
                        .filter(
                            |&other| if other == row { *most > span } else { share(&rows[row], &rows[other]) > span },
                        )
                        .flat_map(|other| tiles[other].queries().map(|query| query.token))
                        .collect();
                    assert_eq!(
                        here.next().map(|prefix| &prefix.3),
                        Some(&tokens),
                        "case {case}, row {row}, span {span}"
                    );
                    assert!(here.next().is_none());
                }
            }
            // Each prefix goes on where one of the level above ends, whose rows have its own among them.
            for (level, spans, reach, tokens) in &found {
                let above = |other: &&(usize, Range<usize>, usize, Vec<u32>)| {
                    other.0 + 1 == *level
                        && other.1.end == spans.start
                        && tokens.iter().all(|token| other.3.contains(token))
                };
                match spans.start {
                    0 => {
                        let ends = rows.iter().zip(&tiles).filter(|(_, tile)| tokens.contains(&tile.first_token));
                        assert_eq!((*level, *reach), (1, ends.map(|(row, _)| ix(row.0 + row.1)).max().unwrap()));
                    }
                    _ => assert_eq!(found.iter().find(above).map(|above| above.2), Some(*reach), "case {case}"),
                }
            }
            assert!(found.is_sorted_by_key(|prefix| prefix.0));
        }
        assert!(prefixes > 300, "{prefixes}");
    }
}
