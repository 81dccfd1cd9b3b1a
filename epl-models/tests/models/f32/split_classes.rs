//! 100,000 classes split over four ranks that each hold the backbone: what each rank holds, and what it sends.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Int, Tensor};
use epl_core::{Config, Engine, Epl, MicroBatch, Place, Result, Strategy, WithLoss, launch, launch_dry};
use epl_modules::{SplitClassifier, SplitClassifierConfig};

const RANKS: usize = 4;
const CLASSES: usize = 100_000;
const INPUTS: usize = 3;
const FEATURES: usize = 8;
/// Of each rank.
const ROWS: usize = 5;

type Batch = (Tensor<2>, Tensor<1, Int>);

#[derive(Module, Debug)]
struct Net {
    backbone: Linear,
    classes: SplitClassifier,
}

impl Net {
    fn new(at: &Place) -> Self {
        let classes = SplitClassifierConfig::new(FEATURES, CLASSES).with_bias(false);
        Self {
            backbone: at.scope(Strategy::replicate(RANKS).named("backbone"), |at| {
                LinearConfig::new(INPUTS, FEATURES).with_bias(false).init(at)
            }),
            classes: at.scope(Strategy::split(RANKS).named("classes"), |at| classes.init(at)),
        }
    }

    fn loss(&self, (inputs, labels): &Batch) -> Tensor<1> {
        let features = self.backbone.forward(inputs.clone());
        self.classes.forward_loss(features, labels.clone()) / ROWS as f64
    }
}

fn config() -> Config {
    let config = Config::new().with("cluster.ranks", RANKS).unwrap();
    config.with("cluster.colocate_split_and_replicate", true).unwrap()
}

fn engine(epl: &Epl) -> Result<Engine<WithLoss<Net, Batch>>> {
    Engine::build(epl, |at| WithLoss::new(Net::new(at), Net::loss), &AdamConfig::new())
}

fn micro_batch(engine: &Engine<WithLoss<Net, Batch>>, rank: usize) -> MicroBatch<Batch> {
    let first = (rank * ROWS) as i64;
    let labels = Tensor::<1, Int>::arange(first..first + ROWS as i64, engine.device()) * 4_999;
    let inputs = Tensor::<2>::ones([ROWS, INPUTS], engine.device()) * (rank as f64 + 1.0);
    MicroBatch::new((inputs, labels), (0..ROWS as u64).map(|row| first as u64 + row).collect::<Vec<_>>())
}

/// What lies in memory, not what the plan says.
#[test]
fn each_rank_holds_a_quarter_of_the_class_layer_and_of_its_state() {
    let held = launch(&config(), |epl| {
        let mut engine = engine(&epl)?;
        let batch = micro_batch(&engine, engine.context().world().rank());
        engine.step(vec![batch], 0.01)?;
        let held = engine.memory_usage();
        let weight = engine.model().model.classes.linear.weight.val();
        Ok((
            weight.dims(),
            weight.into_data().as_bytes().len(),
            held.parameters as usize,
            held.optimizer_state as usize,
        ))
    });
    let quarter = CLASSES / RANKS * FEATURES * size_of::<f32>();
    let whole_backbone = INPUTS * FEATURES * size_of::<f32>();
    for (dims, weight, model, optimizer) in held.unwrap() {
        assert_eq!(dims, [FEATURES, CLASSES / RANKS]);
        assert_eq!(weight, quarter);
        assert_eq!(model, quarter + whole_backbone);
        // Adam keeps two of each.
        assert_eq!(optimizer, 2 * model);
    }
}

/// Bytes that one rank sends in a step, by the formula of the bridge. `others` = ranks - 1; a row's numbers go to all
/// of them.
#[test]
fn a_step_sends_what_the_bridge_needs_and_no_more() {
    let (label, traffic) = launch_dry(&config(), 0, |epl| {
        let mut engine = engine(&epl)?;
        let batch = micro_batch(&engine, 0);
        let label = batch.batch.1.dtype().size();
        engine.step(vec![batch], 0.01).map(|_| label)
    })
    .unwrap();
    let sent = |operation: &str| -> u64 {
        let of = |entry: &&epl_comm::dry::Entry| entry.group == "expert" && entry.operation == operation;
        traffic.entries().iter().filter(of).map(|entry| entry.sent).sum()
    };
    let (others, all_rows) = (RANKS - 1, RANKS * ROWS);
    let (float, count) = (size_of::<f32>(), size_of::<i64>());
    // Row counts and stand-ins; features; labels: all rows pass every link of a ring but the one to their owner.
    let counts = others * 2 * count;
    let gathered = others * ROWS * (FEATURES * float + label);
    assert_eq!(sent("all_gather") as usize, counts + gathered, "{traffic}");
    // Back: the gradients of all rows' features, a part for each rank.
    assert_eq!(sent("reduce_scatter(sum)") as usize, others * ROWS * FEATURES * float, "{traffic}");
    // The loss: of each row the largest logit, and three numbers; an all-reduce passes its bytes twice.
    let reduced = |numbers: usize| 2 * all_rows * numbers * float * others / RANKS;
    assert_eq!(sent("all_reduce(max)") as usize, reduced(1), "{traffic}");
    assert_eq!(sent("all_reduce(sum)") as usize, reduced(3), "{traffic}");
    // Neither logits nor the class layer's gradient travel: each rank has all rows of its classes.
    let gradients: u64 = traffic.entries().iter().filter(|e| e.group.starts_with("data ")).map(|e| e.given).sum();
    assert_eq!(gradients as usize, INPUTS * FEATURES * float, "{traffic}");
}
