//! Configurations, right and wrong.

#![allow(clippy::unwrap_used)]

use epl_core::config::{
    Config, ConfigError, Layers, LossScale, OPTIONS, Origin, PipelineStrategy, RankOrder, ReduceMethod, ScheduleKind,
    Status, ValueKind, variable,
};
use toml::Value;

const NO_VARIABLES: [(&str, &str); 0] = [];

fn from_toml(text: &str) -> Result<Config, ConfigError> {
    Layers::new().toml(text, "run.toml")?.resolve()
}

fn from_set(setting: &str) -> Result<Config, ConfigError> {
    Layers::new().command_line([setting])?.resolve()
}

fn from_variable(name: &str, value: &str) -> Result<Config, ConfigError> {
    Layers::new().environment([(name, value)])?.resolve()
}

#[track_caller]
fn refused(result: Result<Config, ConfigError>, message: &str) {
    assert_eq!(result.expect_err("the configuration is wrong").to_string(), message);
}

#[test]
fn the_defaults() {
    // The keys and defaults that EPL's and LiBai's users know.
    let expected = [
        ("pipeline.num_micro_batch", "1"),
        ("pipeline.num_stages", "\"none\""),
        ("pipeline.strategy", "\"PreferBackward\""),
        ("gradient_checkpoint.type", "\"\""),
        ("gradient_checkpoint.end_taskgraph", "-1"),
        ("gradient_checkpoint.check_gradients", "false"),
        ("zero.level", "\"\""),
        ("offload.level", "\"\""),
        ("amp.level", "\"\""),
        ("amp.dtype", "\"f16\""),
        ("amp.debug_log", "false"),
        ("amp.loss_scale", "\"dynamic\""),
        ("optimizer.num_apply_group", "1"),
        ("optimizer.frozen", "[]"),
        ("optimizer.rate_factor", "[]"),
        ("optimizer.weight_decay", "[]"),
        ("cluster.device_place_prefer_intra_node", "true"),
        ("cluster.run_visible_devices", "\"\""),
        ("cluster.colocate_split_and_replicate", "false"),
        ("communication.num_communicators", "2"),
        ("communication.sparse_as_dense", "false"),
        ("communication.max_splits", "5"),
        ("communication.fp16", "false"),
        ("communication.fp16_scale", "128.0"),
        ("communication.clip_after_allreduce", "true"),
        ("communication.gradients_reduce_method", "\"mean\""),
        ("io.slicing", "false"),
        ("io.unbalanced_io_slicing", "false"),
        ("io.drop_last_files", "false"),
        ("auto.auto_parallel", "false"),
        ("dist.data_parallel_size", "\"none\""),
        ("dist.tensor_parallel_size", "1"),
        ("dist.pipeline_parallel_size", "1"),
        ("dist.expert_parallel_size", "1"),
        ("dist.pipeline_num_layers", "\"none\""),
        ("dist.custom_pipeline_stage_id", "\"none\""),
        ("dist.order", "\"data,pipeline,tensor\""),
        ("train.micro_batch_size", "\"none\""),
        ("train.global_batch_size", "\"none\""),
    ];
    let config = Config::new();
    for (key, value) in expected {
        assert_eq!(config.get(key).map(|value| value.to_string()).as_deref(), Some(value), "{key}");
        assert_eq!(config.origin(key), Origin::Default);
    }
    config.validate().expect("the defaults are valid");
}

#[test]
fn later_layers_override_earlier_ones() {
    let layers = Layers::new().toml("[train]\nseed = 1\nsteps = 5\nclip_norm = 1\n", "run.toml").unwrap();
    let layers = layers.environment([("EPL_TRAIN_SEED", "2"), ("EPL_TRAIN_STEPS", "6"), ("HOME", "x")]).unwrap();
    let mut config = layers.command_line(["train.seed=3", "train.eval_every = 10"]).unwrap().resolve().unwrap();
    assert_eq!((config.train.seed, config.train.steps, config.train.clip_norm), (3, Some(6), Some(1.0)));
    assert_eq!(config.train.eval_every, Some(10));
    assert_eq!(config.origin("train.clip_norm"), Origin::File { path: "run.toml".into(), line: 4 });
    assert_eq!(config.origin("train.steps"), Origin::Environment { variable: "EPL_TRAIN_STEPS".into() });
    assert_eq!(config.origin("train.seed"), Origin::CommandLine);
    config.set("train.seed", 4).unwrap();
    config.train.steps = None;
    assert_eq!((config.train.seed, config.origin("train.seed")), (4, Origin::Code));
    assert!(!config.is_given("train.steps"), "a field set back to its default is as if nobody gave it");
}

