//! The printed plan.

use core::fmt::{Display, Formatter, Result};

use super::resolved::Plan;
use crate::config::ZeroLevel;
use crate::memory::Tiers;
use crate::model::precision::HalfPrecision;
use crate::params::{ParamOrigin, ParamRecord};
use crate::topology::cluster::Axis;

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(layout) = &self.layout {
            writeln!(f, "{layout}")?;
        }
        writeln!(f, "{}", self.mesh)?;
        writeln!(f, "{}", self.placement)?;
        writeln!(
            f,
            "{} parameters, {} on this rank ({}), {} segments, {} buckets a step",
            self.num_params(),
            self.num_params_held(),
            self.device,
            self.segments.len(),
            self.params.buckets.len() + self.params.tied.len()
        )?;
        if self.stages.count() > 1 {
            self.fmt_stages(f)?;
        }
        self.fmt_recomputation(f)?;
        self.fmt_sharding(f)?;
        self.fmt_findings(f)?;
        self.fmt_records(f)?;
        for (index, bucket) in self.params.buckets.iter().enumerate() {
            writeln!(
                f,
                "  bucket {index}: {} gradients, {} bytes of {:?} over {}{}, after segment {}",
                bucket.members.len(),
                bucket.numel * bucket.dtype.size(),
                bucket.dtype,
                bucket.axis,
                if bucket.sparse { " or the rows that are not zero" } else { "" },
                bucket.after_segment
            )?;
        }
        for bucket in &self.params.tied {
            let stages = &self.params.records[bucket.members[0]].stages;
            writeln!(
                f,
                "  tied over stages {stages:?}: {} gradients, {} bytes of {:?} over them, then over {}, at the end",
                bucket.members.len(),
                bucket.bytes(),
                bucket.dtype,
                bucket.axis
            )?;
        }
        for what in self.over_micro_batch.iter().filter(|_| self.micro_batches > 1) {
            writeln!(
                f,
                "  {what}: over each of the {} micro-batches by itself, not over a step's rows",
                self.micro_batches
            )?;
        }
        for option in &self.exceptions {
            writeln!(f, "  {option}: the result depends on the layout")?;
        }
        self.fmt_burn_layers(f)
    }
}

impl Plan {
    /// How each rank keeps its state, where that is not all of it on the device: what a checkpoint depends on.
    pub(crate) fn state_layout(&self) -> String {
        let mut text = String::new();
        if self.zero != ZeroLevel::Off {
            let sparse = self.params.records.iter().filter(|record| record.sparse).count();
            text += &format!("; ZeRO {} in at most {} buckets, {sparse} sparse", self.zero, self.max_splits);
        }
        if self.offloads() {
            let Tiers { parameters, gradients, state } = self.tiers;
            text += &format!("; parameters on {parameters}, gradients on {gradients}, optimizer state on {state}");
        }
        text + &self.half.map(|half| format!("; mixed precision in {}", half.dtype().name())).unwrap_or_default()
    }

