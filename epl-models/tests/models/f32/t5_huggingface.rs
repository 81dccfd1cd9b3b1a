//! T5, T5 1.1 and Switch equal what `transformers` computed: logits, loss and every gradient.

use std::path::PathBuf;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings, MicroBatch};
use epl_core::testing::{relative_error, run};
use epl_core::{Epl, Result};
use epl_models::huggingface::{Names, read_io};
use epl_models::t5::{self, T5Batcher, T5Names};

const TOLERANCE: f64 = 1e-4;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// The largest errors of one rank, by what they are errors of.
fn errors(epl: &Epl, name: &str) -> Result<Vec<(String, f64)>> {
    let (folder, config) = t5::open(folder(name))?;
    let reference = read_io(folder.path())?;
    let built = epl.build(|at| config.init(at))?;
    let built = built.try_map(|model, plan| Ok(t5::load(model, plan.records(), &folder)?))?;
    let engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;

    let pairs = t5::reference_pairs(&reference)?;
    let data = epl.context().data();
    let mine = shard_range(pairs.len(), data.size(), data.rank());
    let batch = T5Batcher::new(&config).batch(pairs[mine.clone()].to_vec(), engine.device());
    let samples: Vec<u64> = mine.clone().map(|sample| sample as u64).collect();
    let mut errors = Vec::new();

    let model = engine.inference()?;
    let logits = epl_comm::catch(|| model.forward(&batch))?.into_data();
    errors.push(("logits".to_string(), relative_error(&logits, &rows(reference.logits()?, mine))));

    let (report, gradients) = engine.gradients(vec![MicroBatch::new(batch, samples)])?;
    errors.push(("loss".to_string(), (report.loss / reference.loss()? - 1.0).abs()));
    let names = T5Names::new(&folder)?;
    for record in engine.plan().records() {
        let source = names.source(&record.name).expect("every parameter stands in the folder");
        let error = relative_error(&gradients[&record.name], &reference.gradient(&source)?);
        errors.push((record.name.clone(), error));
    }
    Ok(errors)
}

fn rows(data: TensorData, range: core::ops::Range<usize>) -> TensorData {
    Tensor::<3>::from_data(data, &Default::default()).slice([range]).into_data()
}

fn check(name: &str, mesh: (usize, usize, usize)) {
    for (rank, errors) in run(mesh, |epl| errors(&epl, name)).into_iter().enumerate() {
        assert!(errors.len() > 40, "{name}: only {} tensors were compared", errors.len());
        for (what, error) in errors {
            assert!(error <= TOLERANCE, "{name} on mesh {mesh:?}, rank {rank}: error {error:e} in {what}");
        }
    }
}

#[test]
fn t5_on_one_rank() {
    check("t5", (1, 1, 1));
}

#[test]
fn t5_version_1_1_on_one_rank() {
    check("t5-v1_1", (1, 1, 1));
}

#[test]
fn switch_on_one_rank() {
    check("switch", (1, 1, 1));
}

#[test]
fn split_over_the_tensor_axis() {
    check("t5", (1, 2, 1));
    check("t5-v1_1", (1, 2, 1));
    check("switch", (1, 2, 1));
}

#[test]
fn split_over_data_and_experts() {
    check("t5", (2, 1, 1));
    check("switch", (2, 1, 1));
    check("switch", (2, 1, 2));
}
