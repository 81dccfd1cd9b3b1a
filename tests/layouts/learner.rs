//! Burn's supervised learner over ranks: metrics and parameters of one rank, by a line of strategy.

// Their own `main` is not called here.
#[path = "../../examples/learner/digits.rs"]
mod digits;
#[path = "../../examples/learner/words.rs"]
mod words;
#[path = "learner/small.rs"]
mod small;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdafactorConfig, AdamConfig, AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_train::{Learner, SupervisedTraining, TrainingError, TrainingStrategy};
use epl::Config;
use epl::optim::ParamGroups;
use epl::train::DataParallel;
use small::parameters;

/// Ranks, and what is another than on one.
const LAYOUTS: [&[(&str, &str)]; 4] = [
    &[("cluster.ranks", "1")],
    &[("cluster.ranks", "2"), ("pipeline.num_micro_batch", "2")],
    &[("cluster.ranks", "2"), ("zero.level", "v2"), ("pipeline.num_micro_batch", "2")],
    &[("cluster.ranks", "3"), ("zero.level", "v2"), ("offload.level", "v0"), ("offload.parameters", "device")],
];

fn config(options: &[(&str, &str)]) -> Config {
    Config::load(None, options.iter().map(|(key, value)| format!("{key}={value}"))).expect("valid options")
}

/// All numbers in a run's files of metrics, by the path of the file.
fn metrics(folder: &Path) -> BTreeMap<String, Vec<f64>> {
    fn read(folder: &Path, path: &str, found: &mut BTreeMap<String, Vec<f64>>) {
        for entry in fs::read_dir(folder).expect("a folder of metrics") {
            let entry = entry.expect("a file of metrics");
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                read(&entry.path(), &path, found);
            } else if path.ends_with(".log") {
                let text = fs::read_to_string(entry.path()).expect("text");
                let numbers = text.split(|c: char| c == ',' || c.is_whitespace()).filter_map(|word| word.parse().ok());
                found.insert(path, numbers.collect());
            }
        }
    }
    let mut found = BTreeMap::new();
    read(folder, "", &mut found);
    found
}

fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{what} {at}: {found} is not {expected}"
        );
    }
}

/// Whether a run left what another did: the same files of metrics with the same numbers, and the same parameters.
fn assert_same<M: Module>(what: &str, (folder, model): (&Path, &M), (other, expected): (&Path, &M), tolerance: f64) {
    let (found, known) = (metrics(folder), metrics(other));
    assert_eq!(found.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>(), "{what}");
    for (path, numbers) in &found {
        assert_close(&format!("{what}{path}"), numbers, &known[path], tolerance);
    }
    assert_close(&format!("{what}, parameters,"), &parameters(model), &parameters(expected), tolerance);
}

macro_rules! same_as_burns {
    ($test:ident, $program:ident, $epochs:literal, $files:literal) => {
        #[test]
        fn $test() {
            // The generator that it seeds is the whole process's.
            epl_testing::alone(|| {
                let device = Device::default().autodiff();
                device.seed(1);
                let (net, out) = ($program::Net::new(&device), tempfile::tempdir().expect("a folder"));
                let run = |name: &str, epochs, resume| {
                    let folder = out.path().join(name);
                    $program::Run { folder, net: net.clone(), epochs, resume }
                };
                let burn = $program::plain(run("burn", $epochs, None));
                assert!(burn.error.is_none());
                let alone = out.path().join("burn");
                assert_eq!(metrics(&alone).len(), $files);
                for (number, layout) in LAYOUTS.iter().enumerate() {
                    let name = format!("{number}");
                    let found = $program::parallel(run(&name, $epochs, None), &config(layout)).expect("valid options");
                    assert!(found.error.is_none(), "{layout:?}: {:?}", found.error);
                    // One rank does what Burn does, to the bit.
                    let tolerance = if number == 0 { 0.0 } else { 1e-6 };
                    let folder = out.path().join(&name);
                    assert_same(&format!("{layout:?}"), (&folder, &found.model), (&alone, &burn.model), tolerance);
                }
            });
        }
    };
}

same_as_burns!(digits_are_learned_as_on_one_rank, digits, 2, 10);
same_as_burns!(texts_are_learned_as_on_one_rank, words, 2, 10);

/// Options of a run of two ranks.
const TWO: &[(&str, &str)] = &[("cluster.ranks", "2"), ("zero.level", "v1")];

