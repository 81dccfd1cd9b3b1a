//! Reads who a worker is from environment variables.

use core::str::FromStr;

use super::who::{Carrier, Launch, MeetingPoint, SECRET, Source, Worker};
use crate::error::{Error, Result};
use crate::rendezvous::Secret;

/// The variable of the devices that a process may see.
const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// An environment.
#[derive(Clone, Copy)]
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

/// A number of processes and one of them, as two variables say.
#[derive(Clone, Copy)]
struct Seat {
    source: Source,
    names: [&'static str; 2],
    worker: usize,
    workers: usize,
}

/// The variables of a number and of how many there are, and of the number on the host.
const TORCHRUN: [&str; 3] = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
const OPEN_MPI: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
const PMI: [&str; 3] = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"];
const SLURM: [&str; 3] = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"];
const EPL_LAUNCH: [&str; 3] = ["EPL_LAUNCH_WORKER", "EPL_LAUNCH_WORKERS", "EPL_LAUNCH_LOCAL_WORKER"];

pub(super) fn read(variable: &dyn Fn(&str) -> Option<String>, local_ranks: Option<usize>) -> Result<Option<Worker>> {
    let variables = Variables(variable);
    let open_mpi = variables.seat(Source::OpenMpi, OPEN_MPI)?;
    let mpi = open_mpi.map_or_else(|| variables.seat(Source::Pmi, PMI), |seat| Ok(Some(seat)))?;
    if let Some(seat) = variables.seat(Source::EplLaunch, EPL_LAUNCH)? {
        return variables.of_epl_launch(seat, mpi, local_ranks).map(Some);
    }
    for name in ["EPL_LAUNCH_LOCAL_RANKS", "EPL_LAUNCH_TRANSPORT", "EPL_LAUNCH_RENDEZVOUS"] {
        if variables.get(name).is_some() {
            return Err(half(name, EPL_LAUNCH[0]));
        }
    }
    let torchrun = variables.seat(Source::Torchrun, TORCHRUN)?;
    if let (Some(one), Some(other)) = (torchrun, mpi) {
        agree(one, other)?;
    }
    let is_step = variables.get("SLURM_STEP_ID").is_some();
    let slurm = if is_step { variables.seat(Source::Slurm, SLURM)? } else { None };
    let Some(seat) = torchrun.or(mpi).or(slurm) else { return Ok(None) };
    let meeting_point = variables.of_master()?;
    // A step of Slurm is MPI's as a rule; who says where to meet does not need it.
    let is_mpi = mpi.is_some() || (torchrun.is_none() && meeting_point.is_none());
    let carrier = match (seat.workers, is_mpi) {
        (1, _) => Carrier::Threads,
        (_, true) => Carrier::Mpi,
        (_, false) => Carrier::Nccl,
    };
    let Seat { source, worker, workers, .. } = seat;
    let local_name = match source {
        Source::Torchrun => TORCHRUN[2],
        Source::OpenMpi => OPEN_MPI[2],
        Source::Pmi => PMI[2],
        _ => SLURM[2],
    };
    let local_worker = variables.number(local_name)?;
    let local_ranks = local_ranks.unwrap_or(1);
    let listed_devices = variables.get(DEVICES).map(|list| list.split(',').count());
    let restart = 0;
    Ok(Some(Worker {
        workers,
        worker,
        local_ranks,
        local_worker,
        listed_devices,
        carrier,
        meeting_point,
        restart,
        source,
    }))
}

impl Variables<'_> {
    fn get(self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr>(self, name: &str, what: &str) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|_| joining(format!("{name} = `{value}`: not {what}")))
    }

    fn number(self, name: &str) -> Result<Option<usize>> {
        self.parsed(name, "a whole number from 0")
    }

    /// The number of a process and how many there are; none where neither is told.
    fn seat(self, source: Source, [worker, workers, _]: [&'static str; 3]) -> Result<Option<Seat>> {
        let names = [worker, workers];
        match (self.number(worker)?, self.number(workers)?) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(half(worker, workers)),
            (None, Some(_)) => Err(half(workers, worker)),
            (Some(number), Some(count)) if number >= count => Err(joining(format!(
                "{worker} = {number}, {workers} = {count}: they are numbered from 0 to {workers} − 1"
            ))),
            (Some(number), Some(count)) => Ok(Some(Seat { source, names, worker: number, workers: count })),
        }
    }

    fn needed<T>(self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| half(EPL_LAUNCH[0], name))
    }

    fn of_epl_launch(self, seat: Seat, mpi: Option<Seat>, asked: Option<usize>) -> Result<Worker> {
        let [ranks, transport, rendezvous] =
            ["EPL_LAUNCH_LOCAL_RANKS", "EPL_LAUNCH_TRANSPORT", "EPL_LAUNCH_RENDEZVOUS"];
        let local_ranks = self.needed(ranks, self.number(ranks)?)?;
        let text: String = self.needed(transport, self.get(transport))?;
        if let Some(asked) = asked.filter(|asked| *asked != local_ranks) {
            // Threads of one process are the ranks of all workers that the user wanted.
            let remedy = match (seat.workers, text.as_str()) {
                (1, "threads") => format!(
                    "`epl-launch` runs all {local_ranks} ranks, which is `--num_workers` times `--gpu_per_worker`, as threads \
                     of this one process; leave `cluster.ranks` out of the program, or set it to {local_ranks}; or have \
                     processes of {asked} ranks each by `--start mpi`, which the program must be built for"
                ),
                _ => format!("give `epl-launch` `--gpu_per_worker {asked}`, or the program no `cluster.ranks`"),
            };
            return Err(joining(format!(
                "{ranks} = {local_ranks}, and the program asks for {asked} ranks a worker (`cluster.ranks`); {remedy}"
            )));
        }
        let carrier = text.parse().map_err(|error| joining(format!("{transport} = {error}")))?;
        if let (Carrier::Mpi, Some(mpi)) = (carrier, mpi) {
            agree(seat, mpi)?;
        }
        let meeting_point = match (self.get(rendezvous), self.get(SECRET)) {
            (Some(address), Some(_)) => {
                Some(MeetingPoint { address, secret: self.secret()?, is_hosted_by_first: false })
            }
            (Some(_), None) => return Err(half(rendezvous, SECRET)),
            (None, _) => None,
        };
        let restart = restarts(self.0)?;
        let local_worker = self.number(EPL_LAUNCH[2])?;
        let Seat { source, worker, workers, .. } = seat;
        let listed_devices = None;
        Ok(Worker {
            workers,
            worker,
            local_ranks,
            local_worker,
            listed_devices,
            carrier,
            meeting_point,
            restart,
            source,
        })
    }

    /// Where torchrun's variables say that workers meet. It has its own store there, if it is itself that set them, and
    /// ours is at the next port then.
    fn of_master(self) -> Result<Option<MeetingPoint>> {
        let [host, port] = ["MASTER_ADDR", "MASTER_PORT"];
        let (host, port) = match (self.get(host), self.parsed::<u16>(port, "a port")?) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(half(host, port)),
            (None, Some(_)) => return Err(half(port, host)),
            (Some(host), Some(port)) => (host, port),
        };
        // Who does not need to meet, as MPI brings them together, need not have a secret.
        if self.get(SECRET).is_none() {
            return Ok(None);
        }
        let is_taken = self.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = if is_taken {
            port.checked_add(1).ok_or_else(|| joining(format!("MASTER_PORT = {port}: there is no port after it")))?
        } else {
            port
        };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        Ok(Some(MeetingPoint { address: format!("{host}:{port}"), secret: self.secret()?, is_hosted_by_first: true }))
    }

    fn secret(self) -> Result<Secret> {
        let text = self.get(SECRET).unwrap_or_default();
        Secret::from_bytes(text.as_bytes()).map_err(|error| joining(format!("{SECRET}: {error}")))
    }
}

