//! What the suite of all storages does not ask: streams, graphs, padding, types of tensors, refusals.
//!
//! They run on whatever driver is found, a GPU's or the emulator's, and say so where there is none. The reference is the
//! CPU storage, which the suite compares with float64.

mod changes;
mod decode;
mod graphs;
mod planted;
mod records;
mod refusals;
mod rig;
mod streams;
mod writes;

use super::CudaStorage;

/// Whether there is a driver. Panics where `PAGED_KV_CUDA=required` says that there should be.
pub(in crate::storage) fn found() -> bool {
    let found = CudaStorage::probe();
    let required = std::env::var_os("PAGED_KV_CUDA").is_some_and(|value| value == "required");
    assert!(found.is_ok() || !required, "PAGED_KV_CUDA is required: {found:?}");
    if found.is_err() {
        std::println!("skipped: {found:?}");
    }
    found.is_ok()
}
