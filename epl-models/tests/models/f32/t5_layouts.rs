//! The layout changes nothing of a T5, in f32.

use epl_core::Model;
use epl_core::testing::run;
use epl_modules::moe::Gate;

use crate::layouts::{check_dense, check_experts, dense, experts};

#[test]
fn dense_models() {
    check_dense(1e-5);
}

#[test]
fn models_with_experts() {
    check_experts(1e-5);
}

#[test]
fn segments_are_named_for_every_parameter() {
    for config in [dense(), experts(Gate::Top2), dense().with_tied_head(false)] {
        run((1, 1, 1), |epl| {
            let built = epl.build(|at| config.init(at))?;
            assert_eq!(built.model().segments(), 6);
            let segments = |name: &str| built.plan().record(name).map(|record| record.segments.clone());
            let tied = if config.tied_head { vec![0, 2, 5] } else { vec![0, 2] };
            assert_eq!(segments("embedding.weight"), Some(tied));
            assert_eq!(segments("encoder.final_norm.gamma"), Some(vec![1]));
            assert_eq!(segments("decoder.bias.weight"), Some(vec![2]));
            assert_eq!(segments("decoder.blocks.1.cross_attention.heads.query.weight"), Some(vec![3]));
            assert_eq!(segments("decoder.final_norm.gamma"), Some(vec![5]));
            Ok(())
        });
    }
}
