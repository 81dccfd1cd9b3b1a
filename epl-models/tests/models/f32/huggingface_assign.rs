//! Folders of Hugging Face that are not the same model: by assignment maps, in our names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::optim::SgdConfig;
use burn::tensor::TensorData;
use epl_core::engine::{Engine, EngineSettings};
use epl_core::tensors::{AssignMap, Assignment, WholeTensors};
use epl_core::testing::run;
use epl_core::{Config, LaidOutModel, Model, Result, launch};
use epl_models::bert::{self, BertConfig, BertNames, MaskedLanguage};
use epl_models::huggingface::{Folder, Imported};
use epl_models::resnet::{self, ResNetNames};
use epl_models::t5::{self, T5Config, T5MoeConfig, T5Names};

type Tensors = BTreeMap<String, TensorData>;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

fn whole<M: Model>(built: LaidOutModel<M>) -> Result<Tensors> {
    Engine::new(built, &SgdConfig::new(), EngineSettings::default())?.parameters()
}

fn t5_folder() -> (Folder, T5Config, T5Names) {
    let (folder, config) = t5::open(fixture("t5")).expect("the fixture is there");
    let names = T5Names::new(&folder).expect("it is a T5");
    (folder, config, names)
}

/// What the whole folder gives, by `load`.
fn loaded(folder: &Folder, config: &T5Config) -> Tensors {
    run((1, 1, 1), |epl| {
        whole(epl.build(|at| config.init(at))?.try_map(|model, plan| Ok(t5::load(model, plan.records(), folder)?))?)
    })
    .remove(0)
}

#[test]
fn every_folder_has_our_names() {
    let (folder, config, names) = t5_folder();
    let imported = Imported::new(&folder, &names);
    let loaded = loaded(&folder, &config);
    assert_eq!(imported.names(), loaded.keys().cloned().collect::<Vec<_>>());
    for (name, values) in &loaded {
        assert_eq!(imported.read_whole(name).unwrap(), *values, "{name}");
    }
    // Experts are one tensor here, read expert by expert.
    let (folder, config) = t5::open(fixture("switch")).unwrap();
    let names = T5Names::new(&folder).unwrap();
    let imported = Imported::new(&folder, &names);
    let input = "encoder.blocks.1.feed_forward.moe.experts.input";
    assert_eq!(imported.info(input).unwrap().shape, [4, config.d_model, config.d_ff]);
    assert_eq!(imported.read(input, &[2..3, 0..5, 1..3]).unwrap().shape().to_vec(), [1, 5, 2]);
    // What a model has no parameter for is under its own name; counts of batches are not there.
    let (folder, _) = resnet::open(fixture("resnet")).unwrap();
    assert!(Imported::new(&folder, &ResNetNames).names().iter().all(|name| !name.contains("num_batches_tracked")));
    let error = imported.read("encoder.blocks.9.x", &[]).unwrap_err().to_string();
    assert!(error.contains("`encoder.blocks.9.x`: is not in"), "{error}");
}

#[test]
fn one_block_into_a_deeper_model_and_fewer_rows_of_the_vocabulary() {
    let (folder, stored, names) = t5_folder();
    let config = stored.clone().with_vocab(50).with_encoder_layers(5);
    let map = AssignMap::identity()
        .with("encoder.blocks.1", "encoder.blocks.*")
        .with_assignment(Assignment::new("embedding.weight", "embedding.weight").taking(0, 0..50))
        .allow_unused("encoder.blocks.0");
    let loaded = loaded(&folder, &stored);
    for mesh in [(1, 1, 1), (1, 2, 1), (2, 1, 1)] {
        let parameters =
            run(mesh, |epl| whole(epl.build(|at| config.init(at))?.assign(&Imported::new(&folder, &names), &map)?))
                .remove(0);
        for block in 0..5 {
            let of = |block: usize| format!("encoder.blocks.{block}.self_attention.heads.query.weight");
            assert_eq!(parameters[&of(block)], loaded[&of(1)], "{mesh:?}");
        }
        let rows = 50 * config.d_model * size_of::<f32>();
        assert_eq!(parameters["embedding.weight"].as_bytes(), &loaded["embedding.weight"].as_bytes()[..rows]);
    }
}

/// *Sparse Upcycling*, Komatsuzaki et al., 2022: each expert starts as the dense network, the router anew.
#[test]
fn a_dense_network_becomes_experts() {
    let (folder, stored, names) = t5_folder();
    let moe = T5MoeConfig::new(4).with_encoder_sparse_step(2).with_decoder_sparse_step(0);
    let config = stored.clone().with_moe(Some(moe));
    let dense = |part: &str| format!("encoder.blocks.*.feed_forward.dense.{part}.weight");
    let experts = |part: &str| format!("encoder.blocks.*.feed_forward.moe.experts.{part}");
    let map = ["input", "output"].into_iter().fold(AssignMap::identity(), |map, part| {
        map.with_assignment(Assignment::new(&dense(part), &experts(part)).repeated())
    });
    let map = map.allow_missing("encoder.blocks.*.feed_forward.moe.router");
    let loaded = loaded(&folder, &stored);
    for mesh in [(1, 1, 1), (2, 1, 2), (1, 2, 1)] {
        let parameters =
            run(mesh, |epl| whole(epl.build(|at| config.init(at))?.assign(&Imported::new(&folder, &names), &map)?))
                .remove(0);
        for part in ["input", "output"] {
            let one = loaded[&format!("encoder.blocks.1.feed_forward.dense.{part}.weight")].as_bytes();
            let found = parameters[&format!("encoder.blocks.1.feed_forward.moe.experts.{part}")].as_bytes();
            assert_eq!(found, one.repeat(4), "{mesh:?}: {part}");
        }
    }
}

#[test]
fn a_head_is_left_out_by_name() {
    let (folder, config) = bert::open(fixture("bert-mlm")).unwrap();
    let names = BertNames::new::<MaskedLanguage>(&folder).unwrap();
    let assign = |map: AssignMap| {
        let config: &BertConfig = &config;
        run((1, 1, 1), |epl| {
            let built = epl.build(|at| config.init_question_answering(at))?;
            Ok(built.assign(&Imported::new(&folder, &names), &map).and_then(whole).map_err(|error| error.to_string()))
        })
        .remove(0)
    };
    let error = assign(AssignMap::identity()).unwrap_err();
    assert!(error.contains("2 of the model not stored (see `allow_missing`): head.answers.weight"), "{error}");
    assert!(error.contains("5 stored and not used (see `allow_unused`): head.bias, head.norm.beta"), "{error}");
    let parameters = assign(AssignMap::identity().allow_missing("head").allow_unused("head")).unwrap();
    let expected = Imported::new(&folder, &names).read_whole("layers.1.feed_forward.dense.input.weight").unwrap();
    assert_eq!(parameters["layers.1.feed_forward.dense.input.weight"], expected);
}

#[test]
fn parameters_that_lie_in_shards_are_filled_too() {
    let (folder, shape, names) = t5_folder();
    let config = Config::new().with("dist.data_parallel_size", 2).and_then(|config| config.with("zero.level", "v3"));
    let assigned = launch(&config.unwrap(), |epl| {
        whole(epl.build(|at| shape.init(at))?.assign(&Imported::new(&folder, &names), &AssignMap::identity())?)
    });
    let loaded = loaded(&folder, &shape);
    assert_eq!(assigned.unwrap(), [loaded.clone(), loaded]);
}
