//! GPT-2, Llama, Qwen3, Mixtral, Qwen3-MoE and Gemma 2 equal what `transformers` computed: logits, loss and every gradient.

use std::path::PathBuf;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{config, error_on_scale, relative_error, run};
use epl_core::{Epl, Model, Result, launch};
use epl_models::decoder::{
    self, Decoder, DecoderBatcher, DecoderConfig, DecoderExpertsConfig, DecoderNames, measured_beside,
};
use epl_models::huggingface::{Names, read_io};
use epl_modules::{Activation, Balance, Gate, RotaryConfig};

const TOLERANCE: f64 = 1e-5;

/// Each, with its number of gradients: those of two layers, and of what is around them.
const FIXTURES: [(&str, usize); 8] = [
    ("gpt2", 2 * 16 + 4),
    ("llama", 2 * 9 + 3),
    ("llama3", 2 * 9 + 2),
    ("qwen3", 2 * 11 + 2),
    ("mixtral", 2 * 10 + 3),
    ("qwen3-moe", 2 * 12 + 3),
    ("qwen3-moe-dense", 11 + 12 + 3),
    ("gemma2", 2 * 11 + 2),
];

/// Data, tensor, pipeline and expert ranks; the last divide the first.
type Mesh = (usize, usize, usize, usize);

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// The errors of one rank, by what they are errors of.
fn errors(epl: &Epl, name: &str) -> Result<Vec<(String, f64)>> {
    let (folder, config) = decoder::open(folder(name))?;
    let reference = read_io(folder.path())?;
    let built = epl.build(|at| config.init(at))?;
    let built = built.try_map(|model, plan| Ok(decoder::load(model, plan.records(), &folder)?))?;
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;

    let items = decoder::reference_items(&reference)?;
    let data = epl.context().data();
    let mine = shard_range(items.len(), data.size(), data.rank());
    let samples: Vec<u64> = mine.clone().map(|sample| sample as u64).collect();
    let batch = DecoderBatcher::new(&config).batch(items[mine.clone()].to_vec(), engine.device());
    let mut errors = Vec::new();

    let (whole, expected) = (MicroBatch::new(batch.clone(), samples.clone()), rows(reference.logits()?, mine));
    engine.forward([Ok(whole)], |model, carry, _| {
        let logits = Decoder::logits_of(model, carry).into_data();
        errors.push(("logits".to_string(), relative_error(&logits, &expected)));
        Ok(())
    })?;
    let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
    errors.push(("loss".to_string(), (report.loss / reference.loss()? - 1.0).abs()));
    let names = DecoderNames::new(&folder, &config)?;
    let stored = |path: &str| reference.gradient(&names.source(path).expect("every parameter stands in the folder"));
    for (name, gradient) in gradients {
        let expected = stored(&name)?;
        assert!(expected.iter::<f64>().any(|value| value != 0.0), "{name}: the stored gradient is zero");
        let error = match measured_beside(&config, &name) {
            Some(other) => error_on_scale(&gradient, &expected, &stored(&other)?),
            None => relative_error(&gradient, &expected),
        };
        errors.push((name, error));
    }
    Ok(errors)
}

fn rows(data: TensorData, range: core::ops::Range<usize>) -> TensorData {
    Tensor::<3>::from_data(data, &Default::default()).slice([range]).into_data()
}