pub(super) fn launch(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
    let restarts = restarts(variable)?;
    Ok(Variables(variable).get("EPL_LAUNCH_ID").map(|id| Launch { id, restarts }))
}

fn restarts(variable: &dyn Fn(&str) -> Option<String>) -> Result<u32> {
    Ok(Variables(variable).parsed("EPL_LAUNCH_RESTART", "a whole number from 0")?.unwrap_or(0))
}

/// Two who say which process this is say the same.
fn agree(one: Seat, other: Seat) -> Result<()> {
    if (one.worker, one.workers) == (other.worker, other.workers) {
        return Ok(());
    }
    let told = |seat: Seat| {
        let [worker, workers] = seat.names;
        format!("{worker} = {}, {workers} = {}", seat.worker, seat.workers)
    };
    Err(joining(format!("{} contradict {}; unset those that are left over", told(one), told(other))))
}

fn half(set: &str, missing: &str) -> Error {
    joining(format!("{set} is set, and {missing} is not; set both, or neither"))
}

fn joining(message: String) -> Error {
    Error::Joining { message }
}

impl Worker {
    /// What the environment says, as this module's table has it; none where it says nothing. `local_ranks` is how many
    /// ranks the program wants a worker to have: `epl-launch` tells it, too, and the others do not; then it is one where
    /// the program does not say either.
    ///
    /// # Errors
    ///
    /// Variables that are set by half, are no numbers, or contradict each other or `local_ranks`, by name.
    pub fn from_environment(local_ranks: Option<usize>) -> Result<Option<Self>> {
        let text = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self::from_variables(&text, local_ranks)
    }

