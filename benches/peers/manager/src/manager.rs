//! What every block manager is asked to do.
//!
//! Each call does a whole batch, so that what stands between a workload and the manager (one indirect call) is shared
//! by the batch. Prompts are lent mutably: managers whose API takes a `Vec` take it, and nobody clones in timed code.
//! A call that cannot do what it claims panics; the workloads check the counts as well, outside of timed code.

/// Blocks of a manager's pool, and blocks evicted so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// Blocks that can be taken and hold nothing.
    pub(crate) blank: u64,
    /// Blocks whose content can be found; when no sequence lives, all of them are idle.
    pub(crate) cached: u64,
    /// Blocks that lost their content to an allocation, ever.
    pub(crate) evictions: u64,
}

/// A block manager with blocks of [`BLOCK_SIZE`] tokens.
pub(crate) trait Manager {
    fn counts(&self) -> Counts;

    /// Blocks in the tables of the sequences that live.
    fn held_blocks(&self) -> u64;

    /// Looks each prompt up, gives it blocks for what was not found, and publishes its full blocks. The sequences live
    /// on.
    fn admit(&mut self, prompts: &mut [Vec<u32>]);

    /// Decodes: one token for each living sequence, then the next for each, and so on; full blocks are published.
    fn append(&mut self, tokens: &[u32]);

    /// Ends every living sequence. What it published can still be found.
    fn free_all(&mut self);

    /// Looks prompts up and takes nothing; for each, how many blocks were found.
    fn peek(&mut self, prompts: &mut [Vec<u32>], found: &mut Vec<u32>);

    /// A sequence for each prompt, with references on the blocks that were found and no others.
    fn adopt(&mut self, prompts: &mut [Vec<u32>]);

    /// Takes so many blocks at once, to be written with content that nobody can find yet.
    fn allocate(&mut self, blocks: u32);

    /// Gives back what [`allocate`](Self::allocate) took.
    fn release_blank(&mut self);

    /// Ends everything and forgets all content.
    fn reset(&mut self);

    /// What only `paged-kv` does.
    fn paged(&mut self) -> Option<&mut dyn Paged> {
        None
    }
}

/// Operations that the peers do not have.
pub(crate) trait Paged {
    /// Ends every living sequence and forgets what it published.
    fn discard_all(&mut self);

    /// So many times: forks the first living sequence and frees the fork.
    fn fork_and_free(&mut self, times: u32);

    /// Plans a decode step, one token per living sequence, and writes its block tables as compressed rows. Returns how
    /// many table entries were written.
    fn plan_with_csr(&mut self, tokens: &[u32]) -> usize;

    /// Plans a decode step, one token per living sequence, for a storage that keeps the tables. Returns how many entries
    /// of them changed.
    fn plan_with_edits(&mut self, tokens: &[u32]) -> usize;

    /// Commits that step.
    fn commit(&mut self);
}

/// Tokens of a block, everywhere.
pub(crate) const BLOCK_SIZE: u32 = 16;

/// Makes a manager with a pool of so many blocks.
pub(crate) type Make = Box<dyn Fn(u32) -> Box<dyn Manager>>;

/// A manager by name.
pub(crate) struct Entrant {
    pub(crate) name: String,
    pub(crate) make: Make,
}
