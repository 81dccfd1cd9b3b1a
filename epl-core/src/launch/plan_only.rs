//! A program that is run for its plan, as `epl plan -- PROGRAM` does.
//!
//! ```text
//! EPL_PLAN=FILE           launch ─▶ one rank of a world that is only thought of ─▶ the program's closure
//! EPL_PLAN_CLUSTER=FILE     its ranks: of the cluster that is described             │ auto_parallel: a predicted step
//!                           else as many as the configuration asks for              ▼
//!                                                              Engine::build, Engine::new: the plan, into the file
//!                                                                and an error, by which the closure ends
//! ```
//!
//! No parameter is drawn, no other worker is met, and no step is made. Where a layout is searched and no cluster is described, ranks
//! are started as ever, since the search measures their collectives.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use epl_comm::{Source, Worker, shard_range};

use crate::config::Config;
use crate::cost::Machine;
use crate::error::{Error, Result};
use crate::memory::{Activations, MemoryEstimate, OptimizerState};
use crate::plan::builder::PlanBuilder;
use crate::probe::planned::PlannedMemory;
use crate::topology::cluster::{Axis, Cluster};

/// The variable with the file for the plan.
const FILE: &str = "EPL_PLAN";
/// The one with the file that describes a cluster.
const CLUSTER: &str = "EPL_PLAN_CLUSTER";

/// The plan that this process is run for.
#[derive(Debug)]
pub(crate) struct WantedPlan {
    /// Where it goes, behind what is there.
    file: PathBuf,
    machine: Option<Machine>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// A step's time, in words.
    predicted: Option<String>,
    /// What segments store for backward.
    activations: Stored,
    is_made: bool,
}

/// What is known of activations.
#[derive(Debug, Default)]
enum Stored {
    /// The program has given no batch.
    #[default]
    Unasked,
    /// The program does not count.
    Uncounted,
    /// With the rows of a step, over all replicas.
    Known(Activations, usize),
    /// Why they could not be measured.
    Failed(String),
}

