//! From task graphs and ranks to replicas, devices and the mesh.
//!
//! ```text
//!                           devices of a replica              on 16 ranks
//! replicate(8), split(8)    8 + 8 = 16                        1 replica of 2 stages
//! the same, colocated       8, each used by both              2 replicas
//! ```
//!
//! Data parallelism is wrapped around whatever is left. Between two stages that use their devices in different ways the
//! rows of a replica's micro-batch are gathered and divided anew: divided over the devices of a `replicate`, all on each
//! device of a `split`.

use super::error::{LayoutError, Result, WholeLayer};
use super::strategy::{StrategyKind, TaskGraph};
use crate::config::Config;
use crate::topology::cluster::{Axis, Cluster, ClusterError, Mesh, MeshSizes, RankOrder};

/// How devices are given to task graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// All task graphs share the same devices.
    pub colocated: bool,
    /// In which order ranks are numbered.
    pub order: RankOrder,
    /// Keep one replica inside a worker; otherwise devices are taken across workers first.
    pub prefer_intra_node: bool,
}

impl Arrangement {
    /// What the options `cluster.*` and `dist.order` say.
    pub fn from_config(config: &Config) -> Self {
        Self {
            colocated: config.cluster.colocate_split_and_replicate,
            order: config.dist.order,
            prefer_intra_node: config.cluster.device_place_prefer_intra_node,
        }
    }
}

/// The task graphs of a model, with the ranks that run each.
///
/// ```
/// use epl_core::topology::layout::{Arrangement, Layout, StrategyKind, TaskGraph};
/// use epl_core::{Cluster, Config};
///
/// let graph = |name: &str, kind, devices| TaskGraph { name: name.into(), kind, devices };
/// let graphs = vec![graph("body", StrategyKind::Replicate, 2), graph("head", StrategyKind::Split, 2)];
/// let apart = Arrangement::from_config(&Config::new());
/// let layout = Layout::new(graphs.clone(), &Cluster::local(4)?, apart)?;
/// assert_eq!((layout.replicas(), layout.stages(), layout.ranks(0, 0), layout.ranks(0, 1)), (1, 2, &[0, 1][..], &[2, 3][..]));
/// let layout = Layout::new(graphs, &Cluster::local(4)?, Arrangement { colocated: true, ..apart })?;
/// assert_eq!((layout.replicas(), layout.stages()), (2, 1));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) task_graphs: Vec<TaskGraph>,
    pub(super) arrangement: Arrangement,
    /// Of every replica, for every task graph, its ranks.
    pub(super) ranks: Vec<Vec<Vec<usize>>>,
    mesh: Mesh,
}

impl Layout {
    /// Lays task graphs out over the ranks of a cluster.
    ///
    /// # Errors
    ///
    /// A task graph without a device, ranks that do not divide into replicas, colocated task graphs of different
    /// sizes.
    ///
    /// # Panics
    ///
    /// Without a task graph.
    pub fn new(task_graphs: Vec<TaskGraph>, cluster: &Cluster, arrangement: Arrangement) -> Result<Self> {
        assert!(!task_graphs.is_empty(), "a model has at least one task graph");
        if let Some(graph) = task_graphs.iter().find(|graph| graph.devices == 0) {
            return Err(LayoutError::NoDevice { graph: graph.clone() });
        }
        let devices = devices_of_a_replica(&task_graphs, arrangement)?;
        let replicas = replicas(&task_graphs, devices, cluster.world_size(), arrangement)?;
        let ranks = place(&task_graphs, replicas, cluster, arrangement);
        let mesh = mesh(&task_graphs, &ranks, cluster, arrangement);
        Ok(Self { task_graphs, arrangement, ranks, mesh })
    }

    /// The task graphs, in the order in which they were opened.
    pub fn task_graphs(&self) -> &[TaskGraph] {
        &self.task_graphs
    }

    /// How often the whole model exists.
    pub fn replicas(&self) -> usize {
        self.ranks.len()
    }

    /// The pipeline stages of a replica: task graphs that do not share their devices.
    pub fn stages(&self) -> usize {
        if self.arrangement.colocated { 1 } else { self.task_graphs.len() }
    }

    /// The ranks that run a task graph of a replica.
    ///
    /// # Panics
    ///
    /// When there is no such replica or task graph.
    pub fn ranks(&self, replica: usize, task_graph: usize) -> &[usize] {
        &self.ranks[replica][task_graph]
    }

    /// The mesh. Its stages have different widths where task graphs that are stages use their devices in different ways.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The axis over which the split layers of `split` scopes are cut: the data ranks of a replica, where these run
    /// replicated parts too.
    pub(crate) fn split_axis(&self) -> Axis {
        let is_shared = self.task_graphs.iter().any(|graph| graph.kind == StrategyKind::Replicate);
        if self.arrangement.colocated && is_shared { Axis::Expert } else { Axis::Tensor }
    }

    /// Refuses a `split` of parameters of which none `is_cut`, over more than one device: its `layers` are named.
    pub(crate) fn check_cut(
        &self,
        graph: usize,
        is_cut: impl IntoIterator<Item = bool>,
        layers: impl FnOnce() -> Vec<WholeLayer>,
    ) -> Result<()> {
        let (graph, mut is_cut) = (&self.task_graphs[graph], is_cut.into_iter().peekable());
        let is_asked = graph.kind == StrategyKind::Split && graph.devices > 1 && is_cut.peek().is_some();
        match is_asked && !is_cut.any(|is_cut| is_cut) {
            true => Err(LayoutError::NothingCut { graph: graph.clone(), layers: layers() }),
            false => Ok(()),
        }
    }

