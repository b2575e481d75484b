//! One suite of laws for every storage, against a naive `f64` reference.
//!
//! A storage takes part by a [`Harness`] and one line of [`storage_suite!`]. Each law is a function that returns what
//! it found wrong, so that the laws themselves can be tested: `planted` breaks a storage in the ways that attention
//! over blocks is usually broken, and a law must object.
//!
//! Every storage starts filled with NaN: a slot that was never written, read once, shows.

#[cfg(feature = "cuda")]
mod cuda;
mod harness;
mod laws;
mod planted;
mod reference;
mod shapes;
mod trunks;
mod variants;
mod world;

#[cfg(feature = "cuda")]
use cuda::{Balanced, Cuda, Fixed, Naive};
use harness::{Cpu, Harness};

/// Instantiates the laws for a harness and an element type.
macro_rules! storage_suite {
    ($name:ident, $harness:ty, $isa:literal, $dtype:ident) => {
        mod $name {
            use super::*;
            use crate::layout::DType;

            storage_suite!(@laws variants, $harness, $isa, $dtype,
                every_variant_agrees_with_float64,
                what_lies_outside_the_window_changes_nothing,
                a_variant_that_changes_nothing_changes_no_bit,
                no_variant_depends_on_company_or_blocks,
            );
            storage_suite!(@laws trunks, $harness, $isa, $dtype,
                blocks_that_sequences_share_change_no_bit,
                the_order_of_rows_that_share_changes_nothing,
            );
            storage_suite!(@laws laws, $harness, $isa, $dtype,
                every_shape_agrees_with_float64,
                random_shapes_agree_with_float64,
                large_scores_agree_with_float64,
                an_empty_step_is_a_step,
                the_format_bounds_the_error,
                stale_bytes_change_nothing,
                the_choice_of_blocks_changes_nothing,
                the_layout_changes_nothing,
                the_block_size_changes_nothing,
                the_company_in_a_batch_changes_nothing,
                the_cut_into_chunks_changes_nothing,
                nothing_but_the_context_changes_a_bit,
                what_comes_later_changes_nothing,
                a_copy_is_a_whole_block_on_all_layers,
                the_order_of_copies_changes_nothing,
                a_fork_that_appends_leaves_its_parent_unchanged,
            );
        }
    };
    (@float64 $name:ident, $harness:ty, $isa:literal, $dtype:ident) => {
        mod $name {
            use super::*;
            use crate::layout::DType;

            storage_suite!(@laws variants, $harness, $isa, $dtype, every_variant_agrees_with_float64,);
            storage_suite!(@laws laws, $harness, $isa, $dtype,
                every_shape_agrees_with_float64,
                random_shapes_agree_with_float64,
                large_scores_agree_with_float64,
                an_empty_step_is_a_step,
                the_format_bounds_the_error,
            );
        }
    };
    (@laws $laws:ident, $harness:ty, $isa:literal, $dtype:ident, $($law:ident,)*) => {$(
        #[test]
        fn $law() {
            if !<$harness>::choose($isa) {
                std::println!("skipped: this machine cannot run it");
            } else if let Err(fault) = $laws::$law::<$harness>(DType::$dtype) {
                panic!("{fault}");
            }
        }
    )*};
}

storage_suite!(avx512_f32, Cpu, "avx512", F32);
storage_suite!(avx512_f16, Cpu, "avx512", F16);
storage_suite!(avx512_bf16, Cpu, "avx512", BF16);
storage_suite!(avx512_f8e4m3, Cpu, "avx512", F8E4M3);
storage_suite!(avx512_i8, Cpu, "avx512", I8);
storage_suite!(avx2_f32, Cpu, "avx2", F32);
storage_suite!(avx2_f16, Cpu, "avx2", F16);
storage_suite!(avx2_bf16, Cpu, "avx2", BF16);
storage_suite!(avx2_f8e4m3, Cpu, "avx2", F8E4M3);
storage_suite!(avx2_i8, Cpu, "avx2", I8);
storage_suite!(neon_f32, Cpu, "neon", F32);
storage_suite!(neon_f16, Cpu, "neon", F16);
storage_suite!(neon_bf16, Cpu, "neon", BF16);
storage_suite!(neon_f8e4m3, Cpu, "neon", F8E4M3);
storage_suite!(neon_i8, Cpu, "neon", I8);
storage_suite!(portable_f32, Cpu, "portable", F32);
storage_suite!(portable_f16, Cpu, "portable", F16);
storage_suite!(portable_bf16, Cpu, "portable", BF16);
storage_suite!(portable_f8e4m3, Cpu, "portable", F8E4M3);
storage_suite!(portable_i8, Cpu, "portable", I8);

#[cfg(feature = "cuda")]
storage_suite!(cuda_f32, Cuda<Naive>, "", F32);
#[cfg(feature = "cuda")]
storage_suite!(cuda_f16, Cuda<Naive>, "", F16);
#[cfg(feature = "cuda")]
storage_suite!(cuda_bf16, Cuda<Naive>, "", BF16);
#[cfg(feature = "cuda")]
storage_suite!(cuda_f8e4m3, Cuda<Naive>, "", F8E4M3);
#[cfg(feature = "cuda")]
storage_suite!(cuda_i8, Cuda<Naive>, "", I8);
#[cfg(feature = "cuda")]
storage_suite!(cuda_decode_f16, Cuda<Fixed>, "", F16);
#[cfg(feature = "cuda")]
storage_suite!(cuda_decode_bf16, Cuda<Fixed>, "", BF16);
#[cfg(feature = "cuda")]
storage_suite!(cuda_decode_f8e4m3, Cuda<Fixed>, "", F8E4M3);
// Its bits depend on the whole step.
#[cfg(feature = "cuda")]
storage_suite!(@float64 cuda_balanced_f16, Cuda<Balanced>, "", F16);
#[cfg(feature = "cuda")]
storage_suite!(@float64 cuda_balanced_bf16, Cuda<Balanced>, "", BF16);
#[cfg(feature = "cuda")]
storage_suite!(@float64 cuda_balanced_f8e4m3, Cuda<Balanced>, "", F8E4M3);
