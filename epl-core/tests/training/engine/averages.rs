//! Parameters that are moving averages of others follow them alike wherever they lie.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::{AdafactorConfig, AdamWConfig};
use burn::tensor::{Tensor, TensorData, activation};
use epl_comm::{Partial, copied};
use epl_core::config::{AmpLevel, HalfDtype, StateTier, ZeroLevel};
use epl_core::memory::MemoryKind;
use epl_core::model::precision::cast;
use epl_core::optim::OptimizerConfig;
use epl_core::testing::{config, largest_error, run};
use epl_core::topology::cluster::Axis;
use epl_core::{
    AverageDecay, Config, Engine, EngineSettings, Epl, Loss, LossWeights, MicroBatch, Model, ParamRecord, Place,
    Result, launch, launch_dry,
};
use tempfile::TempDir;

use crate::engine::chain::{Rows, WIDTH, micro_batches};

const LAYERS: usize = 2;
const FAST: AverageDecay = AverageDecay::Cosine { first: 0.5, steps: 4 };
const SLOW: AverageDecay = AverageDecay::Constant(0.75);

#[derive(Module, Debug)]
struct Part {
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    /// Not learned.
    scale: Param<Tensor<1>>,
}

impl Part {
    fn new(at: &Place) -> Self {
        let normal = || Initializer::Normal { mean: 0.0, std: 0.5 };
        Self {
            up: at.split_param([WIDTH, 5], &[(Axis::Tensor, 1)], normal()),
            down: at.split_param([5, WIDTH], &[(Axis::Tensor, 0)], normal()),
            bias: at.param([WIDTH], normal()),
            scale: at.param([WIDTH], normal()).set_require_grad(false),
        }
    }

    fn forward(&self, x: Tensor<2>, at: &Place) -> Tensor<2> {
        let group = at.context().tensor();
        let x = cast(x, self.up.val().dtype());
        let hidden = activation::tanh(copied(x, group).local().matmul(self.up.val()));
        let sum = Partial::from_local(hidden.matmul(self.down.val()), group).all_reduce();
        (sum + self.bias.val().unsqueeze()) * self.scale.val().unsqueeze()
    }
}

/// A student, a teacher that it also learns from, and one that is only kept.
#[derive(Module, Debug)]
struct Net {
    layers: Vec<Part>,
    teacher: Vec<Part>,
    kept: Vec<Part>,
    head: Linear,
    #[module(skip)]
    place: Place,
}

impl Net {
    fn new(at: &Place) -> Self {
        let parts = || (0..LAYERS).map(|_| Part::new(at)).collect::<Vec<_>>();
        let layers = parts();
        Self {
            teacher: at.moving_average(parts(), &layers, FAST),
            kept: at.moving_average(parts(), &layers, SLOW),
            layers,
            head: at.full_precision(LinearConfig::new(WIDTH, 3).init(at)),
            place: at.clone(),
        }
    }
}

impl Model for Net {
    type Batch = Rows;
    type Carry = (Tensor<2>, Tensor<2>);

    fn segments(&self) -> usize {
        LAYERS + 1
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let index = path.split('.').nth(1).and_then(|index| index.parse().ok());
        vec![index.unwrap_or(LAYERS)]
    }

    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Rows) -> Self::Carry {
        let (student, teacher) = carry.unwrap_or_else(|| (batch.input.clone(), batch.input.clone()));
        let teacher = teacher.detach().set_require_grad(false);
        match self.layers.get(index) {
            Some(layer) => (layer.forward(student, &self.place), self.teacher[index].forward(teacher, &self.place)),
            None => (student, teacher),
        }
    }

    fn weights(&self, batch: &Rows) -> LossWeights {
        LossWeights::new().with("error", batch.valid.iter().filter(|valid| **valid).count() as f64)
    }

    fn loss(&self, (student, teacher): Self::Carry, batch: &Rows) -> Loss {
        let mask: Vec<f64> = batch.valid.iter().map(|valid| f64::from(u8::from(*valid))).collect();
        let rows = mask.len();
        let mask = Tensor::<2>::from_data(TensorData::new(mask, [rows, 1]), &student.device());
        let apart = (student.clone() - teacher).powi_scalar(2).sum_dim(1);
        let error = (self.head.forward(student) - batch.target.clone()).powi_scalar(2).sum_dim(1);
        Loss::new().with("error", ((error + apart) * mask).sum(), 1.0)
    }
}

