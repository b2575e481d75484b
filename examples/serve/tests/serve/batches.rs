//! A token's result does not depend on who shares its batch, nor on how its prompt was cut.

use serve::model::{AttentionError, Batch, LayerAttention, Model, ModelError, WeightFormat};
use serve::sampling::argmax;

use crate::crafted::Crafted;
use crate::dense::Dense;
use crate::golden::{cases, model, model_path};

#[test]
fn logits_are_the_same_bits_alone_in_a_batch_and_in_chunks() {
    let Some(cases) = cases() else { return };
    let model = model();
    let [a, b] = [&cases[0].prompt_ids, &cases[1].prompt_ids].map(|ids| ids.as_slice());
    let mut alone = Dense::new(model, 1);
    let whole = alone.step(model, &[(0, a)]);
    let next = alone.step(model, &[(0, &[argmax(whole.row(0))])]);

    let mut crowd = Dense::new(model, 3);
    let batch = crowd.step(model, &[(0, b), (1, a), (2, b)]);
    assert_eq!(batch.row(1), whole.row(0));
    assert_eq!(batch.row(0), batch.row(2));
    let token = [argmax(whole.row(0))];
    let batch = crowd.step(model, &[(1, &token), (0, &[5]), (2, &[6, 7, 8])]);
    assert_eq!(batch.row(0), next.row(0));

    let mut chunked = Dense::new(model, 2);
    chunked.step(model, &[(0, &a[..1])]);
    chunked.step(model, &[(1, b), (0, &a[1..3])]);
    let last = chunked.step(model, &[(0, &a[3..])]);
    assert_eq!(last.row(0), whole.row(0));
}

#[test]
fn quantised_weights_run_and_agree_roughly() {
    let Some(cases) = cases() else { return };
    let model = Model::open(&model_path(), WeightFormat::Quantised).unwrap();
    for case in cases {
        let logits = Dense::new(&model, 1).step(&model, &[(0, &case.prompt_ids)]);
        for (id, want) in case.first_top10 {
            let got = f64::from(logits.row(0)[usize::try_from(id).unwrap()]);
            assert!((got - want).abs() < 1.0, "{id}: {got} against {want}");
        }
    }
}

/// Fails in one layer.
struct Failing(u32);

impl LayerAttention for Failing {
    fn attend(&mut self, layer: u32, _: &[f32], _: &[f32], _: &[f32], _: &mut [f32]) -> Result<(), AttentionError> {
        if layer == self.0 { Err("no room".into()) } else { Ok(()) }
    }
}

#[test]
fn wrong_batches_are_refused_before_attention_is_asked() {
    let model = Model::open(&Crafted::new().write().path, WeightFormat::F32).unwrap();
    let run = |tokens: &[u32], positions: &[u32], logit_rows: &[usize]| {
        // Layer 0 fails, so any other error shows that it came first.
        model.forward(Batch { tokens, positions, logit_rows }, &mut Failing(0)).unwrap_err()
    };
    assert!(matches!(run(&[], &[], &[]), ModelError::Batch { tokens: 0, .. }));
    assert!(matches!(run(&[1], &[0, 1], &[]), ModelError::Batch { positions: 2, .. }));
    assert!(matches!(run(&[1], &[0], &[1]), ModelError::Batch { last_row: Some(1), .. }));
    assert!(matches!(run(&[261], &[0], &[]), ModelError::Token { token: 261, vocab_len: 261 }));
    assert!(matches!(run(&[1], &[64], &[]), ModelError::Position { position: 64, context_len: 64 }));
    assert!(run(&[1], &[63], &[]).to_string().contains("no room"));
}

#[test]
fn logits_come_for_the_rows_asked_for_in_their_order() {
    let model = Model::open(&Crafted::new().write().path, WeightFormat::F32).unwrap();
    let run = |logit_rows: &[usize]| {
        let mut dense = Dense::new(&model, 1);
        dense.own(&[0, 0, 0]);
        let batch = Batch { tokens: &[3, 4, 5], positions: &[0, 1, 2], logit_rows };
        model.forward(batch, &mut dense).unwrap()
    };
    let all = run(&[0, 1, 2]);
    let some = run(&[2, 0]);
    assert_eq!((all.num_rows(), some.num_rows(), run(&[]).num_rows()), (3, 2, 0));
    assert_eq!((some.row(0), some.row(1)), (all.row(2), all.row(0)));
    assert_ne!(all.row(0), all.row(1));
}
