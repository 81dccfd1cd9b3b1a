//! Bounds of what a user may ask for.

use std::time::Duration;

use crate::kind::launcher;

#[test]
#[ignore = "run under mpirun by `processes`"]
fn no_time_limit_is_too_long() {
    launcher().time_limit(Duration::MAX).run(|world| world.barrier()).unwrap();
}
