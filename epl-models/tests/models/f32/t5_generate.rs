//! Generation equals the argmax of a forward over the whole sequence, under any layout.

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::optim::AdamWConfig;
use epl_comm::{EventKind, Operation, Trace, shard_range};
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{config, run};
use epl_core::{Epl, Result, launch_traced};
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
        .with_dropout(0.0)
        .with_feed_forward(T5FeedForward::GatedGelu)
        .with_tied_head(false)
        .with_scaled_head(false)
}

fn experts() -> T5Config {
    // With room for all, so that no forward drops a token.
    let moe = T5MoeConfig::new(4).with_decoder_sparse_step(2).with_capacity(Capacity::Unlimited);
    dense().with_feed_forward(T5FeedForward::Relu).with_tied_head(true).with_scaled_head(true).with_moe(Some(moe))
}

/// What the models learn by heart: rows that end at different lengths, one without end.
fn pairs() -> Vec<TokenPair> {
    let pair = |source: &[i64], target: &[i64]| TokenPair { source: source.to_vec(), target: target.to_vec() };
    vec![
        pair(&[5, 6, 7, 1], &[7, 6, 5, 1]),
        pair(&[8, 1], &[8, 8, 8, 2, 9, 1]),
        pair(&[9, 10, 11, 12, 13, 14, 1], &[1]),
        pair(&[3, 2, 1], &[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        pair(&[20, 1], &[21, 1]),
    ]
}

/// What generation then gives.
fn expected() -> Vec<Vec<i64>> {
    let written = |pair: TokenPair| pair.target.into_iter().take_while(|token| *token != 1).take(LONGEST).collect();
    pairs().into_iter().map(written).collect()
}

fn engine(epl: &Epl, config: &T5Config) -> Result<Engine<T5>> {
    Engine::new(epl.build(|at| config.init(at))?, &AdamWConfig::new(), EngineSettings::default())
}

/// A model that learned the pairs.
fn learned(epl: &Epl, config: &T5Config) -> Result<Engine<T5>> {
    let mut engine = engine(epl, config)?;
    let mine = shard_range(pairs().len(), epl.context().data().size(), epl.context().data().rank());
    let batch = T5Batcher::new(config).batch(pairs()[mine.clone()].to_vec(), engine.device());
    let samples: Vec<u64> = mine.map(|sample| sample as u64).collect();
    let mut loss = f64::INFINITY;
    while loss > 0.05 && engine.steps() < 400 {
        loss = engine.step(vec![MicroBatch::new(batch.clone(), samples.clone())], 1e-2)?.terms[0].1;
    }
    assert!(loss <= 0.05, "loss {loss} after {} steps", engine.steps());
    Ok(engine)
}

/// Greedy, by a forward over everything written so far for each token.
fn uncached(model: &T5, source: &[i64]) -> Vec<i64> {
    let (config, device) = (model.config(), model.device());
    let mut written = Vec::new();
    while written.len() < LONGEST {
        // The decoder does not read the last target; its position is the one asked for.
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

/// The first `count` sources, cut over the replicas.
fn generate(config: &T5Config, mesh: (usize, usize, usize), count: usize) -> Vec<Vec<i64>> {
    let sources: Vec<Vec<i64>> = pairs().into_iter().map(|pair| pair.source).take(count).collect();
    let parts = run(mesh, |epl| {
        let engine = learned(&epl, config)?;
        let data = epl.context().data();
        let mine = shard_range(count, data.size(), data.rank());
        let generated = T5::generate(&engine, &sources[mine.clone()], LONGEST)?;
        assert_eq!(generated.len(), mine.len());
        Ok((epl.context().tensor().rank() == 0).then_some(generated))
    });
    parts.into_iter().flatten().flatten().collect()
}

#[test]
fn the_cache_changes_nothing() {
    for config in [dense(), experts()] {
        run((1, 1, 1), |epl| {
            // Some pairs are not learned: theirs is some other text, but the same one.
            let engine = learned(&epl, &config)?;
            let mut sources: Vec<Vec<i64>> = pairs().into_iter().map(|pair| pair.source).collect();
            sources.extend([vec![5, 1], vec![9, 8, 7, 6, 1], vec![22, 22, 22, 1]]);
            let plain = engine.model().valid();
            let each: Vec<_> = sources.iter().map(|source| uncached(&plain, source)).collect();
            assert_eq!(T5::generate(&engine, &sources, LONGEST)?, each);
            Ok(())
        });
    }
}

#[test]
fn the_layout_changes_nothing() {
    for (config, meshes) in [
        (dense(), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1)]),
        (experts(), [(1, 1, 1), (2, 1, 2), (1, 2, 1), (4, 1, 2)]),
    ] {
        for mesh in meshes {
            assert_eq!(generate(&config, mesh, 5), expected(), "mesh {mesh:?}");
        }
    }
}

#[test]
fn a_replica_without_sources_goes_along() {
    assert_eq!(generate(&experts(), (2, 1, 2), 1), expected()[..1]);
    assert!(generate(&experts(), (2, 1, 2), 0).is_empty());
}

#[test]
fn a_source_that_cannot_be_read_is_an_error_on_every_rank() {
    let errors = run((2, 1, 1), |epl| {
        let engine = engine(&epl, &dense())?;
        let source = if epl.context().data().rank() == 0 { vec![1] } else { vec![23, 1] };
        Ok(T5::generate(&engine, &[source], LONGEST).err().map(|error| error.to_string()).unwrap_or_default())
    });
    assert!(errors[0].contains("rank 1 was given prompts or settings that cannot be used"), "{}", errors[0]);
    assert!(errors[1].contains("prompt 0 has token 23; the tokens are 0 to 22"), "{}", errors[1]);
}

/// What each rank says to a generation that it asks for in its own way.
fn refusals(mesh: (usize, usize, usize), ask: impl Fn(&Epl) -> (i64, usize) + Sync) -> Vec<String> {
    run(mesh, |epl| {
        let engine = engine(&epl, &dense())?;
        let (token, longest) = ask(&epl);
        Ok(T5::generate(&engine, &[vec![token, 1]], longest).expect_err("ranks differ").to_string())
    })
}

#[test]
fn another_number_of_steps_is_an_error_on_every_rank() {
    for mesh in [(2, 1, 1), (1, 2, 1)] {
        for error in refusals(mesh, |epl| (5, 7 + 2 * epl.context().world().rank())) {
            assert!(error.contains("rank 0 generates at most 7 tokens, but rank 1 at most 9"), "{error}");
        }
    }
}

#[test]
fn tensor_ranks_with_different_sources_are_an_error_on_every_rank() {
    let errors = refusals((2, 2, 1), |epl| (if epl.context().world().rank() == 3 { 6 } else { 5 }, LONGEST));
    assert!(errors[2..].iter().all(|error| error.contains("were given different prompts")), "{errors:?}");
    assert!(errors[..2].iter().all(|error| error.contains("rank 2 was given prompts")), "{errors:?}");
}

#[test]
fn a_stand_in_never_prolongs_generation() {
    let trace = Trace::new();
    let launched = launch_traced(&config(2, 1, 1), Some(trace.clone()), |epl| {
        // Untrained: it would not write the end token at once.
        let engine = engine(&epl, &dense())?;
        epl.context().mark(|| "generate".to_string());
        Ok(T5::generate(&engine, &[], LONGEST)?.is_empty())
    });
    assert_eq!(launched.expect("nothing is wrong"), [true, true]);
    let events: Vec<_> = trace.events().into_iter().filter(|event| event.rank.0 == 0).collect();
    let mark = events.iter().find(|event| event.kind == EventKind::Mark("generate".into())).expect("marked").begin;
    let asks = |kind: &EventKind| matches!(kind, EventKind::Collective { operation: Operation::AllReduce(_), .. });
    let asked = events.iter().filter(|event| event.begin > mark && asks(&event.kind)).count();
    assert_eq!(asked, 1, "the ranks ask once whether any row is unfinished");
}