impl WantedPlan {
    /// What the environment asks for: the same for all launches of a process, of which the first engine is planned.
    ///
    /// # Errors
    ///
    /// When the cluster's description cannot be read.
    pub fn of_process() -> Result<Option<Arc<Self>>> {
        static WANTED: OnceLock<Result<Option<Arc<WantedPlan>>, String>> = OnceLock::new();
        let read = || Self::from_variables(|name| std::env::var_os(name)).map_err(|error| error.to_string());
        WANTED.get_or_init(read).clone().map_err(Error::invalid)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Arc<Self>>> {
        let path = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(file) = path(FILE) else { return Ok(None) };
        let machine = path(CLUSTER).map(Machine::load).transpose()?;
        Ok(Some(Arc::new(Self { file, machine, told: Mutex::default() })))
    }

    /// The cluster that is described.
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// Whether ranks are needed, and one that is thought of is not enough.
    pub fn needs_ranks(&self, config: &Config) -> bool {
        self.machine.is_none() && config.searches()
    }

    /// Refuses to be one process of several.
    ///
    /// # Errors
    ///
    /// When this one is, or it is not known.
    pub fn check_alone(&self, config: &Config) -> Result<()> {
        let worker = Worker::from_environment(config.cluster.ranks)?;
        match worker.filter(|worker| worker.workers() > 1 || worker.source() == Source::EplLaunch) {
            None => Ok(()),
            Some(worker) => Err(Error::invalid(format!(
                "{FILE} asks for a plan, which one process makes, and this is worker {} of {} ({}); start the program itself, with \
                 cluster.ranks = {} or a cluster's description for the ranks",
                worker.worker(),
                worker.workers(),
                worker.source(),
                worker.world_size()
            ))),
        }
    }

    /// The ranks of the plan; none: those that the configuration asks for.
    ///
    /// # Errors
    ///
    /// When `cluster.ranks` is not the number of devices that are described.
    pub fn cluster(&self, config: &Config) -> Result<Option<Cluster>> {
        let Some(machine) = &self.machine else { return Ok(None) };
        let cluster = machine.cluster()?;
        match config.cluster.ranks.filter(|ranks| *ranks != cluster.world_size()) {
            None => Ok(Some(cluster)),
            Some(ranks) => Err(Error::invalid(format!(
                "cluster.ranks = {ranks}, and the cluster that is described has {} devices; leave one of both out",
                cluster.world_size()
            ))),
        }
    }

    /// Notes what a step is predicted to take.
    pub fn predict(&self, words: String) {
        self.told().predicted = Some(words);
    }

    /// Notes what segments store for backward, with the rows of a step; none where the program does not count.
    pub fn note_activations(&self, measured: Result<Option<(Activations, usize)>>) {
        self.told().activations = match measured {
            Ok(Some((activations, rows))) => Stored::Known(activations, rows),
            Ok(None) => Stored::Uncounted,
            Err(error) => Stored::Failed(error.to_string()),
        };
    }

    /// Writes the plan of the first engine that is built; what comes back ends the program's closure. On several ranks whichever
    /// comes first writes that of the first rank, as all can.
    pub fn made(&self, builder: &PlanBuilder, state: OptimizerState) -> Error {
        let mut told = self.told();
        if told.is_made {
            return Error::PlanOnly;
        }
        let written = self.words(builder, state, &told).and_then(|words| {
            let file = OpenOptions::new().create(true).append(true).open(&self.file);
            file.and_then(|mut file| file.write_all(words.as_bytes())).map_err(|error| Error::file(&self.file, error))
        });
        told.is_made = written.is_ok();
        written.err().unwrap_or(Error::PlanOnly)
    }

    /// What a launch ends with, whose closure ended so: the plan is made, or it is not.
    pub fn ended(&self, failed: Option<Error>) -> Error {
        match failed {
            _ if self.told().is_made => Error::PlanOnly,
            Some(error) => error,
            None => Error::invalid(format!(
                "{FILE} asks for the plan of this program, and what it launched ended without an engine; a plan is that of the \
                 first `Engine::build`, `Engine::new` or `Trainer::build`"
            )),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan of the first rank, what a rank of each stage needs, and the time of a step.
    fn words(&self, builder: &PlanBuilder, state: OptimizerState, told: &Told) -> Result<String> {
        let mesh = builder.mesh();
        let along = mesh.group(Axis::Pipeline, mesh.first());
        let ranks: Vec<usize> = mesh.widths().iter().map(|width| along[width.members.start]).collect();
        let builder_of = |rank: usize| builder.clone().at(mesh.coordinate(rank));
        let mut words = builder_of(ranks[0]).plan()?.to_string();
        // How stages of other widths divide what they hold, their own ranks know.
        let known = if mesh.is_bridged() { 1 } else { ranks.len() };
        for (stage, rank) in ranks.iter().enumerate().take(known) {
            let of_stage = if ranks.len() > 1 { format!(" of stage {stage}") } else { String::new() };
            words += &format!("\nmemory of a rank{of_stage}:\n");
            let builder = Arc::new(builder_of(*rank));
            let plan = builder.plan()?;
            let micro_batches = plan.micro_batches;
            let mut planned = PlannedMemory::of(builder, plan, state);
            if let Stored::Known(activations, rows) = &told.activations {
                let own = shard_range(*rows, mesh.replicas(), 0).len();
                let rows = shard_range(own, micro_batches, 0).len().max(1);
                planned = planned.with_activations(Some(activations), rows);
            }
            words += &self.memory(&planned, *rank, &told.activations)?;
        }
        if known < ranks.len() {
            words += "the stages have different widths: how much the others need is known on their own ranks\n";
        }
        words += "what is frozen once parameters have values, as by `try_map`, is counted as trained\n";
        let without = match &self.machine {
            None => {
                "\na step's time is predicted where devices and links are described (`epl plan --cluster FILE`), and the program calls \
                 `Epl::auto_parallel` before it builds\n"
            }
            Some(_) => "\na step's time is predicted where the program calls `Epl::auto_parallel` before it builds\n",
        };
        words += &told.predicted.as_ref().map_or_else(|| without.to_string(), |predicted| format!("\n{predicted}\n"));
        Ok(words)
    }

    /// The table of a rank, and whether it fits the device that is described.
    fn memory(&self, planned: &PlannedMemory<'_>, rank: usize, stored: &Stored) -> Result<String> {
        let mut estimate: MemoryEstimate = planned.estimate()?;
        let why = match stored {
            Stored::Unasked => {
                Some("not known: they are of a batch, which `Epl::auto_parallel` is given, and it is not called")
            }
            Stored::Failed(why) => Some(why.as_str()),
            Stored::Uncounted | Stored::Known(..) => None,
        };
        if let Some(why) = why {
            estimate.lines.iter_mut().filter(|line| line.bytes.is_none()).for_each(|line| line.why = why.to_string());
        }
        let bytes = self.machine.as_ref().and_then(|machine| machine.devices().together(&[rank]).bytes);
        let fits = bytes.map(|bytes| match planned.check(bytes) {
            Ok(_) if estimate.unknown().next().is_some() => {
                format!("it fits into the device's {bytes} bytes, but for what is not known\n")
            }
            Ok(_) => format!("it fits into the device's {bytes} bytes\n"),
            Err(error) => format!("{error}\n"),
        });
        Ok(format!("{estimate}{}", fits.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(variables: &[(&str, &str)]) -> Result<Option<Arc<WantedPlan>>> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        WantedPlan::from_variables(find)
    }

    #[test]
    fn nothing_is_wanted_where_nothing_is_said() {
        assert!(wanted(&[]).unwrap().is_none());
        assert!(wanted(&[(FILE, "")]).unwrap().is_none());
        // Without a file for a plan a cluster means nothing.
        assert!(wanted(&[(CLUSTER, "nowhere.toml")]).unwrap().is_none());
        let error = wanted(&[(FILE, "plan"), (CLUSTER, "nowhere.toml")]).unwrap_err().to_string();
        assert!(error.starts_with("nowhere.toml: "), "{error}");
    }

    #[test]
    fn what_ends_without_an_engine_says_so_and_a_failure_is_told_as_it_is() {
        let wanted = wanted(&[(FILE, "plan")]).unwrap().unwrap();
        assert!(wanted.ended(None).to_string().contains("ended without an engine"));
        assert_eq!(wanted.ended(Some(Error::invalid("no data"))).to_string(), "no data");
        wanted.told().is_made = true;
        assert!(matches!(wanted.ended(Some(Error::invalid("no data"))), Error::PlanOnly));
    }

    #[test]
    fn a_search_needs_ranks_unless_a_cluster_is_described() {
        let wanted = wanted(&[(FILE, "plan")]).unwrap().unwrap();
        let searching = Config::new().with("auto.auto_parallel", true).unwrap();
        assert_eq!((wanted.needs_ranks(&searching), wanted.needs_ranks(&Config::new())), (true, false));
    }
}