type Parameters = BTreeMap<String, TensorData>;

fn values(parameters: &Parameters, name: &str) -> Vec<f64> {
    parameters[name].iter::<f64>().collect()
}

/// The names of a part's parameters, in the student, the teacher, and what is kept.
fn names() -> Vec<[String; 3]> {
    let of = |layer: usize, name: &str| ["layers", "teacher", "kept"].map(|part| format!("{part}.{layer}.{name}"));
    (0..LAYERS).flat_map(|layer| ["up", "down", "bias", "scale"].map(|name| of(layer, name))).collect()
}

#[test]
fn averages_begin_as_what_they_follow_and_move_by_the_decay_after_each_update() {
    epl_testing::in_f64(|| {
        run((1, 1, 1), |epl| {
            let mut engine = Engine::new(epl.build(Net::new)?, &AdamWConfig::new(), EngineSettings::default())?;
            let mut before = engine.parameters()?;
            for names in names() {
                let [own, teacher, kept] = names.map(|name| values(&before, &name));
                assert!(own == teacher && own == kept);
            }
            // The fourth has a decay of 1.
            for (step, fast) in
                [0.5 + 0.25 * (1.0 - 0.5_f64.sqrt()), 0.75, 0.5 + 0.25 * (1.0 + 0.5_f64.sqrt()), 1.0, 1.0]
                    .into_iter()
                    .enumerate()
            {
                engine.step(micro_batches(&epl, 2), 0.01)?;
                let after = engine.parameters()?;
                for [own, teacher, kept] in names() {
                    let now = values(&after, &own);
                    assert_eq!(now == values(&before, &own), own.ends_with("scale"), "{own} learns");
                    for (name, stays) in [(teacher, fast), (kept, 0.75)] {
                        let moved = values(&before, &name);
                        let moved = moved.iter().zip(&now).map(|(average, own)| stays * average + (1.0 - stays) * own);
                        let found = values(&after, &name);
                        let error = epl_testing::largest(moved.zip(&found).map(|(a, b)| (a - b).abs()));
                        assert!(error < 1e-14, "step {step}: {name} is off by {error:e}");
                    }
                }
                before = after;
            }
            let (_, gradients) = engine.gradients(micro_batches(&epl, 1))?;
            assert!(gradients.keys().all(|name| !name.starts_with("teacher") && !name.starts_with("kept")));
            Ok(())
        });
    });
}

fn layouts() -> Vec<(Config, usize)> {
    let with = |(data, tensor): (usize, usize), change: fn(&mut Config)| {
        let mut options = config(data, tensor, 1);
        change(&mut options);
        options
    };
    vec![
        (with((3, 1), |_| ()), 2),
        (with((2, 2), |_| ()), 1),
        (with((1, 1), |options| options.dist.pipeline_parallel_size = 2), 2),
        (with((2, 1), |options| options.zero.level = ZeroLevel::V1), 1),
        (with((3, 1), |options| options.zero.level = ZeroLevel::V3), 2),
        (with((2, 2), |options| options.zero.level = ZeroLevel::V3), 1),
        (with((1, 1), |options| options.offload.parameters = Some(StateTier::File)), 1),
        (
            with((2, 1), |options| {
                options.zero.level = ZeroLevel::V0;
                options.offload.parameters = Some(StateTier::Host);
            }),
            1,
        ),
        (
            with((2, 1), |options| {
                options.zero.level = ZeroLevel::V3;
                options.offload.parameters = Some(StateTier::Host);
                options.dist.pipeline_parallel_size = 3;
            }),
            3,
        ),
    ]
}

/// What three steps leave; or what those leave that follow a checkpoint.
fn outcome<O: OptimizerConfig + Sync>(
    (options, count): &(Config, usize),
    optimizer: &O,
    folder: Option<(&TempDir, bool)>,
) -> Parameters {
    let all = launch(options, |epl: Epl| -> Result<Parameters> {
        let mut engine = Engine::build(&epl, Net::new, optimizer)?;
        let steps = match folder {
            Some((folder, true)) => {
                engine.load(folder.path())?;
                2
            }
            _ => 0,
        };
        for step in steps..3 {
            if let (Some((folder, false)), 2) = (folder, step) {
                engine.save(folder.path())?;
            }
            engine.step(micro_batches(&epl, *count), 0.01)?;
        }
        engine.parameters()
    });
    all.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
}

