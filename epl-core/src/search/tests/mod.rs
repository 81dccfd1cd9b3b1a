//! Tests of the search: what they are made with.

mod best;
mod costs;
mod divided;
mod told;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::{Config, Layers};
use crate::cost::{ClusterDevices, DeviceTraits, HostUpdates, Line, Network, NetworkLink, Rates, SegmentTime};
use crate::memory::{Activations, Fit, OptimizerState, SegmentActivations};
use crate::plan::builder::PlanBuilder;
use crate::search::column::{Column, Columns};
use crate::search::judge::Judge;
use crate::search::run::search;
use crate::simulate::ShapesOverRows;
use crate::topology::cluster::Cluster;
use crate::{Chain, Model, Place, launch_dry};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// A layer each; with `tied`, the first one once more behind the last.
fn chain(at: &Place, segments: usize, tied: bool) -> Chain<Net, Tensor<2>, Tensor<2>> {
    chain_of(3, at, segments, tied)
}

/// The same with layers of a width.
fn chain_of(width: usize, at: &Place, segments: usize, tied: bool) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..segments).map(|_| LinearConfig::new(width, width).init(at)).collect() };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..segments).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows))
    });
    match tied {
        true => {
            layers.then(&["layers.0"], |net, rows, _| net.layers[0].forward(rows)).mean_loss(|_, rows, _| rows.mean())
        }
        false => layers.mean_loss(|_, rows, _| rows.mean()),
    }
}

/// What a segment takes and stores for a row where it is not divided.
#[derive(Clone, Copy)]
struct DrawnSegment {
    forward: f64,
    backward: f64,
    carry: f64,
    stored: f64,
}

/// Segments of three random kinds.
fn kinds(segments: usize, numbers: &mut ChaCha8Rng) -> Vec<DrawnSegment> {
    let mut kind = || {
        let (forward, longer) = (numbers.random_range(0.5..2.0), numbers.random_range(1.5..3.0));
        let (carry, stored) = (numbers.random_range(20.0..100.0), numbers.random_range(100.0..500.0));
        DrawnSegment { forward, backward: forward * longer, carry, stored }
    };
    let kinds = [kind(), kind(), kind()];
    (0..segments).map(|_| kinds[numbers.random_range(0..3)]).collect()
}

/// A model and what its segments call, whose segments are of these kinds.
fn column_of((builder, shapes): (PlanBuilder, ShapesOverRows), kinds: &[DrawnSegment], with_bytes: bool) -> Column {
    let proportional = |per_row: f64| Fit { fixed: 0.0, per_row };
    let time = |kind: &DrawnSegment| SegmentTime {
        forward: Line::through([(1.0, kind.forward)]),
        backward: Line::through([(1.0, kind.backward)]),
        untracked: Line::through([(1.0, kind.forward)]),
    };
    let bytes = |kind: &DrawnSegment| {
        Some(SegmentActivations {
            carry: proportional(kind.carry),
            stored: proportional(kind.stored),
            results: Fit::default(),
            working: proportional(100.0),
        })
    };
    let activations = || Activations { segments: kinds.iter().map(bytes).collect(), measured: [1, 2] };
    Column::new(builder, kinds.iter().map(time).collect(), shapes, with_bytes.then(activations))
}

/// A chain whose segments are of three kinds with random costs.
fn column(segments: usize, numbers: &mut ChaCha8Rng, with_bytes: bool) -> Column {
    declaring((3, |_| {}), segments, numbers, with_bytes)
}

/// The same, of a model of a width that declares something.
fn declaring(
    (width, declare): (usize, fn(&Place)),
    segments: usize,
    numbers: &mut ChaCha8Rng,
    with_bytes: bool,
) -> Column {
    let model = |at: &Place| {
        declare(at);
        chain_of(width, at, segments, false)
    };
    column_of(surveyed(&Config::new(), model, width), &kinds(segments, numbers), with_bytes)
}

/// What a search knows of a model for rows of a width, before anything is timed.
fn surveyed<M: Model<Batch = Tensor<2>>>(
    config: &Config,
    model: impl Fn(&Place) -> M,
    width: usize,
) -> (PlanBuilder, ShapesOverRows) {
    let (surveyed, _) = launch_dry(config, 0, |epl| {
        let lazy = epl.plan(&model)?;
        let shapes = lazy.step_shapes(&[1, 2], &[0, 1], |kind, device| Tensor::ones([kind + 1, width], device))?;
        Ok((lazy.builder, ShapesOverRows::through(shapes, [1, 2])?))
    })
    .unwrap();
    surveyed
}

fn judge<'a>(
    columns: &'a Columns,
    cluster: &'a Cluster,
    network: &'a Network,
    (batch, budget): (usize, Option<u64>),
) -> Judge<'a> {
    Judge {
        columns,
        cluster,
        network,
        rates: Rates {
            update: 1e-2,
            host_updates: HostUpdates { of_state: Some(3e-2), of_more: Some(4e-2) },
            copy: 1e-4,
            lost: 0.2,
            spared: 0.1,
            parameter: 1e-2,
            norm: 1e-3,
        },
        state: OptimizerState::PerElement(2),
        batch,
        devices: ClusterDevices::alike(cluster.world_size(), budget),
        budget_of: "offload.device_bytes",
        margin: 0.0,
        lanes: 2,
    }
}

fn given(ranks: usize, options: &[(&str, &str)]) -> Config {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    let said = said.chain([format!("cluster.ranks={ranks}"), "auto.auto_parallel=true".to_string()]);
    Layers::new().command_line(said).unwrap().resolve().unwrap()
}

fn device(speed: f64, bytes: Option<u64>) -> DeviceTraits {
    DeviceTraits { compute: speed, memory: speed, bytes }
}

/// A search among layouts of even segments for so many rows, on devices of these speeds.
fn found_over(
    link: NetworkLink,
    speeds: &[f64],
    (segments, rows): (usize, usize),
    options: &[(&str, &str)],
) -> crate::search::Found {
    found_with(Rates::default(), (link, speeds), (segments, rows), options)
}

/// The same with rates of an update and of copies.
fn found_with(
    rates: Rates,
    (link, speeds): (NetworkLink, &[f64]),
    (segments, rows): (usize, usize),
    options: &[(&str, &str)],
) -> crate::search::Found {
    let (ranks, cluster) = (speeds.len(), Cluster::local(speeds.len()).unwrap());
    let network = Network::of_links(vec![0; ranks], link, link);
    let mut column = column(segments, &mut ChaCha8Rng::seed_from_u64(1), false);
    let even = SegmentTime {
        forward: Line::through([(1.0, 1.0)]),
        backward: Line::through([(1.0, 2.0)]),
        untracked: Line::through([(1.0, 1.0)]),
    };
    column = Column::new(column.builder, vec![even; segments], column.shapes, None);
    let columns = Columns::from([((1, 1), Ok(column))]);
    let devices = ClusterDevices::new(speeds.iter().map(|speed| device(*speed, None)).collect());
    let judge = Judge { devices, rates, ..judge(&columns, &cluster, &network, (rows, None)) };
    let ones = [("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")];
    search(&judge, &given(ranks, &[&ones[..], options].concat()), segments).unwrap()
}
