use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use super::*;

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn all(hasher: &dyn BlockHasher, scope: &Scope, tokens: &[TokenId], extras: &[Extra]) -> Vec<String> {
    identities(hasher, scope, tokens, 4, extras).unwrap().map(|identity| hex(&identity)).collect()
}

/// Every hasher there is, and whether it says where extras end.
fn hashers() -> Vec<(Box<dyn BlockHasher>, bool)> {
    vec![
        #[cfg(feature = "sha256")]
        (Box::new(Sha256Cbor::new()), false),
        #[cfg(feature = "sha256")]
        (Box::new(Sha256Cbor::new().with_ends()), true),
        #[cfg(feature = "blake3")]
        (Box::new(Blake3::new()), true),
    ]
}

/// Tokens on both sides of every width that CBOR has for a number.
const TOKENS: [TokenId; 12] = [0, 23, 24, 255, 256, 65_535, 65_536, u32::MAX, 7, 8, 9, 10];

fn full() -> (Scope, [Extra; 2]) {
    let scope = Scope::default().with_model(&[0xff, 0]).with_adapter(b"sql", 7).with_salt(b"tenant");
    (scope, [Extra::new(2..6, [0xab; 32]), Extra::new(7..9, [1; 32])])
}

/// Derived by hand for seed "0" and tokens 100 to 107, then hashed by another SHA-256 (Python's hashlib):
/// ```text
/// root = sha256(61 30)                                 text of 1 byte, "0"
///      = 4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e
/// H0   = sha256(83 | 58 20 root | 84 18 64 18 65 18 66 18 67 | f6)
///               array of 3 | bytes, 32 | array of 4: 100, 101, 102, 103 | null
/// H1   = sha256(83 | 58 20 H0   | 84 18 68 18 69 18 6a 18 6b | f6)
/// ```
/// H0 and H1 are what vLLM 0.33 gives with `PYTHONHASHSEED=0`.
#[cfg(feature = "sha256")]
#[test]
fn sha256_cbor_of_tokens_has_the_values_of_vllm() {
    let hasher = Sha256Cbor::with_seed("0");
    assert_eq!(hex(hasher.root()), "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
    let tokens: Vec<u32> = (100..110).collect();
    assert_eq!(
        all(&hasher, &Scope::default(), &tokens, &[]),
        [
            "71f40f563a7a259f47b9267c311bf00d383743b642efb532825c8227cad5456f",
            "4d6f90553bea9c325f483b8685f38024bee9f22a18c7630132ffdcff64ea04f4",
        ]
    );
    // sha256(6e "vllm-none-hash"): text of 14 bytes.
    let root = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0";
    assert_eq!(hex(Sha256Cbor::new().root()), root);
}

/// By another encoder (Python, by hand, equal to cbor2's canonical form) and another SHA-256, over
/// ```text
/// [root, TOKENS[0..4], [["lora", "sql", "7"], ["mm", "abab…", 2], ["cache_salt", "tenant"], ["model", h'ff00']]]
/// [H0, TOKENS[4..8], [["lora", "sql", "7"], ["mm", "abab…", -2], ["mm", "0101…", 3]]]
/// [H1, TOKENS[8..12], [["lora", "sql", "7"], ["mm", "0101…", -1]]]
/// ```
#[cfg(feature = "sha256")]
#[test]
fn sha256_cbor_tags_extras_in_order_and_salts_the_first_block_only() {
    let (scope, extras) = full();
    let got = all(&Sha256Cbor::new(), &scope, &TOKENS, &extras);
    assert_eq!(
        got,
        [
            "aa4a75856ab2ccd58d3818f642c979b4239c25b08d3a1b6b80b9f8cfa1081f15",
            "41d9df41c06607104815ee6d0b8a0a6b2e917403356047ee386c7943ee37bb72",
            "1afadfa01f9b44fb71e942dfd7444185fbec1b6e176c63647fd1d32f33b21d9a",
        ]
    );
    // ["mm", "abab…", 2, 6] in the first block; -2, 2 and ["mm", "0101…", 3, 5] in the second; -1, 1 in the third.
    let got = all(&Sha256Cbor::new().with_ends(), &scope, &TOKENS, &extras);
    assert_eq!(
        got,
        [
            "9a4fa78d7725545ec9461e11df0dc3d4624eee9d6635104a5bea9a7f4103969c",
            "5b7c0f09ddb6f6e99a8b2be263b84a7a092da8333a7130018c51b574ae9543cd",
            "4dfae1147873f04fad6d396518142bde3587ee338035d3d29061ab0d7a0ed349",
        ]
    );
}

/// The same encoder, over
/// ```text
/// [root, [1, 2, 3, 4], [["lora", "a", "18446744073709551615"], ["mm", "0000…", 0]]]
/// [root, [1, 2, 3, 4], [["lora", "a", "0"], ["mm", "0000…", 3]]]
/// ```
#[cfg(feature = "sha256")]
#[test]
fn sha256_cbor_writes_the_largest_and_the_smallest_numbers_in_full() {
    let hash = |version, position| {
        let scope = Scope::default().with_adapter(b"a", version);
        let extra = Extra::new(position..4, [0; 32]);
        all(&Sha256Cbor::new(), &scope, &[1, 2, 3, 4], core::slice::from_ref(&extra)).pop().unwrap()
    };
    assert_eq!(hash(u64::MAX, 0), "3be191dd0ca54f5436d8f701171096f5e6ff3ccc00b7b4609edbc8cfb4d09a49");
    assert_eq!(hash(0, 3), "fb48c146a16f567fbf4cd8ebced7ef9460f5c70cdf44689e2e50c68903c1c9d2");
}

/// By another encoder (Python's struct) and another BLAKE3, over the message in the head of `blake3.rs`.
#[cfg(feature = "blake3")]
#[test]
fn blake3_hashes_the_message_that_is_documented() {
    let (scope, extras) = full();
    assert_eq!(
        all(&Blake3::new(), &scope, &TOKENS, &extras),
        [
            "3955b83ae2ffca1e8ac589b721e01c24876e5cc14001c05a202fafbb7402f061",
            "1d7d01ba801acecd013637884bfb2865d81b7fd3616c216837b8d9f2d20f3b33",
            "eca31ec9d2b3f0fa103b56c8d6c9abb740f135db590c7c71958e967e812e16ab",
        ]
    );
}

/// Prompts that differ from one another in one component, or in which field some bytes stand.
fn prompts() -> Vec<(Scope, Vec<TokenId>, Vec<Extra>)> {
    let scope = Scope::default;
    let tokens = vec![1, 2, 3, 4, 5, 6, 7, 8];
    let extra = |range, digest: u8| vec![Extra::new(range, [digest; 32])];
    let two = |first: u8, second: u8| vec![Extra::new(1..6, [first; 32]), Extra::new(2..7, [second; 32])];
    let digest_as_text = "07".repeat(32);
    let scopes = [
        scope(),
        scope().with_model(b"ab"),
        scope().with_model(b"a"),
        scope().with_salt(b"ab"),
        scope().with_salt(b"a"),
        scope().with_adapter(b"ab", 0),
        scope().with_adapter(b"ab", 1),
        scope().with_adapter(b"ab", 12),
        scope().with_adapter(b"ab1", 2),
        scope().with_adapter(b"a", 0),
        scope().with_adapter(b"", 1),
        scope().with_adapter(b"", u64::MAX),
        // Bytes that move between fields.
        scope().with_model(b"a").with_salt(b"b"),
        scope().with_model(b"b").with_salt(b"a"),
        scope().with_model(b"a").with_adapter(b"b", 0),
        scope().with_salt(b"a").with_adapter(b"b", 0),
        scope().with_model(b"a").with_adapter(b"b", 0).with_salt(b"c"),
        scope().with_model(b"ab").with_adapter(b"c", 0),
        scope().with_adapter(b"ab", 0).with_salt(b"c"),
        // Bytes that are no text, and texts that look like something else.
        scope().with_salt(&[0xff]),
        scope().with_salt("\u{ff}".as_bytes()),
        scope().with_salt(b"ff"),
        scope().with_salt(&[0]),
        scope().with_salt(digest_as_text.as_bytes()),
        scope().with_salt(b"cache_salt"),
        scope().with_salt(b"lora").with_adapter(b"cache_salt", 0),
        scope().with_salt(&[b'x'; 300]),
        scope().with_salt(&[b'x'; 301]),
    ];
    let mut prompts: Vec<_> = scopes.into_iter().map(|scope| (scope, tokens.clone(), vec![])).collect();
    for extras in [
        extra(0..1, 7),
        extra(1..2, 7),
        extra(3..6, 7),
        extra(4..6, 7),
        extra(5..6, 7),
        extra(1..2, 8),
        two(7, 8),
        two(8, 7),
        two(7, 7),
    ] {
        prompts.push((scope(), tokens.clone(), extras));
    }
    for tokens in [[1, 2, 3, 4, 5, 6, 8, 7], [0, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 0x0400, 5, 6, 7, 8]] {
        prompts.push((scope(), tokens.to_vec(), vec![]));
    }
    prompts.push((scope(), vec![1, 2, 3, 4], vec![]));
    prompts.push((scope(), vec![5, 6, 7, 8], vec![]));
    prompts
}

#[test]
fn prompts_that_differ_in_one_component_have_different_identities() {
    for (hasher, ends) in hashers() {
        assert_eq!(hasher.leaves_out_ends(), !ends);
        let mut prompts = prompts();
        if ends {
            prompts.push((Scope::default(), (1..9).collect(), vec![Extra::new(1..3, [7; 32])]));
        }
        let mut last: Vec<String> =
            prompts.iter().map(|(scope, tokens, extras)| all(&*hasher, scope, tokens, extras).pop().unwrap()).collect();
        last.sort();
        last.dedup();
        assert_eq!(last.len(), prompts.len());
    }
}

#[test]
fn blocks_of_the_same_tokens_differ_by_their_number_and_their_parent() {
    let scope = Scope::default();
    for (hasher, _) in hashers() {
        let first = hasher.identity(&Hashed::new(None, &scope, 0, &[1, 2]));
        let chained = hasher.identity(&Hashed::new(Some(&first), &scope, 2, &[1, 2]));
        let whole = hasher.identity(&Hashed::new(None, &scope, 0, &[1, 2, 1, 2]));
        let other = hasher.identity(&Hashed::new(Some(&chained), &scope, 2, &[1, 2]));
        assert!(first != chained && chained != whole && chained != other && other != first);
    }
}

#[test]
fn pieces_longer_than_the_buffer_hash_like_any_others() {
    // 1,000 tokens of five bytes each, and a salt of 1,000: both go past the buffer of 256 bytes.
    let scope = Scope::default().with_salt(&[b'x'; 1_000]);
    let tokens: Vec<u32> = (0..1_000).map(|at| u32::MAX - at).collect();
    for (hasher, _) in hashers() {
        let one = hasher.identity(&Hashed::new(None, &scope, 0, &tokens));
        assert_eq!(one, hasher.identity(&Hashed::new(None, &scope, 0, &tokens)));
        let mut other = tokens.clone();
        other[999] -= 1;
        assert_ne!(one, hasher.identity(&Hashed::new(None, &scope, 0, &other)));
    }
}

#[test]
fn a_prompt_has_one_identity_per_full_block() {
    for (hasher, _) in hashers() {
        for (block_size, blocks) in [(0, 0), (1, 9), (4, 2), (9, 1), (10, 0), (u32::MAX, 0)] {
            let tokens: Vec<u32> = (0..9).collect();
            let scope = Scope::default();
            assert_eq!(identities(&*hasher, &scope, &tokens, block_size, &[]).unwrap().count(), blocks);
        }
        let unordered = [Extra::new(4..5, [0; 32]), Extra::new(1..2, [0; 32])];
        let refused = identities(&*hasher, &Scope::default(), &TOKENS, 4, &unordered).err();
        assert_eq!(
            refused.map(|error| error.to_string()),
            Some(CreateError::BadRange { start: 1, end: 2 }.to_string())
        );
    }
}