#[test]
fn a_later_layer_may_take_back_what_is_not_yet_there() {
    let layers = Layers::new().toml("[zero]\nlevel = \"v1\"", "run.toml").unwrap();
    layers.command_line(["zero.level="]).unwrap().resolve().unwrap();
}

#[test]
fn values_of_every_type_are_read_from_everywhere() {
    let config = from_toml(
        "dist.order = \"pipeline,data,tensor\"\n[schedule]\nkind = \"cosine\"\nsteps = 10\nrate = 1\n\
         [communication]\ngradients_reduce_method = \"sum\"\n[train]\nclip_norm = \"none\"",
    )
    .unwrap();
    assert_eq!(config.dist.order, RankOrder::PipelineDataTensor);
    assert_eq!((config.schedule.kind, config.schedule.rate), (ScheduleKind::Cosine, 1.0));
    assert_eq!(config.communication.gradients_reduce_method, ReduceMethod::Sum);
    assert_eq!(config.train.clip_norm, None);
    let config = from_variable("EPL_CLUSTER_DEVICE_PLACE_PREFER_INTRA_NODE", "False").unwrap();
    assert!(!config.cluster.device_place_prefer_intra_node);
    let config = from_set("dist.data_parallel_size=4").unwrap();
    assert_eq!(config.dist.data_parallel_size, Some(4));
    let mut config = Config::new().with("train.clip_norm", Some(0.5)).unwrap();
    config.set("train.clip_norm", None::<f64>).unwrap();
    config.set("amp.loss_scale", LossScale::Dynamic).unwrap();
    config.set("pipeline.strategy", PipelineStrategy::PreferBackward).unwrap();
    assert_eq!(config, Config::new());
}

#[test]
fn the_resolved_configuration_comes_back_from_toml() {
    assert_eq!(from_toml(&Config::new().to_toml()).unwrap(), Config::new());
    let config = Config::new()
        .with("train.seed", i64::MAX)
        .and_then(|config| config.with("train.clip_norm", 0.25))
        .and_then(|config| config.with("schedule.rate", 3e-5))
        .and_then(|config| config.with("pipeline.num_micro_batch", 4))
        .unwrap();
    let text = config.to_toml();
    assert!(text.contains("\nnum_micro_batch = 4\n"), "{text}");
    assert_eq!(from_toml(&text).unwrap(), config);
    // The same by serde, in another format.
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
}

#[test]
fn a_saved_configuration_fits_another_number_of_replicas() {
    let config = from_toml("[train]\nmicro_batch_size = 4\nglobal_batch_size = 32").unwrap();
    assert_eq!(config.batch(2).unwrap().num_micro_batch, 4);
    let again = from_toml(&config.to_toml()).unwrap();
    assert_eq!(again.batch(1).unwrap().num_micro_batch, 8);
}

#[test]
fn how_long_to_train() {
    let config = from_toml("[schedule]\nsteps = 100").unwrap();
    assert_eq!(config.steps().unwrap(), 100);
    assert_eq!(config.with("train.steps", 7).unwrap().steps().unwrap(), 7);
    let message = "how long to train is not said: set train.steps, or schedule.steps";
    assert_eq!(Config::new().steps().unwrap_err().to_string(), message);
}

#[test]
fn unknown_keys() {
    refused(
        from_toml("[pipeline]\nnum_microbatch = 4"),
        "unknown option pipeline.num_microbatch (file run.toml, line 2); the nearest is pipeline.num_micro_batch",
    );
    refused(
        from_toml("\n[pipelin]\nnum_micro_batch = 4"),
        "unknown option pipelin.num_micro_batch (file run.toml, line 3); the nearest is pipeline.num_micro_batch",
    );
    refused(from_toml("seed = 4"), "unknown option seed (file run.toml, line 1); the nearest is train.seed");
    refused(from_toml("[zeros]"), "unknown option zeros (file run.toml, line 1); the nearest is zero.level");
    refused(from_set("train.sede=4"), "unknown option train.sede (command line); the nearest is train.seed");
    refused(
        from_variable("EPL_PIPELINE_NUM_MICROBATCH", "4"),
        "unknown option EPL_PIPELINE_NUM_MICROBATCH (environment variable EPL_PIPELINE_NUM_MICROBATCH); \
         the nearest is EPL_PIPELINE_NUM_MICRO_BATCH",
    );
    refused(
        Config::new().with("dist.tensor_parallel", 2),
        "unknown option dist.tensor_parallel (code); the nearest is dist.tensor_parallel_size",
    );
}