#[test]
fn either_goes_on_from_what_the_other_has_saved() {
    epl_testing::alone(|| {
        let device = Device::default().autodiff();
        device.seed(1);
        let (net, out) = (words::Net::new(&device), tempfile::tempdir().expect("a folder"));
        let run =
            |name: &str, epochs, resume| words::Run { folder: out.path().join(name), net: net.clone(), epochs, resume };
        let folder = |name: &str| out.path().join(name);
        let whole = words::plain(run("whole", 3, None));
        words::plain(run("burn", 2, None));
        words::parallel(run("ranks", 2, None), &config(TWO)).expect("valid options");
        for name in ["burn", "ranks"] {
            let copy = format!("{name}-copy");
            let copied = std::process::Command::new("cp").arg("-r").args([folder(name), folder(&copy)]).status();
            assert!(copied.expect("cp runs").success());
        }
        // The shuffling begins anew with each program, so that the third epoch is shuffled as the first is.
        let again = words::plain(run("burn-copy", 3, Some(2)));
        assert_ne!(parameters(&again.model), parameters(&whole.model));
        for name in ["burn", "ranks", "ranks-copy"] {
            let found = match name {
                "ranks-copy" => words::plain(run(name, 3, Some(2))),
                _ => words::parallel(run(name, 3, Some(2)), &config(LAYOUTS[3])).expect("valid options"),
            };
            assert!(found.error.is_none(), "{name}: {:?}", found.error);
            let pair = ((&*folder(name), &found.model), (&*folder("burn-copy"), &again.model));
            assert_same(name, pair.0, pair.1, 2e-6);
        }
    });
}

#[test]
fn what_a_learner_cannot_do_is_refused_before_it_begins() {
    let refused = |options: &[(&str, &str)]| match DataParallel::<_, ()>::new(&config(options), AdamConfig::new()) {
        Ok(_) => panic!("{options:?} is refused"),
        Err(error) => error.to_string(),
    };
    for (option, value, said) in [
        ("dist.pipeline_parallel_size", "2", "divide a model into stages"),
        ("dist.tensor_parallel_size", "2", "dist.tensor_parallel_size = 2 splits layers"),
        ("gradient_checkpoint.type", "auto", "DataParallel::gradient_checkpointing"),
        ("amp.level", "O1", "amp.level scales the loss"),
        ("train.steps", "5", "how long a run lasts is said to the learner"),
        ("schedule.rate", "0.5", "the learning rate is said to the learner"),
        ("train.tensorboard", "true", "what is written and gone on from is said to the learner"),
        ("train.resume", "auto", "what is written and gone on from is said to the learner"),
        ("io.num_workers", "2", "how data is read is said to the learner"),
        ("profile.segments", "true", "one segment"),
    ] {
        let text = refused(&[("cluster.ranks", "2"), (option, value)]);
        assert!(text.contains(said), "{option}: {text}");
    }
    let both = refused(&[("cluster.ranks", "4"), ("dist.tensor_parallel_size", "2"), ("amp.level", "O1")]);
    assert!(both.contains("splits layers") && both.contains("scales the loss"), "all at once: {both}");
}

/// Makes the first element of each parameter no number, or an infinite one.
struct Diverged(f32);

impl ModuleMapper for Diverged {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|x| {
            let (shape, count) = (x.dims(), x.shape().num_elements());
            let x = x.inner().reshape([count]).slice_fill([0..1], self.0).reshape(shape);
            Tensor::from_inner(x).require_grad()
        })
    }
}

#[test]
fn another_optimizer_than_the_learners_is_refused() {
    let device = Device::default().autodiff();
    let said_of = |net: small::Net, learners: ModuleOptimizer, config: &Config| {
        let out = tempfile::tempdir().expect("a folder");
        let strategy = DataParallel::new(config, AdamConfig::new().with_beta_1(0.8)).expect("valid options");
        let training = small::training(out.path(), 1).with_training_strategy(strategy.into());
        training.launch(Learner::new(net, learners, 1e-2)).error.map(|error| error.to_string())
    };
    let said = |learners: ModuleOptimizer, config: &Config| said_of(small::Net::new(&device), learners, config);
    let two = config(&[("cluster.ranks", "2")]);
    assert_eq!(said(AdamConfig::new().with_beta_1(0.8).init(), &two), None);
    for (learners, what) in [
        (AdamConfig::new().init(), "another beta"),
        (SgdConfig::new().init(), "another optimizer"),
        (AdamConfig::new().with_beta_1(0.8).with_weight_decay(Some(WeightDecayConfig::new(0.1))).init(), "a decay"),
        (
            AdamConfig::new().with_beta_1(0.8).with_grad_clipping(Some(GradientClippingConfig::Norm(0.5))).init(),
            "clipping",
        ),
    ] {
        let text = said(learners, &two).unwrap_or_else(|| panic!("{what} is refused"));
        assert!(text.contains("steps of the learner's optimizer, and by"), "{what}: {text}");
    }
    // An element that is no number hides nothing of the others.
    for first in [f32::NAN, f32::INFINITY] {
        let diverged = small::Net::new(&device).map(&mut Diverged(first));
        let text = said_of(diverged, AdamConfig::new().init(), &two).expect("another beta is refused");
        assert!(text.contains("steps of the learner's optimizer, and by"), "{first}: {text}");
    }
}

