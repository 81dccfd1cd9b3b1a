//! A model on paper: what its segments hold, compute and send, as numbers, for clusters that are described.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::DType;
use epl_comm::{Operation, shard_range};

use super::candidate::is_fixed;
use super::column::{Column, Columns};
use super::found::Found;
use super::judge::Judge;
use super::run::{check_described, check_search, search};
use super::space::divisions;
use crate::config::{AmpLevel, Config, HalfDtype, ToSetting};
use crate::cost::{Line, Machine, Rates, SegmentTime};
use crate::error::{Error, Result};
use crate::memory::{Activations, Fit, OptimizerState, SegmentActivations};
use crate::params::{Cut, ParamOrigin, ParamRecord};
use crate::plan::builder::PlanBuilder;
use crate::plan::burn_layers::BurnLayers;
use crate::plan::survey::Survey;
use crate::simulate::{Called, CarryShape, Members, SegmentCalls, ShapesOverRows, StepShapes, TableRows, TensorShape};
use crate::stable_hash::stable_hash;
use crate::topology::cluster::{Axis, Cluster, Mesh, MeshSizes, Placement};

/// What a rank has of one segment, where layers are divided in some way. All but the parameters is for one row of a micro-batch.
#[derive(Clone, Debug, Default)]
pub struct PaperSegment {
    /// What it is called.
    pub name: String,
    /// Its parameters.
    pub parameters: Vec<PaperParam>,
    /// Floating-point operations of its forward; its backward has twice as many.
    pub flops: f64,
    /// Elements of what leaves it.
    pub carry: usize,
    /// Bytes that are stored from its forward to its backward.
    pub stored: f64,
    /// Bytes that its backward needs beside.
    pub working: f64,
    /// The collectives of its forward, and of its backward: over which axis, what, of how many elements.
    pub calls: [Vec<(Axis, Operation, usize)>; 2],
}

/// A parameter of f32.
#[derive(Clone, Debug)]
pub struct PaperParam {
    /// Its path.
    pub name: String,
    /// The shape of the whole.
    pub shape: Vec<usize>,
    /// The dims that are divided.
    pub cuts: Vec<(Axis, usize)>,
}

/// What a search on paper is of.
#[derive(Clone, Copy, Debug)]
pub struct PaperTask {
    /// Rows of a step, over all replicas.
    pub rows: usize,
    /// The type in which segments compute and send; of 16 bits: as under `amp.level = O1`, with copies of the parameters in it.
    pub dtype: DType,
    /// What the optimizer keeps.
    pub state: OptimizerState,
}

/// The layout in which a described cluster makes a step of a model on paper fastest: [`Epl::search`](crate::Epl::search), for devices
/// that are not there. Products take as long as the description says that large ones do, and an update as long as its memory is read
/// and written; nothing is measured. Where devices are not alike, their speeds are those of products and of memory.
///
/// `segments` gives what a rank has where layers are divided over so many tensor and expert ranks, or why they cannot be. Tensor ranks
/// are of one host, unless `config` says their number. A device has the memory that the description says, or `offload.device_bytes`.
/// Moving what is put away in host memory is not counted, an update there takes what it takes on the device, and that memory is not
/// bounded.
///
/// ```
/// # use burn::tensor::DType;
/// # use epl_core::{Config, cost::Machine, memory::OptimizerState};
/// # use epl_core::search::{PaperParam, PaperSegment, PaperTask, search_on_paper};
/// # let machine = Machine::from_toml(r#"
/// #     [[host]]
/// #     count = 2
/// #     devices = [{ class = "device", count = 8 }]
/// #     inside = { alpha_us = 8, gb_per_s = 240 }
/// #     outside = { alpha_us = 20, gb_per_s = 50 }
/// #     [class.device]
/// #     memory_gb = 80
/// #     tflops = 170
/// #     memory_gb_per_s = 1800
/// # "#)?; // two hosts of eight devices
/// # let config = Config::new().with("auto.auto_parallel", true)?;
/// let task = PaperTask { rows: 512, dtype: DType::BF16, state: OptimizerState::PerElement(2) };
/// let layer = |number| PaperSegment {
///     name: format!("layer {number}"),
///     parameters: vec![PaperParam { name: format!("layers.{number}.weight"), shape: vec![4096, 4096], cuts: vec![] }],
///     flops: 2.0 * 4096.0 * 4096.0, // of a row
///     carry: 4096, stored: 8192.0, working: 8192.0, calls: Default::default(),
/// };
/// let found = search_on_paper(&config, &machine, &task, |tensor, expert| match (tensor, expert) {
///     (1, 1) => Ok((0..8).map(layer).collect()),
///     _ => Err("the layers are not divided".into()),
/// })?;
/// assert!(found.bound() <= found.best().seconds() && found.best().seconds() < 1.0, "{found}");
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When the options contradict each other; when segments say what is no number from 0 on, or are not as many for each division; when no
/// layout is possible or fits.
pub fn search_on_paper(
    config: &Config,
    machine: &Machine,
    task: &PaperTask,
    segments: impl Fn(usize, usize) -> Result<Vec<PaperSegment>, String>,
) -> Result<Found> {
    let (cluster, [tflops, memory_gb_per_s]) = (machine.cluster()?, machine.least());
    check_search(config, task.rows)?;
    if let Some(ranks) = config.cluster.ranks.filter(|ranks| *ranks != cluster.world_size()) {
        return Err(Error::invalid(format!(
            "cluster.ranks = {ranks}, and the cluster that is described has {} devices; leave one of both out",
            cluster.world_size()
        )));
    }
    check_described(config)?;
    let given = given_on_paper(config, &cluster, task)?;
    let network = machine.network()?;
    let on_hosts = sizes_of_hosts(&cluster);
    let (mut columns, mut count) = (Columns::new(), None);
    for (tensor, expert) in divisions(config, cluster.world_size()) {
        let is_inside = on_hosts.iter().all(|ranks| ranks.is_multiple_of(tensor));
        let is_inside = is_inside || is_fixed(config, "dist.tensor_parallel_size");
        let column = match is_inside {
            true => segments(tensor, expert),
            false => Err(format!(
                "{tensor} tensor ranks are on several hosts, of {on_hosts:?} devices; give dist.tensor_parallel_size to have it so"
            )),
        };
        if let Ok(segments) = &column {
            check_segments(segments, (tensor, expert), *count.get_or_insert(segments.len()))?;
        }
        let column = column.and_then(|segments| {
            column_of(&given, (tensor, expert), &segments, task, tflops * 1e12).map_err(|error| error.to_string())
        });
        columns.insert((tensor, expert), column);
    }
    let second = memory_gb_per_s * 1e9;
    // An update of Adam reads four numbers of an element and writes three; a sum reads two and writes one.
    let rates = Rates { update: 28.0 / second, copy: 3.0 / second, ..Rates::default() };
    let (devices, budget_of) = match config.offload.device_bytes {
        Some(bytes) => (machine.devices().with_bytes(Some(bytes)), "offload.device_bytes"),
        None => (machine.devices(), "the memory of a device"),
    };
    let judge = Judge {
        columns: &columns,
        cluster: &cluster,
        network: &network,
        rates,
        state: task.state,
        batch: task.rows,
        devices,
        budget_of,
        margin: config.auto.margin,
        lanes: 1,
    };
    search(&judge, &given, count.unwrap_or(1))
}