    /// [`from_environment`](Self::from_environment), of an environment that is given as a function.
    ///
    /// # Errors
    ///
    /// As of [`from_environment`](Self::from_environment).
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
        local_ranks: Option<usize>,
    ) -> Result<Option<Self>> {
        read(variable, local_ranks)?.map(Self::checked).transpose()
    }
}

impl Launch {
    /// The launch that has started this process, as `EPL_LAUNCH_ID` and `EPL_LAUNCH_RESTART` say; none where they say
    /// nothing.
    ///
    /// # Errors
    ///
    /// When the second is not a number.
    pub fn from_environment() -> Result<Option<Self>> {
        let text = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        launch(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &str, local_ranks: Option<usize>) -> Result<Option<Worker>> {
        let find = |name: &str| {
            let mut all = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            all.find_map(|(key, value)| (key == name).then(|| value.to_string()))
        };
        Worker::from_variables(&find, local_ranks)
    }

    fn worker(variables: &str, local_ranks: Option<usize>) -> Worker {
        of(variables, local_ranks).unwrap_or_else(|error| panic!("{variables}: {error}")).expect(variables)
    }

    fn refused(variables: &str) -> String {
        of(variables, None).expect_err(variables).to_string()
    }

    const LAUNCHED: &str = "EPL_LAUNCH_WORKERS=2 EPL_LAUNCH_WORKER=1 EPL_LAUNCH_LOCAL_RANKS=3 EPL_LAUNCH_TRANSPORT=mpi";

    #[test]
    fn nothing_is_said_where_nothing_is_set() {
        assert_eq!(of("PATH=x RANK= WORLD_SIZE=", None), Ok(None));
        // The script of a batch job is not the first of its tasks.
        assert_eq!(of("SLURM_PROCID=0 SLURM_NTASKS=4", None), Ok(None));
        assert_eq!(of("MASTER_ADDR=here", None), Ok(None));
    }

    #[test]
    fn a_launch_has_a_name() {
        let given = |name: &str| match name {
            "EPL_LAUNCH_ID" => Some("x".to_string()),
            "EPL_LAUNCH_RESTART" => Some("3".to_string()),
            _ => None,
        };
        assert_eq!(launch(&given), Ok(Some(Launch { id: "x".into(), restarts: 3 })));
        assert_eq!(launch(&|name| given(name).filter(|_| name == "EPL_LAUNCH_ID")).unwrap().unwrap().restarts, 0);
        assert_eq!(launch(&|name| given(name).filter(|_| name != "EPL_LAUNCH_ID")), Ok(None));
        assert!(launch(&|_| Some("x".into())).is_err_and(|error| error.to_string().contains("a whole number")));
    }

    #[test]
    fn each_launcher_is_understood() {
        let one =
            worker(&format!("{LAUNCHED} EPL_LAUNCH_RESTART=2 EPL_LAUNCH_LOCAL_WORKER=1 RANK=7 WORLD_SIZE=9"), None);
        assert_eq!(
            (one.workers(), one.worker(), one.local_ranks(), one.first_rank(), one.world_size()),
            (2, 1, 3, 3, 6)
        );
        assert_eq!(
            (one.carrier(), one.restart(), one.source(), one.first_device()),
            (Carrier::Mpi, 2, Source::EplLaunch, 0)
        );
        let torchrun =
            "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=::1 MASTER_PORT=29500 EPL_LAUNCH_SECRET=0123456789abcdef";
        let one = worker(torchrun, None);
        assert_eq!((one.worker(), one.world_size(), one.first_device(), one.carrier()), (3, 4, 1, Carrier::Nccl));
        let point = one.meeting_point().unwrap();
        assert_eq!((point.address.as_str(), point.is_hosted_by_first), ("[::1]:29500", true));
        let one = worker(&format!("{torchrun} TORCHELASTIC_USE_AGENT_STORE=True"), Some(2));
        assert_eq!((one.meeting_point().unwrap().address.as_str(), one.first_device()), ("[::1]:29501", 2));
        let ompi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1";
        let one = worker(&format!("{ompi} SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1"), Some(2));
        assert_eq!(
            (one.source(), one.carrier(), one.first_rank(), one.world_size()),
            (Source::OpenMpi, Carrier::Mpi, 2, 4)
        );
        assert_eq!(worker(&format!("{LAUNCHED} {ompi}"), Some(3)).local_ranks(), 3);
        assert_eq!(worker("PMI_RANK=0 PMI_SIZE=2", None).source(), Source::Pmi);
        let one = worker("SLURM_STEP_ID=1 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0", None);
        assert_eq!((one.source(), one.carrier(), one.worker()), (Source::Slurm, Carrier::Mpi, 2));
        assert_eq!(worker("RANK=0 WORLD_SIZE=1", Some(4)).carrier(), Carrier::Threads);
    }

    #[test]
    fn a_worker_that_sees_its_own_devices_only_begins_with_the_first() {
        let step = "SLURM_STEP_ID=1 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=1";
        let first = |devices: &str, ranks| worker(&format!("{step} {devices}"), Some(ranks)).first_device();
        // As `--gpus-per-task` binds them; a GPU may be named, too.
        for bound in ["0", "3", "GPU-8f6a"] {
            assert_eq!(first(&format!("CUDA_VISIBLE_DEVICES={bound}"), 1), 0, "{bound}");
        }
        assert_eq!(first("CUDA_VISIBLE_DEVICES=2,3", 2), 0);
        // All tasks of the host see these.
        for all in ["", "CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=0,1,2,3"] {
            assert_eq!([first(all, 1), first(all, 2)], [1, 2], "{all}");
        }
    }

    #[test]
    fn what_is_half_set_or_contradicts_is_named() {
        let both = "is set, and";
        assert_eq!(refused("RANK=1"), "RANK is set, and WORLD_SIZE is not; set both, or neither");
        assert!(
            refused("EPL_LAUNCH_LOCAL_RANKS=1").contains("EPL_LAUNCH_LOCAL_RANKS is set, and EPL_LAUNCH_WORKER is not")
        );
        assert!(refused("EPL_LAUNCH_WORKERS=1").contains("EPL_LAUNCH_WORKER is not"));
        assert!(refused("EPL_LAUNCH_WORKERS=1 EPL_LAUNCH_WORKER=0").contains("EPL_LAUNCH_LOCAL_RANKS is not"));
        assert!(refused(&format!("{LAUNCHED} EPL_LAUNCH_RENDEZVOUS=a:1")).contains(both));
        assert!(refused("RANK=0 WORLD_SIZE=2 MASTER_PORT=1").contains("MASTER_ADDR is not"));
        assert_eq!(refused("PMI_RANK=x PMI_SIZE=2"), "PMI_RANK = `x`: not a whole number from 0");
        assert!(refused("RANK=2 WORLD_SIZE=2").contains("RANK = 2, WORLD_SIZE = 2"));
        let two = "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2";
        assert!(
            refused(two).contains("RANK = 0, WORLD_SIZE = 2 contradict OMPI_COMM_WORLD_RANK = 1"),
            "{}",
            refused(two)
        );
        assert!(refused(&format!("{LAUNCHED} PMI_RANK=0 PMI_SIZE=2")).contains("EPL_LAUNCH_WORKER = 1"));
        assert!(refused(&LAUNCHED.replace("mpi", "pigeons")).contains("EPL_LAUNCH_TRANSPORT = `pigeons`; allowed"));
        assert!(refused(&LAUNCHED.replace("mpi", "threads")).contains("nothing that carries data between them"));
        let one = "EPL_LAUNCH_WORKERS=1 EPL_LAUNCH_WORKER=0 EPL_LAUNCH_LOCAL_RANKS=4 EPL_LAUNCH_TRANSPORT=threads";
        let error = of(one, Some(2)).unwrap_err().to_string();
        assert!(error.contains("EPL_LAUNCH_LOCAL_RANKS = 4, and the program asks for 2"), "{error}");
        assert!(error.contains("or set it to 4; or have processes of 2 ranks each by `--start mpi`"), "{error}");
        let error = of(LAUNCHED, Some(2)).unwrap_err().to_string();
        assert!(error.contains("EPL_LAUNCH_LOCAL_RANKS = 3, and the program asks for 2"), "{error}");
        let short = refused(&format!("{LAUNCHED} EPL_LAUNCH_RENDEZVOUS=a:1 EPL_LAUNCH_SECRET=x"));
        assert_eq!(short, "EPL_LAUNCH_SECRET: a secret of 1 bytes can be guessed; use at least 16");
        let error = worker("RANK=0 WORLD_SIZE=2", None).meet(std::time::Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("set MASTER_ADDR, MASTER_PORT and EPL_LAUNCH_SECRET"), "{error}");
    }
}
