//! Whether a row of a CSV goes on in the next line.

/// What the quotes of a row say about where it ends. The rules are the csv crate's, which reads the row afterwards, but
/// that behind a quote which closes a field of several lines the field ends.
pub(super) struct Quotes {
    place: Place,
    commas: usize,
    /// Fields under the header.
    columns: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    FieldStart,
    Plain,
    Quoted,
    /// Behind a quote in quotes: it ends them, or is the first of two that stand for one.
    Quote,
    /// As [`Quote`](Self::Quote), of a field that began on a line before.
    LateQuote,
    /// Something is behind a quote that should have closed the field.
    Wrong,
}

impl Quotes {
    /// At the start of a row.
    pub(super) fn new(columns: usize) -> Self {
        Self { place: Place::FieldStart, commas: 0, columns }
    }

    /// Reads a line of the row, its end included; returns whether the row goes on behind it. It does not where it has too
    /// many fields already, so that lines which would open a quote each are not read to the end of the file each.
    pub(super) fn follow(&mut self, line: &[u8]) -> bool {
        let mut is_late = self.place == Place::Quoted;
        for &byte in line {
            self.place = match (self.place, byte) {
                (Place::Wrong, _) => Place::Wrong,
                (Place::Quoted, b'"') if is_late => Place::LateQuote,
                (Place::Quoted, b'"') => Place::Quote,
                (Place::Quoted, _) | (Place::FieldStart | Place::Quote | Place::LateQuote, b'"') => Place::Quoted,
                (_, b',') => {
                    self.commas += 1;
                    is_late = false;
                    Place::FieldStart
                }
                (_, b'\r' | b'\n') => {
                    self.commas = 0;
                    Place::FieldStart
                }
                (Place::LateQuote, _) => Place::Wrong,
                _ => Place::Plain,
            };
        }
        self.place == Place::Quoted && self.commas < self.columns
    }

    /// Whether the row ends behind what was read.
    pub(super) fn is_whole(&self) -> bool {
        !matches!(self.place, Place::Quoted | Place::Wrong)
    }
}
