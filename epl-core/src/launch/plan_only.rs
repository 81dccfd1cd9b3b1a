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
//! `EPL_PLAN_SETTINGS` has the options that `epl plan` was given: those that the program has not taken are told with the plan.
//!
//! Where stages have different widths, what a rank of another stage holds is known there alone: the closure is run once more as the
//! first rank of each, and its table goes behind the others.
//!
//! No parameter is drawn, no other worker is met, and no step is made. Where a layout is searched and no cluster is described, ranks
//! are started as ever, since the search measures their collectives.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use epl_comm::{Source, Worker, shard_range};

use crate::config::{self, Config, OPTIONS};
use crate::cost::Machine;
use crate::error::{Error, Result};
use crate::memory::{Activations, MemoryEstimate, OptimizerState};
use crate::plan::builder::PlanBuilder;
use crate::probe::planned::PlannedMemory;
use crate::topology::cluster::{Axis, Cluster, Mesh};

/// The variable with the file for the plan.
const FILE: &str = "EPL_PLAN";
/// The one with the file that describes a cluster.
const CLUSTER: &str = "EPL_PLAN_CLUSTER";
/// The one with the options that were asked for, as `key=value`, one a line.
const SETTINGS: &str = "EPL_PLAN_SETTINGS";

/// Whether this process is run for its plan (`epl plan`), and so trains nothing: what a program does before
/// [`launch`](crate::launch), such as writing data, it may leave out then.
pub fn is_planned() -> bool {
    path_in(FILE, |name| std::env::var_os(name)).is_some()
}