/// Refuses segments that are not as many as those of another division, or say what no segment takes.
fn check_segments(segments: &[PaperSegment], (tensor, expert): (usize, usize), count: usize) -> Result<()> {
    if segments.len() != count {
        return Err(Error::invalid(format!(
            "{} segments over {tensor} tensor and {expert} expert ranks, and {count} over others; give the same ones, divided",
            segments.len()
        )));
    }
    let is_wrong = |number: &f64| !(number.is_finite() && *number >= 0.0);
    let wrong = |segment: &&PaperSegment| [segment.flops, segment.stored, segment.working].iter().any(is_wrong);
    match segments.iter().find(wrong) {
        None => Ok(()),
        Some(PaperSegment { name, flops, stored, working, .. }) => Err(Error::invalid(format!(
            "`{name}` has flops = {flops}, stored = {stored} and working = {working}; give numbers from 0 on"
        ))),
    }
}

/// A configuration with what a task and a described cluster say.
///
/// # Errors
///
/// When it asks for runs or measures.
fn given_on_paper(config: &Config, cluster: &Cluster, task: &PaperTask) -> Result<Config> {
    let reasons = [
        ("auto.measure", "nothing is run or measured"),
        ("auto.calibration", "nothing is run or measured"),
        ("dist.whole_layers", "segments say themselves what they take over tensor ranks"),
    ];
    for (key, reason) in reasons {
        let given = config.get(key).filter(|value| Config::default().get(key).as_ref() != Some(value));
        if let Some(value) = given {
            return Err(Error::invalid(format!("{key} = {value}, and on paper {reason}; leave it out")));
        }
    }
    let mut given = config.clone();
    given.set("cluster.ranks", cluster.world_size())?;
    let half = match task.dtype {
        DType::F16 => Some(HalfDtype::F16),
        DType::BF16 => Some(HalfDtype::Bf16),
        _ => None,
    };
    if let Some(half) = half {
        // Parameters are f32, and what segments compute with is a copy.
        given.set("amp.level", AmpLevel::O1.to_setting())?;
        given.set("amp.dtype", half.to_setting())?;
    }
    Ok(given)
}