#[test]
fn a_loader_and_a_rank_that_fail_end_the_run() {
    let device = Device::default().autodiff();
    for (fails, said) in [(small::Fails::Read, "no file 5"), (small::Fails::Step, "a row of 7")] {
        let out = tempfile::tempdir().expect("a folder");
        let strategy = DataParallel::new(&config(TWO), SgdConfig::new()).expect("valid options");
        let net = small::Net::new(&device);
        let learner = || Learner::new(net.clone(), SgdConfig::new().init(), 1e-2);
        let result = small::failing(out.path(), fails).with_training_strategy(strategy.into()).launch(learner());
        let error = result.error.expect("it failed");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(matches!(&*error, TrainingError::Dataset(_)), fails == small::Fails::Read, "{error:?}");
        // What was learned before is there.
        let (found, begun) = (parameters(&result.model), parameters(&net));
        assert_ne!(found, begun, "{fails:?}");
        if fails == small::Fails::Read {
            let alone = tempfile::tempdir().expect("a folder");
            let burn = small::failing(alone.path(), fails).launch(learner());
            let pair = ((out.path(), &result.model), (alone.path(), &burn.model));
            assert_same("up to what cannot be read", pair.0, pair.1, 1e-6);
        }
    }
}

#[test]
fn a_loader_that_shuffles_is_read_by_one_rank_for_all() {
    let (device, out) = (Device::default().autodiff(), tempfile::tempdir().expect("a folder"));
    let net = small::Net::new(&device);
    let run = |name: &str, strategy: Option<TrainingStrategy<small::Net>>| {
        let folder = out.path().join(name);
        let training = small::failing(&folder, small::Fails::Shuffle(3));
        let model = learned(training, (&net, SgdConfig::new().init(), 1e-1), strategy);
        (folder, model)
    };
    let alone = run("alone", None);
    let ranks = run("ranks", Some(DataParallel::new(&config(TWO), SgdConfig::new()).expect("valid options").into()));
    assert_same("shuffled", (&ranks.0, &ranks.1), (&alone.0, &alone.1), 1e-6);
}

#[test]
fn early_stopping_and_an_interruption_end_all_ranks_where_one_rank_would_end() {
    let device = Device::default().autodiff();
    let net = small::Net::new(&device);
    let epochs = |strategy: Option<TrainingStrategy<small::Net>>, interrupts: bool| {
        let out = tempfile::tempdir().expect("a folder");
        let mut training = small::training(out.path(), 6).early_stopping(small::After(3));
        if interrupts {
            let interrupter = training.interrupter();
            training = training.metric_valid(small::Interrupts(interrupter));
        }
        if let Some(strategy) = strategy {
            training = training.with_training_strategy(strategy);
        }
        let result = training.launch(Learner::new(net.clone(), SgdConfig::new().init(), 1e-2));
        assert!(result.error.is_none(), "{:?}", result.error);
        assert_eq!(result.interrupted.is_some(), interrupts);
        metrics(out.path()).keys().filter(|path| path.starts_with("/train") && path.ends_with("Loss.log")).count()
    };
    let two = || DataParallel::new(&config(TWO), SgdConfig::new()).expect("valid options").into();
    for interrupts in [false, true] {
        assert_eq!(epochs(Some(two()), interrupts), epochs(None, interrupts));
    }
    assert_eq!(epochs(Some(two()), false), 3);
}

#[test]
fn operations_are_run_again_where_that_is_asked_for() {
    let device = Device::default().autodiff();
    let net = small::Net::new(&device);
    let run = |net: small::Net, strategy: DataParallel<SgdConfig, small::Rows>| {
        let out = tempfile::tempdir().expect("a folder");
        let training = small::training(out.path(), 1).with_training_strategy(strategy.into());
        let result = training.launch(Learner::new(net, SgdConfig::new().init(), 1e-1));
        assert!(result.error.is_none(), "{:?}", result.error);
        parameters(&result.model)
    };
    let strategy = || DataParallel::new(&config(TWO), SgdConfig::new()).expect("valid options");
    let found = run(net.clone().run_again(), strategy().gradient_checkpointing());
    assert_eq!(found, run(net, strategy()));
}

