//! Generation equals the argmax of a forward over the whole sequence, under any layout.

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use epl_core::testing::run;
use epl_core::{Epl, Result};
use epl_comm::shard_range;
use epl_models::TokenPair;
use epl_models::t5::{T5, T5Batcher, T5Config, T5FeedForward, T5MoeConfig};
use epl_modules::moe::Capacity;

const LONGEST: usize = 9;

fn dense() -> T5Config {
    T5Config::new(23)
        .with_d_model(16)
        .with_d_kv(6)
        .with_d_ff(24)
        .with_heads(4)
        .with_encoder_layers(2)
        .with_decoder_layers(2)
        .with_feed_forward(T5FeedForward::GatedGelu)
        .with_tied_head(false)
        .with_scaled_head(false)
}

fn experts() -> T5Config {
    // With room for all, so that no forward drops a token.
    let moe = T5MoeConfig::new(4).with_decoder_sparse_step(2).with_capacity(Capacity::Unlimited);
    dense().with_feed_forward(T5FeedForward::Relu).with_tied_head(true).with_moe(Some(moe))
}

fn sources() -> Vec<Vec<i64>> {
    vec![vec![5, 6, 7, 1], vec![8, 1], vec![9, 10, 11, 12, 13, 14, 1], vec![3, 2, 1], vec![20, 1]]
}

fn build(epl: &Epl, config: &T5Config) -> Result<T5> {
    Ok(epl.build(|at| config.init(at))?.into_inner())
}

/// Greedy, by a forward over everything written so far for each token.
fn uncached(model: &T5, source: &[i64]) -> Vec<i64> {
    let (config, device) = (model.config(), model.device());
    let mut written = Vec::new();
    while written.len() < LONGEST {
        // The last target is not read by the decoder; its position is the one asked for.
        let target = written.iter().copied().chain([0]).collect();
        let pair = TokenPair { source: source.to_vec(), target };
        let logits = model.forward(&T5Batcher::new(config).batch(vec![pair], &device));
        let next: Vec<i64> = logits.argmax(2).into_data().iter().collect();
        match next.last() {
            Some(token) if *token != config.eos => written.push(*token),
            _ => break,
        }
    }
    written
}

fn on_one_rank(config: &T5Config) -> Vec<Vec<i64>> {
    let mut results = run((1, 1, 1), |epl| {
        let model = build(&epl, config)?;
        let generated = model.generate(&sources(), LONGEST)?;
        let plain = model.valid();
        let expected: Vec<_> = sources().iter().map(|source| uncached(&plain, source)).collect();
        assert_eq!(generated, expected);
        Ok(generated)
    });
    results.remove(0)
}

/// The sources are cut over the replicas; `count` of them are used.
fn under_a_layout(config: &T5Config, mesh: (usize, usize, usize), count: usize) -> Vec<Vec<i64>> {
    let parts = run(mesh, |epl| {
        let model = build(&epl, config)?;
        let data = epl.context().data();
        let mine = shard_range(count, data.size(), data.rank());
        let generated = model.generate(&sources()[mine.clone()], LONGEST)?;
        assert_eq!(generated.len(), mine.len());
        Ok((epl.context().tensor().rank() == 0).then_some(generated))
    });
    parts.into_iter().flatten().flatten().collect()
}

#[test]
fn the_cache_changes_nothing() {
    let (dense, experts) = (on_one_rank(&dense()), on_one_rank(&experts()));
    let lengths = |rows: &[Vec<i64>]| rows.iter().map(Vec::len).collect::<std::collections::BTreeSet<_>>();
    assert!(lengths(&dense).len() > 1 || lengths(&experts).len() > 1, "some row ends before another");
}

#[test]
fn the_layout_changes_nothing() {
    for (config, meshes) in [
        (dense(), [(2, 1, 1), (1, 2, 1), (2, 2, 1)]),
        (experts(), [(2, 1, 2), (1, 2, 1), (4, 1, 2)]),
    ] {
        let expected = on_one_rank(&config);
        for mesh in meshes {
            assert_eq!(under_a_layout(&config, mesh, 5), expected, "mesh {mesh:?}");
        }
    }
}

#[test]
fn a_replica_without_sources_goes_along() {
    let expected = on_one_rank(&experts());
    assert_eq!(under_a_layout(&experts(), (2, 1, 2), 1), expected[..1]);
    assert!(under_a_layout(&experts(), (2, 1, 2), 0).is_empty());
}

#[test]
fn a_source_that_cannot_be_read_is_an_error_on_every_rank() {
    let errors = run((2, 1, 1), |epl| {
        let model = build(&epl, &dense())?;
        let source = if epl.context().data().rank() == 0 { vec![1] } else { vec![23, 1] };
        Ok(model.generate(&[source], LONGEST).unwrap_err().to_string())
    });
    assert!(errors[0].contains("a peer was given a source"), "{}", errors[0]);
    assert!(errors[1].contains("source 0 has token 23; the tokens are 0 to 22"), "{}", errors[1]);
}