#[track_caller]
fn assert_same(found: &Parameters, expected: &Parameters, what: &str) {
    let (name, error) = largest_error(found, expected);
    assert!(error <= 1e-10, "{what}: error {error:e} in {name}");
}

/// Also where a part of what is followed is frozen by an option, and each loads what another one saved.
#[test]
fn any_layout_equals_one_rank_and_goes_on_from_any_other() {
    epl_testing::in_f64(|| {
        for frozen in [vec![], vec!["layers.0.bias".to_string(), "layers.1.up".to_string()]] {
            let with = |(mut options, count): (Config, usize)| {
                options.optimizer.frozen.clone_from(&frozen);
                (options, count)
            };
            let adam = AdamWConfig::new().with_epsilon(1e-4);
            let one = outcome(&with((config(1, 1, 1), 1)), &adam, None);
            let layouts: Vec<_> = layouts().into_iter().map(with).collect();
            for (number, layout) in layouts.iter().enumerate() {
                let folder = TempDir::new().unwrap();
                let what = format!("{} micro-batches, {}", layout.1, layout.0.to_toml());
                assert_same(&outcome(layout, &adam, Some((&folder, false))), &one, &what);
                let other = &layouts[(number + 4) % layouts.len()];
                let what = format!("{what}\nresumed under {}", other.0.to_toml());
                assert_same(&outcome(other, &adam, Some((&folder, true))), &one, &what);
            }
        }
    });
}

/// Parameters are given to owners, whole.
#[test]
fn averages_lie_with_the_owners_of_what_they_follow() {
    epl_testing::in_f64(|| {
        let adafactor = AdafactorConfig::new();
        let one = outcome(&(config(1, 1, 1), 1), &adafactor, None);
        for (options, count) in layouts() {
            if options.dist.tensor_parallel_size == 1 {
                assert_same(&outcome(&(options.clone(), count), &adafactor, None), &one, &options.to_toml());
            }
        }
    });
}

/// Of an average each rank keeps what it keeps of what that follows; the estimate counts it.
#[test]
fn an_average_lies_as_what_it_follows() {
    for (options, _) in layouts() {
        let (data, tensor) = (options.dist.data_parallel_size.unwrap(), options.dist.tensor_parallel_size);
        for rank in [0, data * tensor * options.dist.pipeline_parallel_size - 1] {
            let (planned, _) = launch_dry(&options, rank, |epl| epl.plan(Net::new)).unwrap();
            let plan = planned.plan();
            for names in names() {
                let [own, teacher, kept] = names.map(|name| {
                    let record = plan.record(&name).unwrap();
                    (record.held, record.parked, record.shard.clone(), record.shape())
                });
                // What is trained is also divided where it stays whole, for its state.
                let without_shard =
                    |(held, parked, shard, shape)| (held, parked, if parked { shard } else { None }, shape);
                let own = without_shard(own);
                assert_eq!((without_shard(teacher), without_shard(kept)), (own.clone(), own));
            }
            let kept = |record: &ParamRecord| match (record.held, record.parked, &record.shard) {
                (false, ..) => 0,
                (true, true, Some(shard)) if options.zero.level == ZeroLevel::V3 => shard.range.len(),
                _ => record.numel(),
            };
            let expected = 4 * plan.records().iter().map(kept).sum::<usize>() as u64;
            let estimate = planned.memory(&AdamWConfig::new()).unwrap().estimate().unwrap();
            let lines = estimate.lines.iter().filter(|line| line.kind == MemoryKind::Parameters);
            assert_eq!(
                lines.filter_map(|line| line.bytes).sum::<u64>(),
                expected,
                "rank {rank}, {}",
                options.to_toml()
            );
        }
    }
}