#[test]
fn wrong_types_and_ranges() {
    refused(
        from_toml("[train]\nseed = \"one\""),
        "train.seed = \"one\" (file run.toml, line 2) is not allowed; allowed: an integer ≥ 0",
    );
    refused(
        from_toml("[train]\nseed = 1.5"),
        "train.seed = 1.5 (file run.toml, line 2) is not allowed; allowed: an integer ≥ 0",
    );
    refused(
        from_toml("[train.seed]\nvalue = 1"),
        "train.seed = { value = 1 } (file run.toml, line 1) is not allowed; allowed: an integer ≥ 0",
    );
    refused(
        from_set("train.clip_norm=0"),
        "train.clip_norm = \"0\" (command line) is not allowed; allowed: \"none\" or a number > 0",
    );
    refused(
        from_set("dist.order=tensor,data,pipeline"),
        "dist.order = \"tensor,data,pipeline\" (command line) is not allowed; \
         allowed: \"data,pipeline,tensor\" or \"pipeline,data,tensor\"",
    );
    refused(
        from_variable("EPL_COMMUNICATION_MAX_SPLITS", "0"),
        "communication.max_splits = \"0\" (environment variable EPL_COMMUNICATION_MAX_SPLITS) is not allowed; \
         allowed: an integer ≥ 1",
    );
    refused(
        from_set("dist.tensor_parallel_size=2000000"),
        "dist.tensor_parallel_size = \"2000000\" (command line) is not allowed; allowed: an integer from 1 to 1048576",
    );
    refused(
        Config::new().with("cluster.device_place_prefer_intra_node", "yes"),
        "cluster.device_place_prefer_intra_node = \"yes\" (code) is not allowed; allowed: true or false",
    );
    refused(
        from_set("schedule.rate=nan"),
        "schedule.rate = \"nan\" (command line) is not allowed; allowed: a number ≥ 0",
    );
    refused(
        Config::new().with("train.seed", u64::MAX),
        "train.seed = \"18446744073709551615\" (code) is not allowed; allowed: an integer ≥ 0",
    );
}

#[test]
fn fields_written_directly_are_checked_too() {
    let mut config = Config::new();
    config.communication.max_splits = 0;
    refused(
        config.validate().map(|()| Config::new()),
        "communication.max_splits = 0 (code) is not allowed; allowed: an integer ≥ 1",
    );
}

#[test]
fn own_clipping_without_a_limit() {
    let said = |origin: &str| {
        format!(
            "communication.clip_after_allreduce = false ({origin}) has no effect without train.clip_norm; set that, or leave \
             communication.clip_after_allreduce out"
        )
    };
    refused(from_toml("[communication]\nclip_after_allreduce = false"), &said("file run.toml, line 2"));
    refused(from_set("communication.clip_after_allreduce=false"), &said("command line"));
    let variable = "EPL_COMMUNICATION_CLIP_AFTER_ALLREDUCE";
    refused(from_variable(variable, "false"), &said(&format!("environment variable {variable}")));
}

#[test]
fn a_value_that_does_not_exist() {
    refused(
        from_set("zero.level=v4"),
        "zero.level = \"v4\" (command line) is not allowed; \
         allowed: \"\" or \"v0\" or \"v1\" or \"v2\" or \"v3\"",
    );
}

#[test]
fn files_and_settings_that_cannot_be_read() {
    let error = Config::load(Some("no/such/file.toml".as_ref()), NO_VARIABLES.map(|(name, _)| name)).unwrap_err();
    assert!(error.to_string().starts_with("cannot read the configuration file no/such/file.toml: "), "{error}");
    let error = from_toml("[train]\nseed = = 1").unwrap_err();
    assert!(error.to_string().starts_with("file run.toml, line 2: not valid TOML: "), "{error}");
    let error = from_toml("[train]\nseed = 1\nseed = 2").unwrap_err();
    assert!(error.to_string().starts_with("file run.toml, line 3: not valid TOML: duplicate key"), "{error}");
    refused(
        from_toml("train = 3"),
        "train = 3 (file run.toml, line 1): train is a section; write [train] and its keys below it",
    );
    refused(from_set("train.seed"), "`train.seed` (command line) is no setting; write key=value, such as train.seed=7");
}

