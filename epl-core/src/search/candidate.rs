//! A layout, and the options that say it.

use std::ops::Range;

use toml::Value;

use crate::config::{
    CheckpointType, Config, OffloadLevel, Origin, PipelineStrategy, RankOrder, StateTier, ToSetting, ZeroLevel,
};
use crate::error::Result;
use crate::memory::{Tier, Tiers};
use crate::topology::cluster::{Axis, Mesh};

/// The options that a search chooses. Those that are given stay as they are.
pub(crate) const CHOSEN: [&str; 17] = [
    "dist.data_parallel_size",
    "dist.pipeline_parallel_size",
    "dist.tensor_parallel_size",
    "dist.expert_parallel_size",
    "dist.whole_layers",
    "dist.order",
    "io.row_weights",
    "pipeline.num_micro_batch",
    "pipeline.num_chunks",
    "pipeline.strategy",
    "pipeline.cuts",
    "gradient_checkpoint.type",
    "gradient_checkpoint.runs",
    "zero.level",
    "offload.level",
    "offload.optimizer_state",
    "auto.auto_parallel",
];

/// Replicas whose shares of rows are told.
const WEIGHTS: usize = 8;

/// What only a search asks.
pub(crate) const SEARCH: [&str; 4] = ["auto.margin", "auto.calibration", "auto.measure", "auto.speeds"];

/// Gives options their defaults.
pub(crate) fn reset(config: &mut Config, keys: &[&str]) -> Result<()> {
    let default = Config::default();
    for key in keys {
        if let Some(value) = default.get(key) {
            config.set(key, value)?;
        }
    }
    Ok(())
}

/// Whether an option is given as a constraint: by whomever, but for defaults in a file, as saved configurations have all of them.
pub(crate) fn is_fixed(given: &Config, key: &str) -> bool {
    match given.origin(key) {
        Origin::Default => false,
        Origin::File { .. } => given.get(key) != Config::default().get(key),
        _ => true,
    }
}

/// What a division of the ranks is called: into replicas, stages, slices of split layers, and replicas that share experts.
pub(super) fn division([data, stages, tensor, expert]: [usize; 4]) -> String {
    let sizes = [("data", data), ("stages", stages), ("tensor", tensor), ("expert", expert)];
    let sizes: Vec<String> =
        sizes.into_iter().filter(|(_, size)| *size > 1).map(|(axis, size)| format!("{axis} {size}")).collect();
    if sizes.is_empty() { "1 rank".to_string() } else { sizes.join(" × ") }
}

/// A layout whose stages are not cut yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Replicas, stages, slices of split layers, and replicas that share experts.
    pub sizes: [usize; 4],
    pub micro_batches: usize,
    pub chunks: usize,
    pub strategy: PipelineStrategy,
    pub order: RankOrder,
    /// Whether replicas get rows by their speed; else evenly, or as is given.
    pub by_speed: bool,
    /// Whether layers are whole that were found to take less so; else as is given.
    pub has_whole_layers: bool,
}

/// What layouts have in common that differ in their chunks and schedules alone.
pub(super) type ShapeKey = ([usize; 4], usize, RankOrder, [bool; 2]);

impl Shape {
    /// What it has in common with others.
    pub fn key(&self) -> ShapeKey {
        (self.sizes, self.micro_batches, self.order, [self.by_speed, self.has_whole_layers])
    }

    /// Axes along which there are several ranks.
    pub fn axes(&self) -> usize {
        self.sizes.iter().filter(|size| **size > 1).count()
    }
}

/// What is put away from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutAway {
    /// As `offload.level` says, but for what other options of `offload` do.
    Offload(OffloadLevel),
    /// The optimizer's state alone, in host memory.
    State,
}

impl PutAway {
    /// As a configuration says.
    pub(super) fn of(config: &Config) -> Self {
        let is_off = config.offload.level == OffloadLevel::Off;
        let is_state = Tiers::from_config(config) == Tiers { state: Tier::Host, ..Tiers::all(Tier::Device) };
        if is_off && is_state { Self::State } else { Self::Offload(config.offload.level) }
    }

    /// Where parameters, gradients and state lie, beside what is given.
    pub fn tiers(self, given: &Config) -> Tiers {
        match self {
            Self::Offload(level) => Tiers::from_options(given, level),
            Self::State => Tiers { state: Tier::Host, ..Tiers::from_options(given, OffloadLevel::Off) },
        }
    }
}

/// What is sharded over replicas, and what is put away.
pub(crate) type Level = (ZeroLevel, PutAway);

/// See [`Candidate::kind`].
pub(super) type CandidateKind = ([usize; 4], usize, PipelineStrategy, RankOrder, [bool; 2], Option<ZeroLevel>);

/// A layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub shape: Shape,
    pub level: Level,
    /// In which proportion replicas divide rows; none: evenly, or as is given.
    pub row_weights: Option<Vec<usize>>,
    /// Layers that are whole on each tensor rank; none: as is given.
    pub whole_layers: Option<Vec<String>>,
    /// The first segment of each part but the first; none: as the options say, or the stages are not chosen.
    pub cuts: Vec<usize>,
    /// What is run again.
    pub runs: Vec<Range<usize>>,
}

