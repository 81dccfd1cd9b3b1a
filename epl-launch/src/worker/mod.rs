//! Who this process is among the workers of a run.
//!
//! | who started it | variables |
//! |---|---|
//! | `epl-launch` | `EPL_LAUNCH_WORKERS`, `EPL_LAUNCH_WORKER`, `EPL_LAUNCH_LOCAL_RANKS`, `EPL_LAUNCH_TRANSPORT` (`threads`, `mpi`, `nccl`), and as may be `EPL_LAUNCH_LOCAL_WORKER`, `EPL_LAUNCH_RENDEZVOUS` with `EPL_LAUNCH_SECRET`, `EPL_LAUNCH_ID`, `EPL_LAUNCH_RESTART` |
//! | torchrun, or who does as it does | `RANK`, `WORLD_SIZE`, and as may be `LOCAL_RANK`, `MASTER_ADDR` with `MASTER_PORT`, `EPL_LAUNCH_SECRET` |
//! | Open MPI's `mpirun` | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`, `OMPI_COMM_WORLD_LOCAL_RANK` |
//! | another `mpirun`, by PMI | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` |
//! | Slurm's `srun` | `SLURM_STEP_ID`, `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` |
//!
//! Where workers of a host all see all its GPUs, each takes its share of them by its number there; `CUDA_VISIBLE_DEVICES`
//! with as many GPUs as a worker has ranks lists a worker's own. So workers of a host that are given one and the same list of
//! that length get the same GPUs: give each a list of its own, or all of them the GPUs of all.
//!
//! The first that is there counts. Those of torchrun and of MPI must agree where both are there, as must those of
//! `epl-launch` and of MPI where MPI carries the data. Slurm's count only where nothing else does, and only in a step:
//! the script of a batch job has them, too, and is not the first of many.

mod environment;
mod hosts;
mod who;

pub use who::{Carrier, Launch, Meeting, MeetingPoint, Source, Worker};
