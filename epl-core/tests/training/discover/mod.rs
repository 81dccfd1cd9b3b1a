//! Segments of plain layers of Burn that can run in slices are found, and no others.
//!
//! - `cases`: a table of segments, and what is found of each;
//! - `trained`: what is found, in runs.

mod cases;
mod trained;

use burn::module::Module;
use burn::nn::{EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl_core::plan::ExitSplit::Slices;
use epl_core::plan::SplitFinding;
use epl_core::{AverageDecay, Carry, Chain, Config, LazyModel, Model, Place, Result, launch_dry};

/// Features of what enters, and of what is between two layers.
const D: usize = 8;
const H: usize = 12;

type Rows = Tensor<3>;

/// Two samples of five rows, by rule.
fn sample(device: &Device) -> Rows {
    let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let values: Vec<f64> = (0..2 * 5 * D).map(number).collect();
    Tensor::from_data(TensorData::new(values, [2, 5, D]), device)
}

/// What is found of a segment that is entered by what `enter` makes of the batch.
fn found<M: Module, C: Carry + 'static, E: Carry + 'static>(
    layers: impl Fn(&Device) -> M,
    enter: impl Fn(&Rows) -> C + Copy + Send + Sync + 'static,
    segment: impl Fn(&M, C) -> E + Copy + Send + Sync + 'static,
) -> SplitFinding {
    let chain = |at: &Place| {
        Chain::of(layers(at))
            .first(&[], move |_: &M, rows: &Rows| enter(rows))
            .then(&[""], move |layers, carry, _| segment(layers, carry))
            .mean_loss(|_, _, rows: &Rows| rows.clone().mean())
    };
    finding(chain, sample, 1)
}

/// What is found of a segment, for two ranks.
fn finding<M: Model>(
    model: impl Fn(&Place) -> M,
    sample: impl Fn(&Device) -> M::Batch,
    segment: usize,
) -> SplitFinding {
    discovered(model, sample, |lazy| lazy.plan().findings()[segment].clone())
}

fn discovered<M: Model, T>(
    model: impl Fn(&Place) -> M,
    sample: impl Fn(&Device) -> M::Batch,
    read: impl Fn(&LazyModel<M>) -> T,
) -> T {
    let read = |epl: epl_core::Epl| -> Result<T> {
        let batch = sample(epl.place().device());
        Ok(read(&epl.plan(&model)?.discover(&batch)?))
    };
    launch_dry(&two_ranks(), 0, read).unwrap_or_else(|error| panic!("{error}")).0
}

fn linear(from: usize, to: usize) -> LinearConfig {
    LinearConfig::new(from, to)
}

/// Up to H features and down again.
fn pair(bias: bool) -> impl Fn(&Device) -> (Linear, Linear) {
    move |at| (linear(D, H).with_bias(bias).init(at), linear(H, D).with_bias(bias).init(at))
}

fn two_ranks() -> Config {
    Config::new().with("cluster.ranks", 2).unwrap().with("dist.tensor_parallel_size", 2).unwrap()
}

/// What is said of one that stays whole.
fn why(finding: SplitFinding) -> String {
    match finding {
        SplitFinding::Whole(why) => why,
        SplitFinding::Split(split) => panic!("it stays whole: {split:?}"),
    }
}

/// What a loss adds that it reads of its last layer.
type Penalty = fn(&Linear) -> Tensor<1>;

/// A table that is looked up, columns of a head, and a loss that may read it.
fn reads_tokens(at: &Place, penalty: Option<Penalty>) -> Chain<(burn::nn::Embedding, Linear), Tensor<2, Int>, Rows> {
    let layers = (EmbeddingConfig::new(11, D).init(at), LinearConfig::new(D, H).init(at));
    Chain::of(layers)
        .first(&["0"], |(table, _): &(burn::nn::Embedding, Linear), tokens: &Tensor<2, Int>| {
            table.forward(tokens.clone())
        })
        .then(&["1"], |(_, head), rows: Rows, _| head.forward(rows))
        .mean_loss(move |(_, head), rows, _| {
            let loss = rows.powi_scalar(2).mean();
            penalty.map_or(loss.clone(), |penalty| loss + penalty(head))
        })
}

fn tokens(device: &Device) -> Tensor<2, Int> {
    Tensor::from_data([[1, 5, 10], [0, 3, 7]], device)
}

#[test]
fn a_loss_that_reads_the_last_segment_keeps_it_whole() {
    let extents = |penalty: Option<Penalty>| {
        discovered(|at| reads_tokens(at, penalty), tokens, |lazy| lazy.plan().findings().to_vec())
    };
    let is_columns = |finding: &SplitFinding, of: usize| match finding {
        SplitFinding::Split(split) => split.extent == of && split.exits == [Slices],
        SplitFinding::Whole(_) => false,
    };
    let found = extents(None);
    assert!(is_columns(&found[0], D) && is_columns(&found[1], H), "{found:?}");
    let penalties: [Penalty; 5] = [
        |head| head.weight.val().powi_scalar(2).sum(),
        |head| head.weight.val().powi_scalar(2).sum() * 1e-30,
        // Without a value or a gradient there, where it is looked at.
        |head| relu(head.weight.val().abs() - 100.0).sum(),
        |head| (head.bias.as_ref().expect("there is one").val() - 1.0).powi_scalar(2).sum(),
        |head| head.bias.as_ref().expect("there is one").val().log().powi_scalar(2).sum(),
    ];
    for (number, penalty) in penalties.into_iter().enumerate() {
        let found = extents(Some(penalty));
        assert!(is_columns(&found[0], D), "{number}: {found:?}");
        let head = why(found[1].clone());
        assert!(head.contains("the loss behind it reads its parameters"), "{number}: {head}");
    }
    let not = why(extents(Some(|head| Tensor::full([1], f32::INFINITY, &head.weight.val().device())))[1].clone());
    assert!(not.contains("the loss behind it is no number"), "{not}");
}

#[test]
fn rows_of_a_table_are_not_cut() {
    let chain = |at: &Place| {
        Chain::of(EmbeddingConfig::new(12, 1).init(at))
            .first(&["weight"], |table: &burn::nn::Embedding, tokens: &Tensor<2, Int>| table.forward(tokens.clone()))
            .mean_loss(|_, rows, _| rows.mean())
    };
    let why = why(finding(chain, tokens, 0));
    assert!(why.contains("no extent") && why.contains("the number of rows of a table"), "{why}");
}

#[test]
fn a_moving_average_is_cut_as_what_it_follows_is() {
    type Pairs = ((Linear, Linear), (Linear, Linear));
    let findings = |norm: bool| {
        let chain = move |at: &Place| {
            let encoder = pair(true)(at);
            let teacher = at.moving_average(pair(true)(at), &encoder, AverageDecay::Constant(0.9));
            Chain::of((encoder, teacher))
                .first(&["0"], move |((up, down), _): &Pairs, rows: &Rows| {
                    let left = down.forward(gelu(up.forward(rows.clone())));
                    if norm { softmax(left, 2) } else { left }
                })
                .then(&["1"], |(_, (up, down)), rows: Rows, _| down.forward(gelu(up.forward(rows))))
                .mean_loss(|_, rows, _| rows.mean())
        };
        discovered(chain, sample, |lazy| lazy.plan().findings().to_vec())
    };
    let both = findings(false);
    assert!(both.iter().all(|finding| matches!(finding, SplitFinding::Split(split) if split.extent == H)), "{both:?}");
    let [encoder, teacher] = &findings(true)[..] else { panic!("two segments") };
    assert!(why(encoder.clone()).contains("neither the sum"));
    let teacher = why(teacher.clone());
    assert!(teacher.contains("is a moving average of `0.") && teacher.contains("cut the chain alike"), "{teacher}");
}

#[test]
fn parameters_of_two_segments_stay_whole() {
    let chain = |at: &Place| {
        let forward = |(up, down): &(Linear, Linear), x: Rows| down.forward(gelu(up.forward(x)));
        Chain::of(pair(true)(at))
            .first(&["0", "1"], move |layers: &(Linear, Linear), rows: &Rows| forward(layers, rows.clone()))
            .then(&["0", "1"], move |layers, rows: Rows, _| forward(layers, rows))
            .mean_loss(|_, rows, _| rows.mean())
    };
    let why = why(finding(chain, sample, 0));
    assert!(why.contains("of several segments"), "{why}");
}
