//! Bounds of what a user may ask for.

use std::time::Duration;

use epl_comm::mpi;

use crate::failing::launcher;

#[test]
fn no_time_limit_is_too_long() {
    if mpi::is_launched() {
        launcher().time_limit(Duration::MAX).run(|world| world.barrier()).unwrap();
    }
}