/// How many devices hosts have, each number once.
fn sizes_of_hosts(cluster: &Cluster) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..cluster.worker_num()).map(|host| cluster.ranks_of(host).len()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn column_of(
    config: &Config,
    (tensor, expert): (usize, usize),
    segments: &[PaperSegment],
    task: &PaperTask,
    flops: f64,
) -> Result<Column> {
    let mesh = Mesh::new(MeshSizes::new(expert, 1, tensor, expert)?, config.dist.order);
    let names: Vec<String> = segments.iter().map(|segment| segment.name.clone()).collect();
    let survey = Survey {
        self_contained: Vec::new(),
        records: records(segments, &mesh)?,
        burn_layers: BurnLayers::none(segments.len()),
        over_micro_batch: Vec::new(),
        over_replica: Vec::new(),
        findings: Arc::default(),
    };
    let placement = Placement::of(&crate::Cluster::local(mesh.world_size())?, &mesh);
    let builder = PlanBuilder::new(config, (&mesh, 0), placement, survey).with_names("on paper".to_string(), names);
    let time = |segment: &PaperSegment| SegmentTime {
        forward: Line::through([(1.0, segment.flops / flops)]),
        backward: Line::through([(1.0, 2.0 * segment.flops / flops)]),
        untracked: Line::through([(1.0, segment.flops / flops)]),
    };
    let bytes = |(index, segment): (usize, &PaperSegment)| {
        let of = |per_row: f64| Fit { fixed: 0.0, per_row };
        let enters = index.checked_sub(1).map_or(0, |before| segments[before].carry * task.dtype.size());
        let results = segment.calls[0].iter().map(|(_, _, elements)| elements * task.dtype.size()).sum::<usize>();
        Some(SegmentActivations {
            carry: of(enters as f64),
            stored: of(segment.stored),
            results: of(results as f64),
            working: of(segment.working),
        })
    };
    let activations = Activations { segments: segments.iter().enumerate().map(bytes).collect(), measured: [1, 2] };
    let shapes = ShapesOverRows::through(shapes(segments, task.dtype), [1, 2])?;
    Ok(Column::new(builder, segments.iter().map(time).collect(), shapes, Some(activations)))
}

fn records(segments: &[PaperSegment], mesh: &Mesh) -> Result<Vec<ParamRecord>> {
    let (mut records, mut known): (Vec<ParamRecord>, BTreeMap<&str, usize>) = Default::default();
    for (number, segment) in segments.iter().enumerate() {
        for param in &segment.parameters {
            match known.entry(&param.name) {
                // What several segments name is tied.
                Entry::Occupied(entry) => {
                    let segments = &mut records[*entry.get()].segments;
                    segments.extend((segments.last() != Some(&number)).then_some(number));
                }
                Entry::Vacant(entry) => {
                    entry.insert(records.len());
                    records.push(record(number, param, mesh)?);
                }
            }
        }
    }
    Ok(records)
}

fn record(segment: usize, param: &PaperParam, mesh: &Mesh) -> Result<ParamRecord> {
    let cut = |(axis, dim): &(Axis, usize)| {
        let (parts, shape) = (mesh.size(*axis), &param.shape);
        let Some(extent) = shape.get(*dim) else {
            return Err(Error::Parameter {
                name: param.name.clone(),
                reason: format!("has no dim {dim} to divide in {shape:?}"),
            });
        };
        Ok(Cut { axis: *axis, dim: *dim, parts, range: shard_range(*extent, parts, 0) })
    };
    let cuts = param.cuts.iter().filter(|(axis, _)| mesh.size(*axis) > 1).map(cut).collect::<Result<_>>()?;
    Ok(ParamRecord {
        name: param.name.clone(),
        id: ParamId::from(stable_hash(&param.name)),
        global_shape: param.shape.clone(),
        cuts,
        dtype: DType::F32,
        trainable: true,
        origin: ParamOrigin::Drawn,
        segments: vec![segment],
        stages: Vec::new(),
        held: true,
        task_graph: None,
        layer_idx: None,
        table: false,
        sparse: false,
        declared: true,
        half: true,
        average: None,
        counted: false,
        parked: false,
        shard: None,
    })
}

/// The shapes of micro-batches of one row and of two.
fn shapes(segments: &[PaperSegment], dtype: DType) -> StepShapes {
    let calls = |rows: usize| {
        let list = |calls: &[(Axis, Operation, usize)]| {
            let call = |(axis, operation, elements): &(Axis, Operation, usize)| Called {
                over: Members::Axis(*axis),
                operation: *operation,
                dtype,
                elements: rows * elements,
            };
            calls.iter().map(call).collect()
        };
        let of = |segment: &PaperSegment| SegmentCalls {
            forward: list(&segment.calls[0]),
            backward: list(&segment.calls[1]),
        };
        segments.iter().map(of).collect()
    };
    let carries = |rows: usize| {
        let of = |segment: &PaperSegment| CarryShape {
            counts: 0,
            tensors: vec![TensorShape { dtype, dims: vec![rows, segment.carry] }],
            gradients: vec![true],
        };
        segments.iter().map(of).collect()
    };
    StepShapes {
        kinds: vec![0, 1],
        calls: vec![calls(1), calls(2)],
        carries: vec![carries(1), carries(2)],
        terms: 1,
        loss_terms: 1,
        metrics: 0,
        lanes: 1,
        rows: TableRows::OfStep(BTreeMap::new()),
        batch: None,
    }
}