#[test]
fn values_that_disagree() {
    refused(
        from_toml("[schedule]\nkind = \"linear\""),
        "schedule.kind = \"linear\" needs the length of the schedule: set schedule.steps",
    );
    refused(
        from_toml("[schedule]\nsteps = 10\nwarmup_steps = 20"),
        "schedule.warmup_steps = 20 exceeds schedule.steps = 10; the warm-up is part of the schedule",
    );
    refused(
        from_toml("[schedule]\nkind = \"inverse_square_root\"\nrate = 1e-4\nmin_rate = 1e-3"),
        "schedule.min_rate = 0.001 exceeds schedule.rate = 0.0001",
    );
}

#[test]
fn details_of_what_is_off() {
    refused(
        from_set("io.drop_last_files=true"),
        "io.drop_last_files = true (command line) has no effect without io.slicing = true; set that, or leave \
         io.drop_last_files out",
    );
    refused(
        from_toml("[io]\nunbalanced_io_slicing = true"),
        "io.unbalanced_io_slicing = true (file run.toml, line 2) has no effect without io.slicing = true; set that, or \
         leave io.unbalanced_io_slicing out",
    );
    assert!(from_toml("[io]\nslicing = true\nunbalanced_io_slicing = true").is_ok());
    refused(
        from_set("amp.dtype=bf16"),
        "amp.dtype = \"bf16\" (command line) has no effect without amp.level = O1; set that, or leave amp.dtype out",
    );
    refused(
        from_toml("[offload]\nlevel = \"v0\"\nresident_bytes = 1000000"),
        "offload.resident_bytes = 1000000 (file run.toml, line 3) has no effect without state in files (offload.level = v1, \
         or a tier of file); set that, or leave offload.resident_bytes out",
    );
    for (set, needs) in [
        ("communication.fp16_dtype=bf16", "communication.fp16 = true"),
        ("communication.fp16_scale=64.0", "communication.fp16 = true"),
        ("profile.trace_skip=2", "profile.trace"),
        ("profile.trace_steps=2", "profile.trace"),
    ] {
        let error = from_set(set).unwrap_err().to_string();
        assert!(error.contains(&format!("has no effect without {needs}")), "{set}: {error}");
    }
    let traced = ["profile.trace=a file", "profile.trace_skip=2", "profile.trace_steps=2"];
    Layers::new().command_line(traced).unwrap().resolve().unwrap();
    let sent = ["communication.fp16=true", "communication.fp16_dtype=bf16", "communication.fp16_scale=64.0"];
    Layers::new().command_line(sent).unwrap().resolve().unwrap();
    // Buckets of gradients are what is gathered for a segment, one each.
    for whole in ["zero.level=v3", "offload.parameters=host", "offload.level=v0"] {
        let error = Layers::new().command_line([whole, "communication.max_splits=3"]).unwrap().resolve().unwrap_err();
        let expected = "communication.max_splits = 3 (command line) has no effect without parameters that stay whole on the \
                        device";
        assert!(error.to_string().starts_with(expected), "{whole}: {error}");
    }
    // One bucket travels at a time where they travel in every micro-batch; rows are not scattered.
    for each in ["zero.level=v2", "zero.level=v3", "offload.gradients=host", "offload.level=v1"] {
        let error = Layers::new().command_line([each, "communication.num_communicators=4"]).unwrap().resolve();
        assert!(
            error.unwrap_err().to_string().contains("num_communicators = 4 (command line) has no effect"),
            "{each}"
        );
    }
    for scattered in ["zero.level=v1", "zero.level=v2", "zero.level=v3", "offload.gradients=host"] {
        let error = Layers::new().command_line([scattered, "communication.sparse_as_dense=false"]).unwrap().resolve();
        assert!(error.unwrap_err().to_string().contains("sparse_as_dense = false (command line) has no effect"));
        // A file may be a configuration that was saved, which has every option.
        Layers::new().command_line([scattered]).unwrap().resolve().unwrap();
        let mut saved = from_toml("").unwrap();
        saved.zero.level = epl_core::config::ZeroLevel::V1;
        from_toml(&saved.to_toml()).unwrap();
    }
    for kept in ["zero.level=v1", "offload.optimizer_state=host"] {
        let settings = [kept, "communication.max_splits=3", "communication.num_communicators=4"];
        Layers::new().command_line(settings).unwrap().resolve().unwrap();
    }
    Layers::new().command_line(["zero.level=v0", "communication.sparse_as_dense=false"]).unwrap().resolve().unwrap();
    let on = ["amp.level=O1", "amp.dtype=bf16", "amp.debug_log=true"];
    Layers::new().command_line(on).unwrap().resolve().unwrap();
    for files in ["offload.level=v1", "offload.optimizer_state=file"] {
        let settings = [files, "offload.resident_bytes=1000000", "offload.folder=a folder"];
        Layers::new().command_line(settings).unwrap().resolve().unwrap();
    }
}