fn check((data, tensor, stages, expert): Mesh) {
    let mut config = config(data, tensor, expert);
    config.dist.pipeline_parallel_size = stages;
    for (name, gradients) in
        FIXTURES.into_iter().filter(|(name, _)| expert == 1 || name.contains("mixtral") || name.contains("moe"))
    {
        let all = launch(&config, |epl| errors(&epl, name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mesh = (data, tensor, stages, expert);
        let of_logits = all.iter().flatten().filter(|(what, _)| what == "logits").count();
        assert_eq!(of_logits, data * tensor, "{name} on mesh {mesh:?}: the last stage has the logits");
        let mut worst = ("", 0.0);
        for (rank, errors) in all.iter().enumerate() {
            assert_eq!(errors.iter().filter(|(what, _)| what.contains('.')).count(), gradients, "{name}: {errors:?}");
            for (what, error) in errors {
                assert!(*error <= TOLERANCE, "{name} on mesh {mesh:?}, rank {rank}: error {error:e} in {what}");
                worst = if *error > worst.1 { (what, *error) } else { worst };
            }
        }
        println!("{name} on mesh {mesh:?}: largest error {:.1e}, in {}", worst.1, worst.0);
    }
}

#[test]
fn on_one_rank() {
    check((1, 1, 1, 1));
}

#[test]
fn over_replicas() {
    check((2, 1, 1, 1));
}

#[test]
fn split_over_the_tensor_axis() {
    check((1, 2, 1, 1));
}

#[test]
fn over_stages() {
    check((1, 1, 2, 1));
    check((1, 1, 4, 1));
}

#[test]
fn experts_over_ranks() {
    check((2, 1, 1, 2));
}

#[test]
fn over_all_of_them() {
    check((2, 2, 2, 1));
    check((2, 2, 2, 2));
}

#[test]
fn the_shape_is_that_of_the_folder() {
    let shape = |name: &str| decoder::open(folder(name)).expect("the fixture is there").1;
    let gpt2 = DecoderConfig::new(96).with_d_model(32).with_d_ff(128).with_heads(4).with_layers(2).with_positions(40);
    let gpt2 = gpt2.with_embedding_dropout(0.0).with_dropout(0.0).with_attention_dropout(0.0);
    assert_eq!(shape("gpt2"), gpt2.with_ends(vec![50256]));
    let llama = DecoderConfig::llama_like(96).with_d_model(32).with_d_ff(64).with_heads(4).with_kv_heads(Some(2));
    let llama = llama.with_head_dim(Some(8)).with_layers(2).with_positions(64).with_epsilon(1e-6);
    assert_eq!(shape("llama"), llama.clone().with_ends(vec![2]));
    assert_eq!(shape("qwen3"), llama.clone().with_qk_norm(true).with_tied_head(true));
    let experts = DecoderExpertsConfig::new(4).with_balance(Balance::Batch).with_auxiliary(0.04);
    let mixtral = llama.clone().with_head_dim(None).with_epsilon(1e-5).with_experts(Some(experts.clone()));
    let mixtral = mixtral.with_rotary(Some(RotaryConfig::new().with_theta(1e6)));
    assert_eq!(shape("mixtral"), mixtral.with_ends(vec![2]));
    let gate = Gate::TopK { experts: 3, renormalise: true };
    let experts = experts.with_gate(gate).with_d_ff(Some(32)).with_auxiliary(0.02 * 3.0);
    let experts = DecoderExpertsConfig { experts: 8, ..experts };
    assert_eq!(shape("qwen3-moe"), llama.clone().with_qk_norm(true).with_experts(Some(experts)));
    let gemma2 = llama.with_head_dim(Some(12)).with_activation(Activation::GeluNew).with_tied_head(true);
    let gemma2 = gemma2.with_scaled_embeddings(true).with_zero_centered_gamma(true).with_sandwich_norm(true);
    let gemma2 = gemma2.with_windows(vec![Some(5), None]).with_query_pre_attn_scalar(Some(6)).with_pad(Some(0));
    let gemma2 = gemma2.with_attention_softcap(Some(3.0)).with_logit_softcap(Some(2.0)).with_deviation(0.3);
    assert_eq!(shape("gemma2"), gemma2.with_ends(vec![1]));
    let error = decoder::open(folder("t5")).expect_err("it is a T5").to_string();
    assert!(
        error.contains(
            "is a `t5`, which is not supported; supported are gpt2, llama, qwen3, mixtral, qwen3_moe and gemma2"
        ),
        "{error}"
    );
}

#[test]
fn segments_are_named_for_every_parameter() {
    let base = DecoderConfig::new(9).with_d_model(8).with_d_ff(8).with_heads(2).with_layers(3);
    for (config, tokens) in [(base.clone(), vec![0, 4]), (base.with_tied_head(false).with_rotary(None), vec![0])] {
        run((1, 1, 1), |epl| {
            let built = epl.build(|at| config.init(at))?;
            assert_eq!(built.model().segments(), 5);
            let segments = |name: &str| built.plan().record(name).map(|record| record.segments.clone());
            assert_eq!(segments("embeddings.tokens.weight"), Some(tokens.clone()));
            assert_eq!(segments("embeddings.positions"), Some(vec![0]));
            assert_eq!(segments("layers.2.feed_forward.norm.beta"), Some(vec![3]));
            assert_eq!(segments("final_norm.gamma"), Some(vec![4]));
            assert_eq!(segments("head.weight"), (!config.tied_head).then(|| vec![4]));
            Ok(())
        });
    }
}

/// Two ranks cannot share one head of keys.
#[test]
fn heads_of_keys_that_do_not_divide_are_refused() {
    let config = DecoderConfig::llama_like(9).with_d_model(8).with_d_ff(8).with_heads(2).with_kv_heads(Some(1));
    let config = config.with_layers(1).with_rotary(Some(RotaryConfig::new()));
    let error = launch(&epl_core::testing::config(1, 2, 1), |epl| epl.build(|at| config.init(at)).map(|_| ()));
    let error = error.expect_err("one head, two ranks").to_string();
    let expected =
        "layers.0.self_attention.heads: 1 heads of keys and values do not divide over 2 ranks of the tensor axis";
    assert!(error.contains(expected), "{error}");
}
