//! Which processes are on one host.

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, ReduceOp, Result, mpi};

use crate::kind::{launcher, ranks_each};
use crate::watchdog::within_seconds;

#[test]
#[ignore = "run under mpirun by `processes`"]
fn all_of_one_machine_are() {
    let place = mpi::place().unwrap();
    assert_eq!(mpi::hosts().unwrap(), vec![0; place.processes]);
    assert_eq!((place.local, place.locals), (place.process, place.processes));
}

/// Two ranks of a process, in groups of all ranks of several: known without asking the others.
#[test]
#[ignore = "run under mpirun by `processes`"]
fn ranks_of_a_process_that_wait_for_each_others_started_calls_are_found() {
    if ranks_each() < 2 || mpi::place().unwrap().processes < 2 {
        return;
    }
    within_seconds(60, || {
        let ended: Result<_, (_, Error)> = launcher().no_time_limit().run(|world| {
            let a = world.split("a", 0, 0)?;
            let start = || a.start_all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum);
            let first = start()?;
            if world.rank() == 1 {
                world.barrier()?;
            }
            start()?.wait()?;
            first.wait()?;
            world.barrier()
        });
        let (_, error) = ended.unwrap_err();
        let Error::Deadlock { circle } = &error else { panic!("{error}") };
        assert!(circle.iter().any(|(rank, told)| rank.0 == 1 && told == "barrier, call 2 of group `world`"), "{error}");
        let of_a = |told: &str| told == "all_reduce(sum), call 2 of group `a`";
        assert!(circle.len() == 2 && circle.iter().any(|(_, told)| of_a(told)), "{error}");
    });
}