#[test]
fn batches_that_disagree() {
    let batch = |text: &str, replicas| from_toml(text).unwrap().batch(replicas).unwrap_err().to_string();
    assert_eq!(
        batch("pipeline.num_micro_batch = 2\n[train]\nmicro_batch_size = 4\nglobal_batch_size = 32", 2),
        "train.micro_batch_size 4 × pipeline.num_micro_batch 2 × 2 replicas = 16, but \
         train.global_batch_size = 32; leave one of the three out, or set train.global_batch_size = 16"
    );
    assert_eq!(
        batch("[train]\nmicro_batch_size = 4\nglobal_batch_size = 10", 2),
        "train.global_batch_size = 10 is not a multiple of train.micro_batch_size 4 × 2 replicas = 8; set it to 16, \
         or give pipeline.num_micro_batch instead of train.micro_batch_size to cut it unevenly"
    );
    assert_eq!(batch("", 2), "no batch size: set train.global_batch_size, or train.micro_batch_size");
    // An explicit 1 is a number that was given.
    assert_eq!(
        batch("pipeline.num_micro_batch = 1\n[train]\nmicro_batch_size = 4\nglobal_batch_size = 32", 2),
        "train.micro_batch_size 4 × pipeline.num_micro_batch 1 × 2 replicas = 8, but \
         train.global_batch_size = 32; leave one of the three out, or set train.global_batch_size = 8"
    );
}

/// A value other than the default, as text.
fn another(kind: ValueKind, default: &Value) -> String {
    let texts = match kind {
        ValueKind::Switch => vec!["true".into(), "false".into()],
        ValueKind::Integer { least, .. } => vec![(least + 2).to_string(), (least + 3).to_string()],
        ValueKind::NumberAtLeast(least) => vec![(least + 2.0).to_string()],
        ValueKind::NumberAbove(bound) => vec![(bound + 2.0).to_string()],
        ValueKind::Choice(words) => words.iter().map(|word| word.to_string()).collect(),
        ValueKind::Integers => vec!["[0, 1]".into()],
        ValueKind::Words => vec!["[head, 1]".into()],
        ValueKind::PathNumbers => vec!["[head=0.5, **.bias=0]".into()],
        ValueKind::Text => vec!["a file".into()],
        ValueKind::DeviceList => vec!["0,1".into()],
        ValueKind::Or(_, kind) => return another(*kind, default),
        _ => panic!("a kind that this test does not know"),
    };
    texts.into_iter().find(|text| kind.read(text).as_ref() != Some(default)).unwrap()
}

#[test]
fn every_option_can_be_set_everywhere_or_says_not_yet() {
    for option in OPTIONS {
        let (key, text) = (option.key(), another(option.kind, &option.default()));
        let value = option.kind.read(&text).unwrap();
        let file = Layers::new().toml(&format!("{key} = {value}"), "run.toml").unwrap();
        let variables = Layers::new().environment([(variable(option), &text)]).unwrap();
        let setting = Layers::new().command_line([format!("{key}={text}")]).unwrap();
        let code = Config::new().with(&key, value.clone());
        let mut results = vec![code];
        results.extend([file, variables, setting].map(Layers::resolve));
        for result in results {
            match (option.status, result) {
                (Status::NotYet, Err(ConfigError::NotYet { key: named, .. })) => assert_eq!(named, key),
                // What else it needs is tested above.
                (Status::Implemented, Err(ConfigError::ScheduleWithoutEnd { .. })) => assert_eq!(key, "schedule.kind"),
                (Status::Implemented, Err(ConfigError::StagesNotAuto { .. })) => assert_eq!(key, "pipeline.num_stages"),
                (Status::Implemented, Err(ConfigError::RateBelowMinimum { .. })) => {
                    assert_eq!(key, "schedule.min_rate");
                }
                (Status::Implemented, Err(ConfigError::NoEffect { key: named, .. })) => assert_eq!(named, key),
                (Status::Implemented, Ok(config)) => {
                    assert_eq!(config.get(&key), Some(value.clone()));
                    assert_ne!(config, Config::new());
                }
                (_, result) => panic!("{key} = {text}: {result:?}"),
            }
        }
        // The default is accepted.
        let default = option.default();
        assert_eq!(Config::new().with(&key, default).unwrap(), Config::new(), "{key}");
    }
}
