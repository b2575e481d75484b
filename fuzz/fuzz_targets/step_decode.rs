//! Any bytes are a step or an error; what decodes encodes to the same bytes, and can be written out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paged_kv::Step;
use paged_kv::step::Padding;

fuzz_target!(|bytes: &[u8]| {
    let mut step = Step::new();
    let before = step.clone();
    match step.decode(bytes, 1 << 16) {
        Err(_) => assert_eq!(step, before),
        Ok(read) => {
            let mut again = Vec::new();
            step.encode(&mut again);
            assert_eq!(again, bytes[..read]);
            let rows = step.rows().len();
            for padding in [Padding::AliasFirst, Padding::Scratch] {
                let mut out = vec![0_i32; rows + 3];
                let _ = step.write_seq_lens(0..rows, padding, &mut out);
                let _ = step.write_cu_seqlens(0..rows, padding, &mut out);
                let _ = step.write_block_tables(0..rows, 3, padding, &mut out);
                let _ = step.write_slot_mapping(0..rows, padding, &mut out);
                let (mut indptr, mut last) = (vec![0_i32; rows + 1], vec![0_i32; rows]);
                let _ = step.write_csr(0..rows, padding, &mut indptr, &mut out, &mut last);
            }
            assert!(step.table_edits(0..rows).count() <= bytes.len());
        }
    }
});