    /// The type in which each parameter is computed with, line by line.
    pub fn types(&self) -> impl Iterator<Item = String> + '_ {
        let width = self.params.records.iter().map(|record| record.name.len()).max().unwrap_or(0);
        self.params.records.iter().map(move |record| {
            let used = self.half.filter(|_| record.half).map_or(record.dtype, HalfPrecision::dtype);
            format!("{:width$}  kept in {:?}, computed with in {used:?}", record.name, record.dtype)
        })
    }

    fn fmt_records(&self, f: &mut Formatter<'_>) -> Result {
        let width = self.params.records.iter().map(|record| record.name.len()).max().unwrap_or(0);
        for record in &self.params.records {
            // A stage of another width would divide it in another way than the one that holds it does.
            let is_elsewhere = self.mesh.is_bridged() && !record.held;
            write!(f, "  {:width$}  {}", record.name, ParamLine { record, is_elsewhere })?;
            if let (Some(layout), Some(graph)) = (&self.layout, record.task_graph) {
                write!(f, ", in {}", layout.task_graphs()[graph])?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// What is sharded, and in which type segments compute.
    fn fmt_sharding(&self, f: &mut Formatter<'_>) -> Result {
        let what = match self.zero {
            ZeroLevel::Off => "",
            ZeroLevel::V0 => "optimizer state",
            ZeroLevel::V1 => "optimizer state and reduced gradients",
            ZeroLevel::V2 => "optimizer state and gradients, reduced in every micro-batch,",
            ZeroLevel::V3 => "optimizer state, gradients and parameters, gathered for a segment at a time,",
        };
        self.fmt_whole(f)?;
        if !what.is_empty() {
            writeln!(f, "  ZeRO {}: {what} are sharded over the replicas", self.zero)?;
        }
        if let Some(half) = self.half {
            let count = self.params.records.iter().filter(|record| record.half).count();
            write!(f, "  mixed precision: segments compute in {:?} with {count} of the parameters", half.dtype())?;
            let full: Vec<&str> = self.full_segments.iter().map(|segment| &*self.segments[*segment]).collect();
            match full.is_empty() {
                true => writeln!(f)?,
                false => writeln!(f, ", {} in F32", full.join(", "))?,
            }
        }
        Ok(())
    }

    /// What is not cut over the tensor axis, though it could be: vectors are small.
    fn fmt_whole(&self, f: &mut Formatter<'_>) -> Result {
        let (ranks, records) = (self.mesh.size(Axis::Tensor), &self.params.records);
        if ranks == 1 {
            return Ok(());
        }
        if !records.iter().any(|record| record.is_cut_over(Axis::Tensor)) {
            return writeln!(f, "  nothing is cut over the tensor axis: its {ranks} ranks hold and run the same");
        }
        let is_whole = |record: &&ParamRecord| record.global_shape.len() > 1 && !record.is_cut_over(Axis::Tensor);
        let mut whole: Vec<&ParamRecord> = records.iter().filter(is_whole).collect();
        whole.sort_by_key(|record| core::cmp::Reverse(record.global_shape.iter().product::<usize>()));
        let Some(largest) = whole.first() else { return Ok(()) };
        let others = match whole.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} smaller"),
        };
        writeln!(f, "  whole on each of the {ranks} ranks of the tensor axis: `{}`{others}", largest.name)
    }

    /// What is promised of layers of Burn that draw, keep statistics, or mix types.
    fn fmt_burn_layers(&self, f: &mut Formatter<'_>) -> Result {
        for layer in self.drawing_layers() {
            writeln!(
                f,
                "  `{layer}` draws by Burn's generator: the same again on this layout; that of `epl::nn` does so on any layout"
            )?;
        }
        for layer in self.batch_norms() {
            writeln!(
                f,
                "  `{layer}` takes statistics of each replica and micro-batch by itself, and the mean of the replicas' running \
                 ones after a step; that of `epl::nn` takes them over all replicas"
            )?;
        }
        for layer in self.burn_layers.mixing.iter().filter(|_| self.half.is_some()) {
            writeln!(f, "  `{layer}` would mix types in 16 bits: its segment computes in F32")?;
        }
        Ok(())
    }

    /// What is run again in backward.
    fn fmt_recomputation(&self, f: &mut Formatter<'_>) -> Result {
        for run in &self.recompute {
            let names = self.segments[run.clone()].join(", ");
            writeln!(f, "  {names}: only what enters is kept; run again in backward")?;
        }
        if let Some(bytes) = self.recompute_budget {
            writeln!(f, "  at most {bytes} bytes are stored for backward: the first step measures what is run again")?;
        }
        Ok(())
    }

    /// The stages, and the timeline of a step in which a backward takes as long as two forwards.
    fn fmt_stages(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "  {}", self.stages)?;
        writeln!(f, "  {}, {} micro-batches:", self.schedule, self.micro_batches)?;
        match self.timeline() {
            Ok(timeline) => timeline.to_string().lines().try_for_each(|line| writeln!(f, "    {line}")),
            Err(error) => writeln!(f, "    {error}"),
        }
    }
}

struct ParamLine<'a> {
    record: &'a ParamRecord,
    /// Whether this rank does not know how it is divided.
    is_elsewhere: bool,
}

impl Display for ParamLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let record = self.record;
        write!(f, "{:?} {:?}", record.global_shape, record.dtype)?;
        if !self.is_elsewhere {
            for cut in &record.cuts {
                write!(f, ", dim {} over {} [{}..{}]", cut.dim, cut.axis, cut.range.start, cut.range.end)?;
            }
            if record.cuts.is_empty() {
                write!(f, ", replicated")?;
            }
        }
        write!(f, ", reduced over {}", record.reduced_over())?;
        if record.segments.len() > 1 {
            write!(f, ", tied over segments {:?}", record.segments)?;
        }
        if record.is_tied_over_stages() {
            write!(f, ", on stages {:?}", record.stages)?;
        } else if !record.held {
            write!(f, ", on stage {}", record.stages[0])?;
        }
        if !record.trainable {
            write!(f, ", frozen")?;
        }
        if record.origin == ParamOrigin::Broadcast {
            write!(f, ", broadcast from its first rank")?;
        }
        Ok(())
    }
}