/// A run of the small model, by Burn alone if there is no strategy.
fn learned(
    mut training: SupervisedTraining<small::Net>,
    (net, optimizer, rate): (&small::Net, ModuleOptimizer, f64),
    strategy: Option<TrainingStrategy<small::Net>>,
) -> small::Net {
    if let Some(strategy) = strategy {
        training = training.with_training_strategy(strategy);
    }
    let result = training.launch(Learner::new(net.clone(), optimizer, rate));
    assert!(result.error.is_none(), "{:?}", result.error);
    result.model
}

#[test]
fn a_loss_over_something_else_than_rows_is_weighed_by_it() {
    let (device, out) = (Device::default().autodiff(), tempfile::tempdir().expect("a folder"));
    let net = small::Net::new(&device).weighted();
    let run = |name: &str, strategy| {
        learned(small::training(&out.path().join(name), 2), (&net, SgdConfig::new().init(), 1e-1), strategy)
    };
    let alone = run("alone", None);
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let strategy = || DataParallel::new(&config(layout), SgdConfig::new()).expect("valid options");
        let weight = |rows: &small::Rows| rows.weights().sum().into_scalar::<f32>().into();
        let name = number.to_string();
        let weighed = run(&name, Some(strategy().weighted_by(weight).into()));
        let pair = ((&*out.path().join(&name), &weighed), (&*out.path().join("alone"), &alone));
        assert_same(&format!("{layout:?}"), pair.0, pair.1, 1e-6);
    }
    let two = || DataParallel::new(&config(TWO), SgdConfig::new()).expect("valid options");
    let by_rows = parameters(&run("by rows", Some(two().into())));
    let differs = |(found, expected): (&f64, f64)| (found - expected).abs() > 1e-4;
    assert!(by_rows.iter().zip(parameters(&alone)).any(differs), "it matters here");
    let refused = |strategy: DataParallel<SgdConfig, small::Rows>| {
        let training = small::training(&out.path().join("refused"), 1).with_training_strategy(strategy.into());
        let error = training.launch(Learner::new(net.clone(), SgdConfig::new().init(), 1e-1)).error;
        error.expect("it is refused").to_string()
    };
    let text = refused(two().weighted_by(|_| 1.0).valid_weighted_by(|_: &Tensor<1>| 1.0));
    assert!(text.contains("batches of another type than") && text.contains("valid_weighted_by"), "{text}");
    let text = refused(two().weighted_by(|_| 0.0));
    assert!(text.contains("a batch of 4 rows weighs 0"), "{text}");
}

#[test]
fn what_has_no_gradient_is_left_as_by_burn_and_goes_on_without_state() {
    let (device, out) = (Device::default().autodiff(), tempfile::tempdir().expect("a folder"));
    let net = small::Net::new(&device);
    let optimizer = || AdamWConfig::new().with_weight_decay(0.1);
    for layout in LAYOUTS {
        let run = |name: &str, resumes: bool, is_parallel: bool| {
            let strategy = DataParallel::new(&config(layout), optimizer()).expect("valid options").into();
            let training = small::training(&out.path().join(name), 2).with_default_checkpointers();
            let training = if resumes { training.num_epochs(3).checkpoint(2) } else { training };
            learned(training, (&net, optimizer().init(), 1e-1), is_parallel.then_some(strategy))
        };
        let name = format!("{layout:?}");
        for resumes in [false, true] {
            let (ranks, burn) = (name.clone(), format!("{name} burn"));
            let (found, expected) = (run(&ranks, resumes, true), run(&burn, resumes, false));
            let pair = ((&*out.path().join(ranks), &found), (&*out.path().join(burn), &expected));
            assert_same(&name, pair.0, pair.1, 1e-6);
        }
    }
}

#[test]
fn a_last_group_of_batches_that_is_not_full_is_a_step() {
    let (device, out) = (Device::default().autodiff(), tempfile::tempdir().expect("a folder"));
    let net = small::Net::new(&device);
    // Of three batches.
    for accumulated in [2, 3, 5] {
        let run = |name: &str, strategy| {
            let learner = (&net, SgdConfig::new().init(), 1e-1);
            let folder = out.path().join(format!("{accumulated} {name}"));
            let training = small::training(&folder, 2).grads_accumulation(accumulated);
            let model = learned(training, learner, strategy);
            (folder, model)
        };
        let alone = run("alone", None);
        for layout in LAYOUTS {
            let strategy = DataParallel::new(&config(layout), SgdConfig::new()).expect("valid options");
            let found = run(&format!("{layout:?}"), Some(strategy.into()));
            assert_same(&format!("{layout:?}"), (&found.0, &found.1), (&alone.0, &alone.1), 1e-6);
        }
    }
}

