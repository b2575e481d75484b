//! The calls, as data.

use alloc::rc::Rc;
use alloc::vec::Vec;

use super::events::SinkSpec;
use super::model::{Kind, QuerySpec, RowSpec};
use super::world::Part;
use crate::cache::{Outcome, PinId, Release, Row, RowTokens};
use crate::id::{BlockId, SeqId, StepId, TokenId};
use crate::prefix::Scope;

/// A call, as data.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create {
        scope: Rc<Scope>,
        prompt: Rc<[TokenId]>,
        query: Rc<QuerySpec>,
    },
    CreateBlank {
        scope: Rc<Scope>,
    },
    /// `fits_prompt`, `create`, and a `plan` of the prompt and `extra` tokens behind it, which must agree.
    Admit {
        scope: Rc<Scope>,
        prompt: Rc<[TokenId]>,
        query: Rc<QuerySpec>,
        extra: Vec<TokenId>,
    },
    Plan {
        rows: Vec<RowSpec>,
    },
    /// A row by count whose numbers are out of all bounds.
    PlanHuge {
        seq: SeqId,
        count: u32,
        lookahead: u32,
    },
    Run {
        steps: usize,
    },
    Commit {
        step: StepId,
        outcomes: Vec<OutcomeSpec>,
    },
    CommitAll {
        step: StepId,
    },
    /// Before it, so many of the steps to be aborted run, and then a part of the next.
    Abort {
        step: StepId,
        ran: Option<(usize, Part)>,
    },
    AbortAll,
    Fork {
        seq: SeqId,
        children: usize,
    },
    Select {
        beams: Vec<SeqId>,
        parents: Vec<usize>,
    },
    Truncate {
        seq: SeqId,
        len: u32,
    },
    Free {
        seq: SeqId,
        release: Release,
    },
    Reserve {
        seq: SeqId,
        tokens: u32,
    },
    View {
        rows: Vec<(SeqId, u32, u32)>,
    },
    Retire {
        step: StepId,
    },
    Pin {
        scope: Rc<Scope>,
        prompt: Rc<[TokenId]>,
        query: Rc<QuerySpec>,
    },
    Unpin {
        pin: PinId,
    },
    Invalidate(Invalid),
    SetTime {
        now: u64,
    },
    /// With `None`, a hasher alone.
    Listen(Option<SinkSpec>),
    Unlisten,
    Flush,
    Identity {
        block: BlockId,
    },
}

/// An [`Invalidate`](crate::cache::Invalidate) as data; an identity is that of a block, or one of nothing.
#[derive(Clone, Debug)]
pub(crate) enum Invalid {
    All,
    Scope(Rc<Scope>),
    Identity(Option<BlockId>),
    Block(BlockId),
}

/// An [`Outcome`] as data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OutcomeSpec {
    All,
    Accept(u32),
    Ids(Vec<TokenId>),
}

impl OutcomeSpec {
    pub(super) fn outcome(&self) -> Outcome<'_> {
        match self {
            Self::All => Outcome::All,
            Self::Accept(accepted) => Outcome::Accept(*accepted),
            Self::Ids(ids) => Outcome::Ids(ids),
        }
    }
}

impl RowSpec {
    pub(super) fn row(&self) -> Row<'_> {
        let tokens = match self.kind {
            Kind::Ids => RowTokens::Ids(&self.tokens),
            Kind::Later | Kind::Embeddings => RowTokens::Count(u32::try_from(self.tokens.len()).unwrap()),
        };
        Row { seq: self.seq, tokens, drafts: self.drafts, lookahead: self.lookahead }
    }
}
