//! The shape of a tensor of the caller's: `[tokens, heads, dim]`, with strides.

use super::StorageError;

/// Shape and strides, in elements. A head is contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) tokens: usize,
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) token_stride: usize,
    pub(super) head_stride: usize,
}

impl Shape {
    /// Tokens after each other, heads after each other.
    pub(super) const fn dense([tokens, heads, dim]: [usize; 3]) -> Self {
        // A product that wraps is caught by `span`: that of the whole shape does not fit either.
        Self { tokens, heads, dim, token_stride: heads.wrapping_mul(dim), head_stride: dim }
    }

    /// Elements from the first to the last, `usize::MAX` where the number does not fit.
    pub(super) fn span(&self) -> usize {
        if self.tokens == 0 || self.heads == 0 || self.dim == 0 {
            return 0;
        }
        let tokens = (self.tokens - 1).checked_mul(self.token_stride);
        let heads = (self.heads - 1).checked_mul(self.head_stride);
        let span = |tokens: usize, heads: usize| tokens.checked_add(heads)?.checked_add(self.dim);
        tokens.zip(heads).and_then(|(tokens, heads)| span(tokens, heads)).unwrap_or(usize::MAX)
    }

    /// In bounds once `check` has passed, for a token and a head that exist.
    #[inline(always)]
    pub(super) const fn elem(&self, token: usize, head: usize) -> usize {
        token * self.token_stride + head * self.head_stride
    }

    pub(super) fn check(&self, tensor: &'static str, expected: [usize; 3], len: usize) -> Result<(), StorageError> {
        let given = [self.tokens, self.heads, self.dim];
        if given != expected {
            return Err(StorageError::Shape { tensor, given, expected });
        }
        let needed = self.span();
        if needed > len || needed == usize::MAX {
            return Err(StorageError::TooShort { tensor, needed, given: len });
        }
        Ok(())
    }

    /// That no two heads share elements. To be asked once `check` has passed. Any strides do where the smaller one is at
    /// least `dim` and the larger one at least what the smaller one spans.
    pub(super) fn check_apart(&self) -> Result<(), StorageError> {
        if self.span() == 0 {
            // No heads, and strides that `check` has not bounded.
            return Ok(());
        }
        let Shape { tokens, heads, dim, token_stride, head_stride } = *self;
        let (mut inner, mut outer) = ((head_stride, heads), (token_stride, tokens));
        if inner.0 > outer.0 {
            core::mem::swap(&mut inner, &mut outer);
        }
        // What the heads span along the smaller stride must fit between two steps of the larger one. A dimension of
        // one takes no step. Nothing overflows: `check` has bounded the span of the whole.
        let inner_fits = inner.1 <= 1 || inner.0 >= dim;
        let span = if inner.1 <= 1 { dim } else { (inner.1 - 1) * inner.0 + dim };
        let outer_fits = outer.1 <= 1 || outer.0 >= span;
        if inner_fits && outer_fits { Ok(()) } else { Err(StorageError::Overlap { token_stride, head_stride }) }
    }
}
