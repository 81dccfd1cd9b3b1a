//! Starting ranks as threads, and ending them together.

use core::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::thread;

use super::board::Board;
use super::hosts::PretendHosts;
use super::transport::LocalTransport;
use super::world::{LocalWorld, Watch};
use crate::error::{Error, Result};
use crate::hierarchy::{self, Level, Medium};
use crate::host::ranks::{Program, Ranks, values_of};
use crate::pending::{Helpers, check_lanes};
use crate::process_group::{ProcessGroup, RankState};
use crate::rank::Rank;
use crate::transport::Transport;

/// What a rank's group goes over, given its place among the threads.
type Over<'a> = dyn Fn(Arc<LocalTransport>) -> Result<Arc<dyn Transport>> + Sync + 'a;

/// The name of the group of all ranks.
const WORLD: &str = "world";

/// What is small unless it is said otherwise: where one synchronisation less outweighs what is computed more than once.
pub(super) const EAGER_LIMIT: usize = 8 << 10;

/// Runs `f` once for each of `ranks` ranks, as [`Launcher::run`] does, with a launcher's defaults.
///
/// ```
/// use epl_comm::{Error, local};
///
/// assert_eq!(local::run(3, |group| Ok::<_, Error>(group.rank() * 10)), Ok(vec![0, 10, 20]));
/// // The others do not wait for a rank that fails: the run ends, with its error.
/// let ended = local::run(2, |group| if group.rank() == 1 { Err(Error::invalid("no data")) } else { group.barrier() });
/// let (rank, error) = ended.unwrap_err();
/// assert_eq!((rank.0, error.to_string().contains("no data")), (1, true));
/// ```
///
/// # Errors
///
/// See [`Launcher::run`].
///
/// # Panics
///
/// See [`Launcher::run`].
pub fn run<T, E>(ranks: usize, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
where
    T: Send,
    E: From<Error> + Display + Send,
{
    Launcher::new(ranks).run(f)
}

/// Starts ranks as threads, and watches them.
///
/// ```
/// use std::time::Duration;
/// use epl_comm::{Error, local};
///
/// let ended = local::Launcher::new(2).time_limit(Duration::from_millis(200)).run(|group| {
///     if group.rank() == 1 {
///         std::thread::sleep(Duration::from_millis(500));
///     }
///     group.barrier()
/// });
/// let Err((rank, error @ Error::Timeout { .. })) = ended else { panic!("{ended:?}") };
/// assert_eq!(rank.0, 1);
/// assert!(error.to_string().contains("for rank 1, which has made no call"));
/// ```
///
/// The time limit is looked at ten times a second.
pub type Launcher = crate::launch::Launcher<InProcess>;

/// Ranks that are threads of this process.
#[derive(Clone, Debug)]
pub struct InProcess {
    ranks: usize,
    /// Ranks of a host, then of what hosts lie in.
    hosts: Vec<usize>,
    check_order: bool,
    eager_limit: usize,
}

impl Launcher {
    /// So many ranks, a time limit of half an hour, the order of calls not compared.
    pub fn new(ranks: usize) -> Self {
        Self::of(InProcess { ranks, hosts: Vec::new(), check_order: false, eager_limit: EAGER_LIMIT })
    }

    /// Compares in which order every two ranks make the calls in which both take part, over all their groups: another
    /// one is an [`Error::Order`]. Without this, calls that are started in different orders on different groups may
    /// come to a good end here, but hang elsewhere. Sends and receives are not compared.
    pub fn check_order(mut self) -> Self {
        self.kind.check_order = true;
        self
    }

    /// The largest buffer, in bytes, that a rank leaves behind in a collective instead of waiting until the others are
    /// done with it; 8 KiB if nothing is said. The results are the same bits, whatever it is.
    pub fn eager_limit(mut self, bytes: usize) -> Self {
        self.kind.eager_limit = bytes;
        self
    }

    /// Takes so many neighbouring ranks for those of one host: collectives over several of them go through one rank of
    /// each, as they do between machines. To see how a program does there; a single host is faster without. Said again,
    /// with a multiple: those hosts lie in larger ones, as processes with several ranks lie in machines.
    ///
    /// Ranks that wait for each other in a circle may then be found by the time limit only.
    pub fn hosts_of(mut self, ranks: usize) -> Self {
        self.kind.hosts.push(ranks);
        self
    }

    /// Runs `f` once for each rank, each on a thread of its own, and returns what each returned.
    ///
    /// Each rank works inside its own rayon pool of (cores ÷ ranks) threads, at least one, so that the loops of Flex
    /// do not fight over one pool. When this returns, no thread of it is left, but for the idle helper threads of
    /// groups that outlive it.
    ///
    /// A rank that returns an error, panics or unwinds releases the others from whatever collective they wait in; so
    /// does one that returns while others wait for it.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use epl_comm::{Error, ReduceOp, local};
    ///
    /// let sums = local::run(2, |group| {
    ///     let x = Tensor::<1>::full([1], group.rank() as f32 + 1.0, &Device::flex());
    ///     Ok::<_, Error>(group.all_reduce(x, ReduceOp::Sum)?.into_scalar::<f32>())
    /// });
    /// assert_eq!(sums.ok(), Some(vec![3.0, 3.0]));
    /// ```
    ///
    /// # Errors
    ///
    /// When a rank did not succeed, or a collective failed, even if every rank made up for it and returned well: the
    /// failure that came first, with the rank that caused it. Where no single rank did (two calls that do not fit,
    /// ranks that wait for each other), the rank is the lowest of those that the error names.
    ///
    /// # Panics
    ///
    /// When the conversion into `E` panics; the ranks have been released by then.
    pub fn run<T, E>(self, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        values_of(f, |program| self.run_program(program))
    }

    fn run_program<E>(self, program: &Program<'_, E>) -> Result<(), (Rank, E)>
    where
        E: From<Error> + Display + Send,
    {
        let [per_host, larger @ ..] = &*self.kind.hosts.clone() else {
            return self.run_over(&|transport| Ok(transport), program);
        };
        check_hosts(&self.kind.hosts).map_err(|error| (Rank(0), error.into()))?;
        let medium = OnceLock::<Arc<dyn Medium>>::new();
        let over = |transport: Arc<LocalTransport>| {
            let (members, rank) = (transport.members().to_vec(), transport.rank());
            let hosts = || {
                let smallest: Arc<dyn Medium> = Arc::new(PretendHosts::new(transport.world.clone(), *per_host));
                larger.iter().fold(smallest, |hosts, per_host| {
                    Arc::new(Level::new(hosts, members.iter().map(|rank| rank.0 / per_host).collect()))
                })
            };
            hierarchy::group(medium.get_or_init(hosts), WORLD, WORLD, members.clone(), rank)
        };
        self.run_over(&over, program)
    }

    /// Runs a program with groups over something else than the threads' memory.
    pub(crate) fn run_over<E>(self, over: &Over<'_>, program: &Program<'_, E>) -> Result<(), (Rank, E)>
    where
        E: From<Error> + Display + Send,
    {
        let Self { kind: InProcess { ranks, check_order, eager_limit, .. }, options } = self;
        if ranks == 0 {
            return Err((Rank(0), Error::invalid("a world of 0 ranks; run at least 1").into()));
        }
        check_lanes(options.lanes).map_err(|error| (Rank(0), error.into()))?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let helpers = Helpers::default();
        let rank_states = (0..ranks).map(|_| RankState::new(helpers.clone())).collect();
        let world = Arc::new(LocalWorld::new(rank_states, cores, Watch { options, check_order, eager_limit }));
        let board = Arc::new(Board::new(WORLD, (0..ranks).map(Rank).collect(), &world));
        let group = |rank: Rank| {
            let transport = Arc::new(LocalTransport::new(world.clone(), board.clone(), rank.0));
            Ok(ProcessGroup::with_state(over(transport)?, world.rank_state(rank).clone()))
        };
        let threads = Ranks::new(&*world, 0..ranks, ranks);
        let ended = threads.run(group, program);
        helpers.join();
        threads.judge(ended)
    }
}

/// Whether hosts of so many ranks each lie whole in the next ones.
fn check_hosts(hosts: &[usize]) -> Result<()> {
    if hosts.contains(&0) {
        return Err(Error::invalid("hosts of 0 ranks; give each at least 1"));
    }
    match hosts.windows(2).find(|pair| !pair[1].is_multiple_of(pair[0])) {
        Some(pair) => Err(Error::invalid(format!(
            "hosts of {} ranks in hosts of {}; the second is a multiple of the first",
            pair[0], pair[1]
        ))),
        None => Ok(()),
    }
}
