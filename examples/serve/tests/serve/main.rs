//! Tests of the package against the real model, crafted files and the program itself.

mod batches;
mod crafted;
mod dense;
mod engine;
mod golden;
mod program;
mod refused;
mod served;
mod tokenizers;