impl Candidate {
    /// The one that a configuration says, without what is run again.
    pub fn of(config: &Config, mesh: &Mesh) -> Result<Self> {
        let sizes = [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Expert].map(|axis| mesh.size(axis));
        let (chunks, strategy) = (config.pipeline.num_chunks, config.pipeline.strategy);
        let micro_batches = config.num_micro_batch(mesh.replicas())?;
        Ok(Self {
            shape: Shape {
                sizes,
                micro_batches,
                chunks,
                strategy,
                order: mesh.order(),
                by_speed: false,
                has_whole_layers: false,
            },
            level: (config.zero.level, PutAway::of(config)),
            row_weights: config.io.row_weights.clone(),
            whole_layers: config.dist.whole_layers.clone(),
            cuts: config.pipeline.cuts.clone().unwrap_or_default(),
            runs: Vec::new(),
        })
    }

    /// The options that say it, where they are not given.
    pub fn settings(&self, given: &Config) -> Vec<(&'static str, Value)> {
        let Shape { sizes: [data, stages, tensor, expert], micro_batches, chunks, strategy, order, .. } = self.shape;
        let counts = [
            ("dist.data_parallel_size", data),
            ("dist.pipeline_parallel_size", stages),
            ("dist.tensor_parallel_size", tensor),
            ("dist.expert_parallel_size", expert),
            ("pipeline.num_micro_batch", micro_batches),
            ("pipeline.num_chunks", chunks),
        ];
        let mut settings: Vec<(&str, Value)> =
            counts.into_iter().map(|(key, count)| (key, count.to_setting())).collect();
        settings.push(("pipeline.strategy", strategy.to_setting()));
        settings.push(("dist.order", order.to_setting()));
        if let Some(weights) = &self.row_weights {
            settings.push(("io.row_weights", weights.to_setting()));
        }
        if let Some(layers) = &self.whole_layers {
            settings.push(("dist.whole_layers", layers.to_setting()));
        }
        settings.push(("zero.level", self.level.0.to_setting()));
        settings.push(match self.level.1 {
            PutAway::Offload(level) => ("offload.level", level.to_setting()),
            PutAway::State => ("offload.optimizer_state", Some(StateTier::Host).to_setting()),
        });
        if !self.cuts.is_empty() {
            settings.push(("pipeline.cuts", self.cuts.to_setting()));
        }
        if !self.runs.is_empty() {
            let runs: Vec<String> = self.runs.iter().map(|run| format!("{}..{}", run.start, run.end)).collect();
            settings.push(("gradient_checkpoint.type", CheckpointType::Collection.to_setting()));
            settings.push(("gradient_checkpoint.runs", runs.to_setting()));
        }
        let default = Config::default();
        // Where micro-batches follow from the batch sizes, they are not said again.
        let follows = given.train.micro_batch_size.is_some() && given.train.global_batch_size.is_some();
        settings.retain(|(key, value)| {
            let is_count = *key == "pipeline.num_micro_batch";
            !is_fixed(given, key) && (default.get(key).as_ref() != Some(value) || is_count && !follows)
        });
        // With one tensor rank there is nothing to look for, and all is whole.
        if given.auto.discover && tensor == 1 {
            settings.push(("auto.discover", false.to_setting()));
        }
        if given.dist.whole_layers.is_some() && tensor == 1 {
            settings.push(("dist.whole_layers", None::<Vec<String>>.to_setting()));
        }
        settings
    }

    /// What is given, with the options that say the rest.
    pub fn config(&self, given: &Config) -> Result<Config> {
        let mut config = given.clone();
        config.set("auto.auto_parallel", false)?;
        reset(&mut config, &SEARCH)?;
        for (key, value) in self.settings(given) {
            config.set(key, value)?;
        }
        Ok(config)
    }

    /// What candidates have in common of which the best one alone is improved: all but cuts, micro-batches and which segments are run
    /// again, where the candidate names some; where it names none, all but these and the levels.
    pub fn kind(&self) -> CandidateKind {
        let Shape { sizes, chunks, strategy, order, by_speed, has_whole_layers, .. } = self.shape;
        let level = (!self.runs.is_empty()).then_some(self.level.0);
        (sizes, chunks, strategy, order, [by_speed, has_whole_layers], level)
    }

    /// What it is called in a list.
    pub fn words(&self) -> String {
        let Shape { sizes: sizes @ [data, stages, ..], micro_batches, chunks, strategy, order, .. } = self.shape;
        let mut words = division(sizes);
        words += &format!(", {micro_batches} micro-batch{}", if micro_batches == 1 { "" } else { "es" });
        if stages > 1 {
            words += &format!(", {strategy}");
        }
        if data > 1 && stages > 1 && order == RankOrder::PipelineDataTensor {
            words += ", a stage's replicas neighbours";
        }
        if let Some(weights) = &self.row_weights {
            let told: Vec<String> = weights.iter().take(WEIGHTS).map(usize::to_string).collect();
            words += &format!(", rows {}{}", told.join(" : "), if weights.len() > WEIGHTS { " : …" } else { "" });
        }
        if let Some(layers) = &self.whole_layers {
            words += &format!(", {} whole", layers.join(" and "));
        }
        if chunks > 1 {
            words += &format!(", {chunks} chunks");
        }
        let (zero, offload) = self.level;
        if zero != ZeroLevel::Off {
            words += &format!(", zero {zero}");
        }
        match offload {
            PutAway::Offload(OffloadLevel::Off) => {}
            PutAway::Offload(level) => words += &format!(", offload {level}"),
            PutAway::State => words += ", the optimizer's state in host memory",
        }
        if !self.runs.is_empty() {
            let again: usize = self.runs.iter().map(ExactSizeIterator::len).sum();
            words += &format!(", {again} segments run again");
        }
        words
    }
}