    /// Compares with what `dist.*` says.
    pub(crate) fn check_agrees(&self, config: &Config) -> Result<()> {
        let dist = &config.dist;
        let given = |key, size: usize| (size != 1 || config.is_given(key)).then_some(size);
        let sizes = [
            (Axis::Data, "dist.data_parallel_size", dist.data_parallel_size),
            (Axis::Tensor, "dist.tensor_parallel_size", Some(dist.tensor_parallel_size)),
            (Axis::Expert, "dist.expert_parallel_size", Some(dist.expert_parallel_size)),
            (Axis::Pipeline, "dist.pipeline_parallel_size", Some(dist.pipeline_parallel_size)),
        ];
        for (axis, key, size) in sizes {
            let Some(given) = size.and_then(|size| given(key, size)) else { continue };
            let scopes = |stage: usize| match axis {
                Axis::Pipeline => self.mesh.stages(),
                axis => self.mesh.sizes_in(stage).along(axis),
            };
            if let Some(scopes) = (0..self.mesh.stages()).map(scopes).find(|scopes| *scopes != given) {
                return Err(LayoutError::Disagree { axis: axis.name(), scopes, key, given });
            }
        }
        Ok(())
    }
}

fn devices_of_a_replica(graphs: &[TaskGraph], arrangement: Arrangement) -> Result<usize> {
    if !arrangement.colocated {
        return Ok(graphs.iter().fold(0, |sum, graph| sum.saturating_add(graph.devices)));
    }
    match graphs.iter().find(|graph| graph.devices != graphs[0].devices) {
        Some(other) => Err(LayoutError::ColocatedSizes { first: graphs[0].clone(), second: other.clone() }),
        None => Ok(graphs[0].devices),
    }
}

fn replicas(graphs: &[TaskGraph], devices: usize, ranks: usize, arrangement: Arrangement) -> Result<usize> {
    if ranks.is_multiple_of(devices) {
        return Ok(ranks / devices);
    }
    let below = ranks / devices * devices;
    let kinds = |kind| graphs.iter().any(|graph| graph.kind == kind);
    let mixed = !arrangement.colocated && kinds(StrategyKind::Replicate) && kinds(StrategyKind::Split);
    Err(LayoutError::RanksDoNotDivide {
        graphs: graphs.to_vec(),
        devices,
        how: if arrangement.colocated { ", colocated" } else { "" },
        ranks,
        below: if below == 0 { String::new() } else { format!("{below} or ") },
        above: (ranks / devices).saturating_add(1).saturating_mul(devices),
        remedy: if mixed { ", or set cluster.colocate_split_and_replicate = true" } else { "" },
    })
}

/// Of every replica, for every task graph, its ranks.
fn place(graphs: &[TaskGraph], replicas: usize, cluster: &Cluster, arrangement: Arrangement) -> Vec<Vec<Vec<usize>>> {
    let mut ranks = cluster.ranks_in_order(arrangement.prefer_intra_node).into_iter();
    let mut take = |graph: &TaskGraph| ranks.by_ref().take(graph.devices).collect::<Vec<_>>();
    if arrangement.colocated {
        return (0..replicas).map(|_| vec![take(&graphs[0]); graphs.len()]).collect();
    }
    match arrangement.order {
        RankOrder::DataPipelineTensor => (0..replicas).map(|_| graphs.iter().map(&mut take).collect()).collect(),
        RankOrder::PipelineDataTensor => {
            let mut placed = vec![Vec::with_capacity(graphs.len()); replicas];
            for graph in graphs {
                placed.iter_mut().for_each(|replica| replica.push(take(graph)));
            }
            placed
        }
    }
}

/// The mesh of the ranks that were placed so.
fn mesh(graphs: &[TaskGraph], ranks: &[Vec<Vec<usize>>], cluster: &Cluster, arrangement: Arrangement) -> Mesh {
    let (replicas, devices) = (ranks.len(), graphs[0].devices);
    let all = |kind| graphs.iter().all(|graph| graph.kind == kind);
    let made = if arrangement.colocated {
        let sizes = match (all(StrategyKind::Replicate), all(StrategyKind::Split)) {
            (true, _) => MeshSizes::new(replicas * devices, 1, 1, 1),
            (_, true) => MeshSizes::new(replicas, 1, devices, 1),
            _ => MeshSizes::new(replicas * devices, 1, 1, devices),
        };
        sizes.and_then(|sizes| Mesh::over(cluster, sizes, arrangement.order, arrangement.prefer_intra_node))
    } else {
        let stage = |(number, graph): (usize, &TaskGraph)| {
            let sizes = match graph.kind {
                StrategyKind::Replicate => MeshSizes::new(replicas * graph.devices, 1, 1, 1),
                StrategyKind::Split => MeshSizes::new(replicas, 1, graph.devices, 1),
            };
            Ok((sizes?, ranks.iter().flat_map(|replica| replica[number].clone()).collect()))
        };
        let stages: Result<Vec<_>, ClusterError> = graphs.iter().enumerate().map(stage).collect();
        stages.and_then(|stages| Mesh::of_stages(stages, replicas, arrangement.order))
    };
    made.expect("the ranks of a cluster, divided into replicas, are a mesh")
}