#[test]
fn a_step_that_is_skipped_or_fails_moves_no_average() {
    for half in [true, false] {
        for level in [ZeroLevel::Off, ZeroLevel::V3] {
            let mut options = config(2, 1, 1);
            options.zero.level = level;
            if half {
                (options.amp.level, options.amp.dtype) = (AmpLevel::O1, HalfDtype::F16);
            }
            let ranks = launch(&options, |epl| {
                let mut engine = Engine::build(&epl, Net::new, &AdamWConfig::new())?;
                let mut made = 0;
                while made < 2 {
                    made += u64::from(!engine.step(micro_batches(&epl, 1), 0.05)?.skipped);
                }
                let before = engine.parameters()?;
                assert_ne!(values(&before, "layers.0.up"), values(&before, "teacher.0.up"));
                let mut batches = micro_batches(&epl, 1);
                batches.iter_mut().for_each(|batch: &mut MicroBatch<Rows>| {
                    batch.batch.target = batch.batch.target.clone() * f32::INFINITY;
                });
                match engine.step(batches, 0.05) {
                    Ok(report) => assert!(half && report.skipped),
                    Err(error) => assert!(!half && error.to_string().contains("not finite"), "{error}"),
                }
                assert_eq!((engine.parameters()?, engine.steps()), (before, 2));
                Ok(())
            });
            ranks.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// A part, and another one that is to follow it.
#[derive(Module, Debug)]
struct Pair {
    part: Option<Part>,
    other: Part,
    third: Option<Part>,
    linear: Option<Linear>,
    #[module(skip)]
    stages: usize,
}

impl Model for Pair {
    type Batch = Rows;
    type Carry = ();

    fn segments(&self) -> usize {
        self.stages
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        vec![if path.starts_with("part") { self.stages - 1 } else { 0 }]
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Rows) {}

    fn weights(&self, _: &Rows) -> LossWeights {
        LossWeights::new()
    }

    fn loss(&self, (): (), _: &Rows) -> Loss {
        Loss::new()
    }
}

fn pair(at: &Place, decay: AverageDecay) -> Pair {
    let part = Part::new(at);
    Pair {
        other: at.moving_average(Part::new(at), &part, decay),
        part: Some(part),
        third: None,
        linear: None,
        stages: 1,
    }
}

#[test]
fn what_cannot_follow_is_refused() {
    let refused = |stages: usize, model: fn(&Place) -> Pair| {
        let mut options = config(1, 1, 1);
        options.dist.pipeline_parallel_size = stages;
        launch(&options, |epl| epl.build(|at| Pair { stages, ..model(at) }).map(drop)).unwrap_err().to_string()
    };
    let check = |found: String, expected: &str| assert!(found.contains(expected), "{found}");
    check(
        refused(1, |at| pair(at, AverageDecay::Constant(1.5))),
        "of which 1.5 stays in a step; give a share in [0, 1]",
    );
    check(refused(1, |at| pair(at, AverageDecay::Constant(f64::NAN))), "of which NaN stays");
    check(refused(1, |at| pair(at, AverageDecay::Cosine { first: 0.9, steps: 0 })), "after 0 steps; give at least 1");
    check(
        refused(2, |at| pair(at, SLOW)),
        "is on the stages [0] and is a moving average of `part.up`, which is on [1]",
    );
    check(
        refused(1, |at| Pair { part: None, ..pair(at, SLOW) }),
        "a moving average of a parameter that is not in the model",
    );
    let third = |at: &Place| {
        let pair = pair(at, SLOW);
        let linear = |width: usize, bias: bool| LinearConfig::new(width, WIDTH).with_bias(bias).init(at);
        let third = at.moving_average(linear(5, true), &linear(6, false), SLOW);
        Pair { linear: Some(third), ..pair }
    };
    check(refused(1, third), "a part of 2 parameters is to be a moving average of one of 1; make both alike");
    let twice = |at: &Place| {
        let pair = pair(at, SLOW);
        Pair { third: Some(at.moving_average(Part::new(at), &pair.other, SLOW)), ..pair }
    };
    check(refused(1, twice), "is a moving average of `other.up`, which is one, too");
    let another_shape = |at: &Place| {
        let pair = pair(at, SLOW);
        let mut part = Part::new(at);
        part.up = at.param([WIDTH, 7], Initializer::Zeros);
        Pair { other: at.moving_average(part, pair.part.as_ref().unwrap(), SLOW), ..pair }
    };
    check(refused(1, another_shape), "has [6, 7] of f32 and is a moving average of `part.up`, which has [6, 5] of f32");
    let thawed = launch(&config(1, 1, 1), |epl| {
        let built = epl.build(|at| pair(at, SLOW))?;
        built.try_map(|pair, _| Ok(Pair { other: pair.other.set_require_grad(true), ..pair })).map(drop)
    });
    check(thawed.unwrap_err().to_string(), "`part.up` and asks for a gradient; leave it without");
}
