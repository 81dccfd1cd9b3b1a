//! How the workers of a run are started.

use std::path::Path;
use std::process::Command;

use crate::arguments::{Arguments, Share, Start};
use crate::program::{is_linked_with_mpi, on_path};
use crate::system::is_root;

/// What was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub start: Start,
    /// Workers, as the program sees them, and ranks of each.
    pub workers: usize,
    pub ranks: usize,
    pub transport: &'static str,
    /// A sentence for the user.
    pub told: String,
}

/// Chooses how this run is started.
///
/// Whether a program can do MPI is seen from the libraries it needs. Of a script nobody can tell, so the user says it.
pub(crate) fn choose(arguments: &Arguments, share: Share, gpus: usize, program: &Path) -> Result<Choice, String> {
    let mpirun = on_path(Path::new("mpirun")).is_some();
    let linked = is_linked_with_mpi(program);
    decide(arguments, share, gpus, mpirun, linked)
}

fn decide(arguments: &Arguments, share: Share, gpus: usize, mpirun: bool, linked: bool) -> Result<Choice, String> {
    let Arguments { num_workers: workers, gpu_per_worker: ranks, .. } = *arguments;
    let threads = |why: &str| Choice {
        start: Start::Threads,
        workers: 1,
        ranks: workers * ranks,
        transport: "threads",
        told: format!("one process with {workers} × {ranks} ranks as threads ({why})"),
    };
    let several = |start, transport, why: &str| {
        let how = if start == Start::Mpi { "processes over MPI" } else { "processes" };
        let transport = if workers == 1 { "threads" } else { transport };
        Choice { start, workers, ranks, transport, told: format!("{workers} {how}, {ranks} ranks each ({why})") }
    };
    match arguments.start {
        Start::Threads => Ok(threads("--start threads")),
        Start::Processes => Ok(several(Start::Processes, "nccl", "--start processes")),
        Start::Mpi if !mpirun => {
            Err("--start mpi: there is no `mpirun` on PATH; install MPI, or use --start threads".into())
        }
        Start::Mpi => Ok(several(Start::Mpi, "mpi", "--start mpi")),
        Start::Auto if gpus > 0 => Ok(several(Start::Processes, "nccl", &format!("on {gpus} GPUs of this machine"))),
        Start::Auto if share.machines > 1 => Err(format!(
            "{} machines, and no GPU on this one: between processes that are started here only NCCL carries tensors; run the \
             program under `mpirun` or `srun` itself, or say --start processes for one that needs no such thing",
            share.machines
        )),
        Start::Auto if workers == 1 => Ok(threads("no GPU, and one worker")),
        Start::Auto if !mpirun => Ok(threads("no GPU, and no mpirun on PATH")),
        Start::Auto if !linked => {
            Ok(threads("no GPU, and the program is not linked with MPI, or is a script; --start mpi if it can do MPI"))
        }
        Start::Auto => Ok(several(Start::Mpi, "mpi", "no GPU, and the program is linked with MPI")),
    }
}

/// By which Open MPI 4 is told where jobs keep files: all processes, or the first one and the others, but not both.
const SESSION_FOLDERS: [&str; 3] =
    ["OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base"];

/// The command by which MPI starts so many of this program. What it keeps on disk for the job is beside this run's socket.
pub(crate) fn mpirun(workers: usize, program: &Path, socket: &Path) -> Command {
    let mut command = Command::new("mpirun");
    let version = Command::new("mpirun").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    command.args(["-np", &workers.to_string()]);
    if String::from_utf8_lossy(&version).contains("Open MPI") {
        // As many as asked for, on as few cores as there are; a worker has several threads, which are not to share one core.
        command.args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
        // Else version 4 has one folder for all jobs of a user. The job that ends last removes it, and one that begins at that
        // moment fails for want of it.
        let is_said = SESSION_FOLDERS.iter().any(|name| std::env::var_os(name).is_some());
        if let (false, Some(folder)) = (is_said, socket.parent()) {
            command.env(SESSION_FOLDERS[0], folder);
        }
        if is_root() {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
    }
    command.arg(program);
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn chosen(
        line: &str,
        gpus: usize,
        mpirun: bool,
        linked: bool,
    ) -> Result<(Start, usize, usize, &'static str), String> {
        let arguments = Arguments::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let choice = decide(&arguments, arguments.share()?, gpus, mpirun, linked)?;
        Ok((choice.start, choice.workers, choice.ranks, choice.transport))
    }

    #[test]
    fn the_way_to_start_follows_what_is_there() {
        let two = "epl-launch --num-workers 2 --gpu_per_worker 2 -- program";
        assert_eq!(chosen(two, 0, true, true), Ok((Start::Mpi, 2, 2, "mpi")));
        assert_eq!(chosen(two, 0, false, true), Ok((Start::Threads, 1, 4, "threads")));
        assert_eq!(chosen(two, 0, true, false), Ok((Start::Threads, 1, 4, "threads")));
        assert_eq!(chosen(two, 4, true, true), Ok((Start::Processes, 2, 2, "nccl")));
        assert_eq!(chosen("epl-launch --gpu-per-worker 2 x", 2, true, true), Ok((Start::Processes, 1, 2, "threads")));
        assert_eq!(chosen("epl-launch --gpu-per-worker 2 x", 0, true, true), Ok((Start::Threads, 1, 2, "threads")));
        assert_eq!(
            chosen("epl-launch --start mpi x --y --num_workers 2", 0, true, false),
            Ok((Start::Mpi, 1, 1, "threads"))
        );
        assert!(chosen("epl-launch --start mpi x", 0, false, false).is_err_and(|error| error.contains("no `mpirun`")));
        let hosts = "epl-launch --num_workers 2 --machine_list a:1,b:1 --machine_rank 1 x";
        assert!(chosen(hosts, 0, true, true).is_err_and(|error| error.contains("2 machines, and no GPU")));
        assert_eq!(chosen(hosts, 1, true, true), Ok((Start::Processes, 2, 1, "nccl")));
    }

    #[test]
    fn what_cannot_be_is_said_with_its_numbers() {
        let refused = |line: &str| chosen(line, 1, true, true).expect_err(line);
        assert!(refused("epl-launch --num_workers 0 x").contains("both are at least 1"));
        assert!(
            refused("epl-launch --num_workers 3 --machine_list a:1,b:1 --machine_rank 0 x")
                .contains("not a multiple of the 2")
        );
        assert!(refused("epl-launch --num_workers 2 --machine_list a:1,b:1 x").contains("say which one this is"));
        assert!(
            refused("epl-launch --num_workers 2 --machine_list a:1,b:1 --machine_rank 2 x").contains("numbered from 0")
        );
        assert!(refused("epl-launch --machine_list a x").contains("`a` is not host:port"));
        assert!(
            refused("epl-launch --num_workers 2 --start mpi --machine_list a:1,b:1 --machine_rank 0 x")
                .contains("only")
        );
        assert!(refused("epl-launch --grace 0 x").contains("more than 0 seconds"));
        assert!(refused("epl-launch --patience 0.3 x").contains("0.3 seconds; allowed: at least 1"));
    }
}
