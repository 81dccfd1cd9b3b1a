//! What no layout may change: with another number of replicas or micro-batches some layers compute something else, and files that are
//! divided are read by the replicas that opened them.

use super::candidate::is_fixed;
use super::judge::Judge;
use crate::config::Config;
use crate::error::Result;
use crate::topology::cluster::Mesh;

/// What stays as it is given, or as a run without a search has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kept {
    /// Replicas, and how they divide rows.
    pub replicas: Option<usize>,
    pub micro_batches: Option<usize>,
    /// By rank, the replica whose files it reads.
    readers: Option<Vec<usize>>,
    /// What stays that is not given, and why.
    pub reasons: Vec<String>,
}

impl Kept {
    /// What stays in a search over all devices.
    ///
    /// # Errors
    ///
    /// When what is given has no number of replicas or micro-batches, and one has to stay.
    pub fn of(judge: &Judge<'_>, given: &Config) -> Result<Self> {
        // All columns are of one model.
        let builder = judge.columns.values().flatten().map(|column| &column.builder).next();
        let (over_micro_batch, over_replica) =
            builder.map_or_else(Default::default, |builder| (builder.over_micro_batch(), builder.over_replica()));
        let clips_own = given.train.clip_norm.is_some() && !given.communication.clip_after_allreduce;
        if over_micro_batch.is_empty() && !clips_own && !given.io.slicing {
            return Ok(Self::default());
        }
        let mesh = || Ok::<_, crate::Error>(Mesh::on_cluster(judge.cluster, given)?);
        let replicas = match given.dist.data_parallel_size {
            Some(data) => data,
            None => mesh()?.replicas(),
        };
        let micro_batches = given.num_micro_batch(replicas)?;
        let mut why = Vec::new();
        if !over_replica.is_empty() {
            why.push(format!("{}, over each replica's own rows", over_replica.join(", ")));
        } else if !over_micro_batch.is_empty() && micro_batches > 1 {
            why.push(format!(
                "{}, over rows of a micro-batch that follow from the replicas",
                over_micro_batch.join(", ")
            ));
        }
        if clips_own {
            why.push("each replica's own norm, as communication.clip_after_allreduce = false".to_string());
        }
        if given.io.slicing {
            why.push("io.slicing = true, whose files ranks have opened".to_string());
        }
        let kept = Self {
            replicas: (!why.is_empty()).then_some(replicas),
            micro_batches: (!over_micro_batch.is_empty()).then_some(micro_batches),
            readers: if given.io.slicing { Some(readers(&mesh()?)) } else { None },
            reasons: Vec::new(),
        };
        Ok(kept.told(given, &why, over_micro_batch))
    }

    fn told(mut self, given: &Config, why: &[String], over_micro_batch: &[&str]) -> Self {
        if let Some(replicas) = self.replicas.filter(|_| !is_fixed(given, "dist.data_parallel_size")) {
            self.reasons.push(format!(
                "{replicas} replica{}, as without a search ({}); give dist.data_parallel_size for others",
                if replicas == 1 { "" } else { "s" },
                why.join("; ")
            ));
        }
        let follows = given.train.micro_batch_size.is_some() && given.train.global_batch_size.is_some();
        let is_said = is_fixed(given, "pipeline.num_micro_batch") || follows;
        if let Some(number) = self.micro_batches.filter(|_| !is_said) {
            self.reasons.push(format!(
                "{number} micro-batch{}, as without a search ({}, over the rows of one); give pipeline.num_micro_batch for others",
                if number == 1 { "" } else { "es" },
                over_micro_batch.join(", ")
            ));
        }
        self
    }

    /// Whether ranks that are divided so, in the order of a configuration, compute and read the same.
    pub fn allows(&self, judge: &Judge<'_>, config: &Config, sizes: [usize; 4]) -> bool {
        let reads =
            || judge.mesh_of(config, config.dist.order, sizes).is_ok_and(|mesh| Some(readers(&mesh)) == self.readers);
        self.replicas.is_none_or(|replicas| replicas == sizes[0]) && (self.readers.is_none() || reads())
    }
}

/// By rank, its replica.
fn readers(mesh: &Mesh) -> Vec<usize> {
    (0..mesh.world_size()).map(|rank| mesh.replica(rank)).collect()
}