/// The path in a variable; none where that is not set, or empty.
fn path_in(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    variable(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The plan that this process is run for.
#[derive(Debug)]
pub(crate) struct WantedPlan {
    /// Where it goes, behind what is there.
    file: PathBuf,
    machine: Option<Machine>,
    /// Options that were asked for.
    asked: Config,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// A step's time, in words.
    predicted: Option<String>,
    /// What a search was given, which may change what it found.
    searched: Option<Config>,
    /// What segments store for backward.
    activations: Stored,
    is_made: bool,
    /// Whether the closure can be run as another rank.
    is_run_again: bool,
    /// As which ranks it is, for what they need.
    further: Vec<usize>,
    /// The one of them as which it is run now, until its table is told.
    now: Option<usize>,
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
    /// What the environment asks for, the same for all launches of a process. The first of them has to build the engine: it ends
    /// with the plan, or with an error, and a program commonly ends with it.
    ///
    /// # Errors
    ///
    /// When the cluster's description cannot be read, or the settings are none.
    pub fn of_process() -> Result<Option<Arc<Self>>> {
        static WANTED: OnceLock<Result<Option<Arc<WantedPlan>>, String>> = OnceLock::new();
        let read = || Self::from_variables(|name| std::env::var_os(name)).map_err(|error| error.to_string());
        WANTED.get_or_init(read).clone().map_err(Error::invalid)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Arc<Self>>> {
        let path = |name: &str| path_in(name, &variable);
        let Some(file) = path(FILE) else { return Ok(None) };
        let machine = path(CLUSTER).map(Machine::load).transpose()?;
        let settings = variable(SETTINGS).unwrap_or_default();
        let asked = asked_for(&settings.to_string_lossy())?;
        Ok(Some(Arc::new(Self { file, machine, asked, told: Mutex::default() })))
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

    /// Notes what a search is given.
    pub fn note_search(&self, config: &Config) {
        self.told().searched = Some(config.clone());
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
        let words = match (told.is_made, told.now) {
            (false, _) => self.words(builder, state, &mut told),
            (true, Some(rank)) => self.table(builder, rank, state, &told),
            (true, None) => return Error::PlanOnly,
        };
        let written = words.and_then(|words| self.write(&words));
        if written.is_ok() {
            (told.is_made, told.now) = (true, None);
        }
        written.err().unwrap_or(Error::PlanOnly)
    }

    fn write(&self, words: &str) -> Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(&self.file);
        file.and_then(|mut file| file.write_all(words.as_bytes())).map_err(|error| Error::file(&self.file, error))
    }

    /// Runs a program as the first rank, then as those that alone know what they need; returns what its launch ends with.
    pub fn of_ranks(&self, run: impl Fn(usize) -> Option<Error>) -> Error {
        self.told().is_run_again = true;
        let ended = self.ended(run(0));
        let further = std::mem::take(&mut self.told().further);
        for rank in further {
            self.told().now = Some(rank);
            let failed = run(rank);
            if self.told().now.take().is_some() {
                let why = failed.map_or("it built no engine".to_string(), |error| error.to_string());
                if let Err(error) = self.write(&format!("\nmemory of rank {rank}: not known: {why}\n")) {
                    return error;
                }
            }
        }
        ended
    }

    /// What a launch ends with, whose closure ended so: the plan is made, or it is not.
    pub fn ended(&self, failed: Option<Error>) -> Error {
        match failed {
            _ if self.told().is_made => Error::PlanOnly,
            Some(error) => error,
            None => Error::invalid(format!(
                "{FILE} asks for the plan of this program, and what it launched ended without an engine; a plan is that of the \
                 first `Engine::build`, `Engine::new` or `Trainer::build`, and the first `epl::launch` of the program must build \
                 it: move what is launched before behind it, or leave it out for a plan"
            )),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan of the first rank, what a rank of each stage needs, and the time of a step.
    fn words(&self, builder: &PlanBuilder, state: OptimizerState, told: &mut Told) -> Result<String> {
        let mesh = builder.mesh();
        let along = mesh.group(Axis::Pipeline, mesh.first());
        let mut ranks: Vec<usize> = mesh.widths().iter().map(|width| along[width.members.start]).collect();
        let mut words = builder.clone().at(mesh.coordinate(ranks[0])).plan()?.to_string();
        words += &self.not_taken(told.searched.as_ref().unwrap_or(&builder.config));
        words += &self.predicted(told);
        words += "\nwhat is frozen once parameters have values, as by `try_map`, is counted as trained\n";
        // How stages of other widths divide what they hold, their own ranks know.
        told.further = if mesh.is_bridged() { ranks.split_off(1) } else { Vec::new() };
        for rank in ranks {
            words += &self.table(builder, rank, state, told)?;
        }
        if !(told.further.is_empty() || told.is_run_again) {
            words += "the stages have different widths: how much the others need is known on their own ranks\n";
        }
        Ok(words)
    }

    /// What a rank needs, and those that are in its place in their stage.
    fn table(&self, builder: &PlanBuilder, rank: usize, state: OptimizerState, told: &Told) -> Result<String> {
        let mesh = builder.mesh();
        let stage = mesh.coordinate(rank).pipeline;
        let of_stage = if mesh.widths().len() > 1 { format!(" of stage {stage}") } else { String::new() };
        let builder = Arc::new(builder.clone().at(mesh.coordinate(rank)));
        let plan = builder.plan()?;
        let micro_batches = plan.micro_batches;
        let mut planned = PlannedMemory::of(builder.clone(), plan, state);
        if let Stored::Known(activations, rows) = &told.activations {
            let rows = shard_range(most_rows(mesh, *rows)?, micro_batches, 0).len().max(1);
            planned = planned.with_activations(Some(activations), rows);
        }
        let all: Vec<usize> = (0..mesh.world_size()).filter(|rank| mesh.coordinate(*rank).pipeline == stage).collect();
        Ok(format!("\nmemory of a rank{of_stage}:\n{}", self.memory(&planned, &all, &told.activations)?))
    }

    /// A step's time, or why it is not told.
    fn predicted(&self, told: &Told) -> String {
        let without = match &self.machine {
            None => {
                "\na step's time is predicted where devices and links are described (`epl plan --cluster FILE`), and the program calls \
                 `Epl::auto_parallel` before it builds\n"
            }
            Some(_) => "\na step's time is predicted where the program calls `Epl::auto_parallel` before it builds\n",
        };
        told.predicted.as_ref().map_or_else(|| without.to_string(), |predicted| format!("\n{predicted}\n"))
    }

    /// A line for each option that was asked for, and that the program has another value of.
    fn not_taken(&self, config: &Config) -> String {
        // A world that is only thought of writes no profile, whatever the program has.
        let other = OPTIONS.iter().filter(|option| {
            let key = option.key();
            option.section != "profile" && self.asked.is_given(&key) && self.asked.get(&key) != config.get(&key)
        });
        let line = |option: &config::OptionSpec| {
            let (asked, has) = ((option.get)(&self.asked), (option.get)(config));
            format!(
                "\n{} = {asked} was asked for, and the program has {has}: it does not read the environment, or its command line \
                 wins",
                option.key()
            )
        };
        let lines: String = other.map(line).collect();
        if lines.is_empty() { lines } else { lines + "\n" }
    }

    /// The table of a rank, and whether it fits the smallest of the devices of its stage that are described.
    fn memory(&self, planned: &PlannedMemory<'_>, of_stage: &[usize], stored: &Stored) -> Result<String> {
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
        let bytes = self.machine.as_ref().and_then(|machine| machine.devices().together(of_stage).bytes);
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

/// Options of the form `key=value`, one a line. Whether they agree depends on what the program has beside them.
fn asked_for(text: &str) -> Result<Config> {
    let mut asked = Config::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let read = line.split_once('=').and_then(|(key, value)| {
            let option = OPTIONS.iter().find(|option| option.key() == key.trim())?;
            Some((option, option.kind.read(value)?))
        });
        let Some((option, value)) = read else {
            return Err(Error::invalid(format!(
                "{SETTINGS} has the line `{line}`, which sets no option; it takes one key=value a line, as `epl plan` writes them"
            )));
        };
        asked.assign(option, &value, config::Origin::CommandLine)?;
    }
    Ok(asked)
}

/// Rows of the replica that has the most of a step's.
fn most_rows(mesh: &Mesh, rows: usize) -> Result<usize> {
    let own = (0..mesh.replicas()).map(|replica| Ok(mesh.rows_of_replica(replica, rows)?.len()));
    Ok(own.collect::<Result<Vec<usize>>>()?.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::SgdConfig;
    use burn::tensor::{DType, Tensor};

    use super::super::in_thought;
    use super::*;
    use crate::engine::{Engine, EngineSettings};
    use crate::launch::Epl;
    use crate::model::chain::Chain;
    use crate::model::place::Place;

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
    fn what_was_asked_for_and_is_not_there_is_told() {
        let wanted = wanted(&[(FILE, "plan"), (SETTINGS, "zero.level=v2\ntrain.seed=7")]).unwrap().unwrap();
        let told = wanted.not_taken(&Config::new().with("train.seed", 7).unwrap());
        let expected = "\nzero.level = \"v2\" was asked for, and the program has \"\": it does not read the environment, or its command \
                        line wins\n";
        assert_eq!(told, expected);
        assert_eq!(wanted.not_taken(&wanted.asked), "");
        for line in ["zero.level", "zero.levle=v1", "zero.level=v9"] {
            let error = asked_for(line).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains("key=value"), "{error}");
        }
    }

    #[derive(Module, Debug)]
    struct Net {
        wide: Linear,
        narrow: Linear,
    }

    fn net(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
        let linear = |size: usize| move |at: &Place| LinearConfig::new(4, size).init(at);
        let net = Net { wide: at.replicate(2, linear(4)), narrow: at.replicate(1, linear(7)) };
        Chain::of(net)
            .first(&["wide"], |net: &Net, rows: &Tensor<2>| net.wide.forward(rows.clone()))
            .then(&["narrow"], |net, hidden, _| net.narrow.forward(hidden))
            .mean_loss(|_, found, _| found.mean())
    }

    /// What is made of a program on three ranks, and what its launch ends with.
    fn made_of(program: impl Fn(Epl) -> Result<()>) -> (String, Error) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan");
        let wanted = wanted(&[(FILE, file.to_str().unwrap())]).unwrap().unwrap();
        let config = Config::new().with("cluster.ranks", 3).unwrap();
        let ended = wanted.of_ranks(|rank| in_thought(&config, &wanted, rank, &program).err());
        (std::fs::read_to_string(file).unwrap_or_default(), ended)
    }

    #[test]
    fn each_stage_of_a_width_of_its_own_has_its_table() {
        let (plan, ended) = made_of(|epl| Engine::build(&epl, net, &SgdConfig::new()).map(|_| ()));
        assert!(matches!(ended, Error::PlanOnly), "{ended}");
        let tables: Vec<&str> = plan.split("\nmemory of a rank of stage ").skip(1).collect();
        let parameters = |table: &&str| table.lines().find(|line| line.starts_with("parameters")).map(str::to_string);
        let bytes = [4 * 20, 4 * 35].map(|bytes| format!(" {bytes} "));
        assert!(tables.len() == 2 && tables[0].starts_with("0:\n") && tables[1].starts_with("1:\n"), "{plan}");
        for (table, bytes) in tables.iter().zip(&bytes) {
            assert!(parameters(table).is_some_and(|line| line.contains(bytes)), "{bytes}: {plan}");
        }
        assert!(!plan.contains("different widths"), "{plan}");
        // A program that does something else as another rank.
        let (plan, ended) = made_of(|epl| match epl.context().world().rank() {
            0 => Engine::build(&epl, net, &SgdConfig::new()).map(|_| ()),
            _ => Err(Error::invalid("no data")),
        });
        assert!(matches!(ended, Error::PlanOnly), "{ended}");
        assert!(plan.ends_with("\nmemory of rank 2: not known: no data\n"), "{plan}");
    }

    #[test]
    fn parameters_that_have_no_values_are_zeros_under_their_paths() {
        let (plan, ended) = made_of(|epl| {
            let built = epl.build(net)?;
            let parameters = built.parameters()?;
            let names = ["narrow.bias", "narrow.weight", "wide.bias", "wide.weight"];
            assert_eq!(parameters.keys().collect::<Vec<_>>(), names);
            let weight = &parameters["narrow.weight"];
            assert_eq!((weight.shape().to_vec(), weight.dtype()), (vec![4, 7], DType::F32));
            assert!(weight.iter::<f32>().all(|value| value == 0.0));
            Engine::new(built, &SgdConfig::new(), EngineSettings::default()).map(|_| ())
        });
        assert!(matches!(ended, Error::PlanOnly) && plan.contains("of stage 1:"), "{ended}: {plan}");
    }

    #[test]
    fn the_replica_with_the_most_rows_counts() {
        let config = Config::new().with("dist.data_parallel_size", 3).unwrap();
        let even = Mesh::from_config(&config).unwrap();
        assert_eq!(most_rows(&even, 8).unwrap(), 3);
        assert_eq!(most_rows(&even.with_row_weights(Some(vec![1, 2, 1])), 8).unwrap(), 4);
    }

    #[test]
    fn a_search_needs_ranks_unless_a_cluster_is_described() {
        let wanted = wanted(&[(FILE, "plan")]).unwrap().unwrap();
        let searching = Config::new().with("auto.auto_parallel", true).unwrap();
        assert_eq!((wanted.needs_ranks(&searching), wanted.needs_ranks(&Config::new())), (true, false));
    }
}