#[test]
fn clipping_groups_and_frozen_parameters_are_as_on_one_rank() {
    let (device, out) = (Device::default().autodiff(), tempfile::tempdir().expect("a folder"));
    let net = small::Net::new(&device);
    let begun = parameters(&net);
    let run = |options: &[(&str, &str)]| {
        let strategy = DataParallel::new(&config(options), SgdConfig::new()).expect("valid options");
        let training = small::training(&out.path().join(format!("{options:?}")), 2);
        parameters(&learned(training, (&net, SgdConfig::new().init(), 1e-1), Some(strategy.into())))
    };
    let plain = run(&[("cluster.ranks", "1")]);
    for option in [
        ("train.clip_norm", "0.1"),
        ("optimizer.rate_factor", r#"["line.bias=0.5"]"#),
        ("optimizer.frozen", "[line.bias]"),
    ] {
        let alone = run(&[("cluster.ranks", "1"), option]);
        assert_ne!(alone, plain, "{option:?}");
        for layout in LAYOUTS {
            assert_close(&format!("{option:?}"), &run(&[layout, &[option]].concat()), &alone, 1e-6);
        }
        // The weight, then the bias.
        assert_eq!(alone[1] == begun[1], option.0 == "optimizer.frozen", "{option:?}");
    }
    let groups = || ParamGroups::new(SgdConfig::new()).group(["line.bias"], |group| group.with_rate_factor(0.5));
    let strategy = DataParallel::new(&config(TWO), groups()).expect("valid options");
    let training = small::training(&out.path().join("groups"), 2);
    let found = learned(training, (&net, SgdConfig::new().init(), 1e-1), Some(strategy.into()));
    let by_option = run(&[TWO, &[("optimizer.rate_factor", r#"["line.bias=0.5"]"#)]].concat());
    assert_close("groups", &parameters(&found), &by_option, 0.0);
}

#[test]
fn state_that_cannot_be_saved_is_refused_before_the_run() {
    let (device, out) = (Device::default().autodiff(), tempfile::tempdir().expect("a folder"));
    let strategy = || DataParallel::new(&config(TWO), AdafactorConfig::new()).expect("valid options").into();
    let training = small::training(out.path(), 1).with_default_checkpointers().with_training_strategy(strategy());
    let net = small::Net::new(&device);
    let learner = || Learner::new(net.clone(), AdafactorConfig::new().init(), 1e-1);
    let text = training.launch(learner()).error.expect("it is refused").to_string();
    assert!(text.contains("Adafactor keeps") && text.contains("of a parameter of [256, 256]"), "{text}");
    assert!(metrics(out.path()).is_empty(), "no epoch was run");
    let result = small::training(out.path(), 1).with_training_strategy(strategy()).launch(learner());
    assert!(result.error.is_none(), "{:?}", result.error);
}

/// The lines of a function's body that say something: no brackets alone, no comments.
fn body<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let start = source.find(&format!("\npub fn {name}(")).expect("the function is there");
    let lines = source[start + 1..].lines().skip(1).take_while(|line| *line != "}").map(str::trim);
    lines.filter(|line| line.chars().any(char::is_alphanumeric) && !line.starts_with("//")).collect()
}

#[test]
fn two_lines_are_added_to_burns_program() {
    for source in [include_str!("../../examples/learner/digits.rs"), include_str!("../../examples/learner/words.rs")] {
        let mut plain: HashMap<String, usize> = HashMap::new();
        body(source, "plain").into_iter().for_each(|line| *plain.entry(line.to_string()).or_default() += 1);
        let mut added: Vec<&str> = Vec::new();
        for line in body(source, "parallel") {
            // The result is one that may be an error.
            let line_in_plain = line.strip_prefix("Ok(").and_then(|line| line.strip_suffix(')')).unwrap_or(line);
            match plain.get_mut(line_in_plain) {
                Some(count) if *count > 0 => *count -= 1,
                _ => added.push(line),
            }
        }
        added.extend(source.lines().filter(|line| line.starts_with("epl::") || line.starts_with("use epl")));
        assert_eq!(added.len(), 3, "strategy, batch, and what is imported: {added:#?}");
        assert!(plain.values().all(|count| *count == 0), "nothing is taken away: {plain:?}");
    }
}
