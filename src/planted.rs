//! Bugs planted on purpose, in tests only, to show that the tests would catch them.

use core::cell::Cell;

/// A bug that a test may switch on for its own thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A copy-on-write is planned and its copy left out of the step.
    SkippedCopy,
    /// Two blocks that differ in their last token only are taken for the same.
    IdentityIgnoresLastToken,
    /// A block that is taken for new content stays in the index under its old identity.
    IdentitySurvivesReuse,
    /// An abort gives back all blocks of a row but one.
    AbortForgetsBlock,
    /// A part of a block is found for one token more than agrees.
    PartTooLong,
    /// A part that is copied is let go before the copy has run.
    PartLetGo,
    /// Content computed on what was invalidated is named after all.
    InvalidationForgetsTails,
    /// Content is announced again with its second copy.
    TwinAnnounced,
    /// A block is evicted before what builds on it, if the policy says so.
    ParentFirst,
    /// A plan that fails leaves the plain appends behind that it had planned.
    AppendsNotTakenBack,
    /// Attention goes on with a row from where another one paused that shares its prefix.
    #[cfg(feature = "std")]
    PausedElsewhere,
    /// Rows are taken to share one span more than they do.
    #[cfg(feature = "std")]
    SharedTooLong,
    /// A step is written where the device may still be reading one before it.
    #[cfg(feature = "cuda")]
    SlabNotAwaited,
    /// Calls on different streams do not wait for each other.
    #[cfg(feature = "cuda")]
    StreamsNotOrdered,
    /// A mask is taken for the one that the device has.
    #[cfg(feature = "cuda")]
    MaskNotSent,
    /// The plan of a step is taken for that of a later one.
    #[cfg(feature = "cuda")]
    PlanOfAnotherStep,
    /// The plan of a capture is taken for that of a later one.
    #[cfg(feature = "cuda")]
    PlanOfAnotherCapture,
    /// Plans of captures lie where those of steps do.
    #[cfg(feature = "cuda")]
    PlanInOnePlace,
}

std::thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Runs `f` with a bug planted.
pub(crate) fn with<R>(bug: Bug, f: impl FnOnce() -> R) -> R {
    struct Uproot;
    impl Drop for Uproot {
        fn drop(&mut self) {
            PLANTED.with(|planted| planted.set(None));
        }
    }
    let _uproot = Uproot;
    PLANTED.with(|planted| planted.set(Some(bug)));
    f()
}

/// Whether any bug is planted.
pub(crate) fn any() -> bool {
    PLANTED.with(|planted| planted.get().is_some())
}

/// Whether this bug is planted.
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

std::thread_local! {
    static COLLIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with a hash of scopes under which everything collides.
pub(crate) fn with_colliding_scopes<R>(f: impl FnOnce() -> R) -> R {
    COLLIDE.with(|collide| collide.set(true));
    let result = f();
    COLLIDE.with(|collide| collide.set(false));
    result
}

/// Whether scopes are to collide.
pub(crate) fn all_scopes_collide() -> bool {
    COLLIDE.with(Cell::get)
}
