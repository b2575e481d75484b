//! What storages refuse.

use core::fmt;

use crate::error::errors;
use crate::id::{BlockId, GroupId, Slot};

errors! {
    /// A storage refused a call, which then changed nothing.
    pub enum StorageError {
        /// An allocation of the layout cannot be had.
        OutOfMemory {
            /// Its index in [`KvLayout::allocations`](crate::layout::KvLayout::allocations).
            allocation: u32,
            /// Its size.
            bytes: u64,
        } => "allocation {allocation} of {bytes} bytes cannot be had",
        /// The environment variable `PAGED_KV_ISA` names an instruction set that this machine does not have, or none.
        NoSuchIsa => "PAGED_KV_ISA is none of avx512, avx2, neon and portable, or this machine does not have it",
        /// Heads are far longer than those of any model.
        HeadTooLong {
            /// The layer.
            layer: u32,
            /// Elements of its K or V heads.
            dim: u32,
            /// The most that is taken.
            max: u32,
        } => "heads of {dim} elements in layer {layer}, and at most {max} are possible",
        /// The step has no tables for the group of this storage.
        NoSuchGroup {
            /// The group.
            group: GroupId,
        } => "the step has no group {group:?}",
        /// The step has only what [changed](crate::Step::of_changes) of its tables, and this storage keeps none.
        OnlyChanges => "the step holds what changed of its tables, and whole tables are needed",
        /// The step was planned for blocks of another size.
        BlockSize {
            /// Of the step, in tokens.
            step: u32,
            /// Of the layout, in tokens.
            layout: u32,
        } => "the step has blocks of {step} tokens and the layout of {layout}",
        /// Padding only adds rows.
        PaddedRows {
            /// Rows of the step.
            rows: usize,
            /// Rows asked for.
            padded_rows: u32,
        } => "{rows} rows cannot be padded to {padded_rows}",
        /// A block of a table, of a copy, or the scratch block is not one of the pool.
        NoSuchBlock {
            /// The block.
            block: BlockId,
            /// Blocks of the pool.
            num_blocks: u32,
        } => "{block:?} is not one of the {num_blocks} blocks of the pool",
        /// A row reaches beyond its table, or slots are missing.
        Inconsistent {
            /// The row.
            row: usize,
        } => "row {row} of the step has more tokens than blocks or slots",
        /// A block is the destination of two copies, or of one and the source of another (or the same): the result
        /// would depend on their order.
        CopyOrder {
            /// The block.
            block: BlockId,
        } => "{block:?} is written by a copy and is read or written by another",
        /// No step was prepared yet.
        NotPrepared => "no step was prepared",
        /// The copies of the prepared step must run before its writes and reads.
        CopiesPending {
            /// Number of copies.
            copies: usize,
        } => "{copies} copies of the step have not run",
        /// The layout has no such layer.
        NoSuchLayer {
            /// The layer asked for.
            layer: u32,
            /// Layers of the layout.
            layers: usize,
        } => "there is no layer {layer} among {layers}",
        /// The pool has no such slot.
        NoSuchSlot {
            /// The slot asked for.
            slot: Slot,
            /// Slots of the pool.
            slots: u64,
        } => "{slot:?} is not one of {slots} slots",
        /// Bytes are not as many as the records of the blocks.
        RecordBytes {
            /// Bytes given.
            given: usize,
            /// Bytes of the records; `usize::MAX` where that is too few.
            expected: usize,
        } => "{given} bytes are given for records of {expected}",
        /// Two records are for one block.
        RepeatedBlock {
            /// The block.
            block: BlockId,
        } => "{block:?} is to be written twice",
        /// A tensor has another shape than the prepared step and the layout ask for.
        Shape {
            /// Which tensor: `"q"`, `"k"`, `"v"` or `"out"`.
            tensor: &'static str,
            /// Tokens, heads and elements per head that it has.
            given: [usize; 3],
            /// Those it should have.
            expected: [usize; 3],
        } => "{tensor} is {given:?} and should be {expected:?} (tokens, heads, elements)",
        /// Query heads are shared evenly by the KV heads of the layer.
        QueryHeads {
            /// Query heads.
            q_heads: usize,
            /// KV heads of the layer.
            kv_heads: usize,
        } => "{q_heads} query heads cannot be shared by {kv_heads} KV heads",
        /// The slice behind a tensor ends before its last element.
        TooShort {
            /// Which tensor.
            tensor: &'static str,
            /// Elements that its shape and strides span; `usize::MAX` where that overflows.
            needed: usize,
            /// Elements of the slice.
            given: usize,
        } => "{tensor} spans {needed} elements and its slice has {given}",
        /// Heads of the output share elements.
        Overlap {
            /// From token to token, in elements.
            token_stride: usize,
            /// From head to head, in elements.
            head_stride: usize,
        } => "the heads of the output overlap with strides {token_stride} and {head_stride}",
        /// States to be merged do not have the same lengths, or outputs are not as many for each head.
        States {
            /// Numbers of the outputs, of one and of the other.
            outs: [usize; 2],
            /// Log-sum-exps, of one and of the other.
            lses: [usize; 2],
        } => "outputs of {outs:?} numbers and {lses:?} log-sum-exps cannot be merged",
        /// A window of no keys.
        NoWindow => "a window of 0 keys, and a query sees its own at least",
        /// A soft cap that is not a positive number, or so small or large that the scale divided by it, or it times log₂ e,
        /// is not one in `f32`.
        SoftCap => "the soft cap should be positive and finite, and neither tiny nor huge",
        /// A parameter per query head has another length.
        PerHead {
            /// Which: `"sinks"` or `"alibi_slopes"`.
            param: &'static str,
            /// Its length.
            given: usize,
            /// Query heads of the call.
            q_heads: usize,
        } => "{given} {param} for {q_heads} query heads",
        /// A mask does not fit the step.
        Mask {
            /// Words of it.
            words: usize,
            /// Words of it per query token.
            words_per_token: u32,
            /// Query tokens of the step.
            tokens: usize,
            /// Query tokens of its longest row, each of which needs a bit.
            row_tokens: usize,
        } => "a mask of {words} words, {words_per_token} per token, for {tokens} tokens and rows of up to {row_tokens}",
        /// No CUDA driver can be loaded.
        NoDriver => "no CUDA driver can be loaded: install that of NVIDIA, 525 or later",
        /// The CUDA driver is too old for the kernels.
        OldDriver {
            /// What the driver says: 1000 × major + 10 × minor of CUDA.
            version: u32,
            /// What the kernels need.
            needed: u32,
        } => "the CUDA driver is of version {version} and the kernels need {needed}: update it",
        /// The GPU is too old for the kernels.
        OldDevice {
            /// Its compute capability: 10 × major + minor.
            capability: u32,
            /// What the kernels need.
            needed: u32,
        } => "the GPU is of compute capability {capability} and the kernels need {needed}",
        /// The driver refuses the kernels.
        Kernels {
            /// Its `CUresult`.
            code: u32,
        } => "the driver refuses the kernels with CUDA error {code}: is it older than its GPU?",
        /// A call of the driver failed.
        Driver {
            /// Which.
            call: &'static str,
            /// Its `CUresult`.
            code: u32,
        } => "{call} failed with CUDA error {code}",
        /// The context is broken, by a kernel of anybody's, and whatever is in its memory is lost. Only another process
        /// or, if it is not the primary one, another context helps.
        ContextLost {
            /// The `CUresult` that says so.
            code: u32,
        } => "a kernel failed with CUDA error {code}, and its context is lost",
        /// Device or pinned memory for the metadata of steps cannot be had.
        NoBuffers {
            /// How much.
            bytes: u64,
        } => "{bytes} bytes for the metadata of steps cannot be had",
        /// A stream or a tensor is not of the storage's context.
        OtherContext => "a stream or a tensor is of another CUDA context than the storage",
        /// The per-thread default stream is another one on every thread, so that calls on it have no order.
        PerThreadStream => "the per-thread default stream has no order among threads: give another one",
        /// A tensor was borrowed for another stream than the one of the call.
        OtherStream {
            /// Which tensor.
            tensor: &'static str,
        } => "{tensor} was borrowed for another stream than that of the call",
        /// What cannot be part of a CUDA graph was called while the stream was being captured.
        Capturing => "the stream is being captured, and this call cannot be part of a graph",
        /// A step of changes changes a table that the storage does not have, or not up to there: a step before it was not
        /// prepared, failed, or had whole tables, which take the place of kept ones.
        UnknownTable {
            /// The row.
            row: usize,
            /// Blocks that the step says are unchanged.
            unchanged: u32,
            /// Those that the storage has of the sequence.
            kept: u32,
        } => "row {row} builds on {unchanged} blocks of its table, and {kept} are kept",
        /// More than the storage was made for.
        Limit {
            /// Of what, and of which limit.
            what: &'static str,
            /// How many there are.
            given: u64,
            /// How many there may be.
            max: u64,
        } => "{given} {what}, and at most {max} are possible",
        /// The address of a tensor is not a multiple of the size of its elements.
        Misaligned {
            /// Which tensor.
            tensor: &'static str,
        } => "the address of {tensor} is not a multiple of its elements' size",
    }
}
