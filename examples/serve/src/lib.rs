//! A small continuous-batching engine: Llama-architecture GGUFs on the CPU, with their keys and values in pages.

pub mod download;
pub mod model;
