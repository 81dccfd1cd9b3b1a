//! Which processes are on one host.

use epl_comm::mpi;

#[test]
fn all_of_one_machine_are() {
    if mpi::is_launched() {
        let place = mpi::place().unwrap();
        assert_eq!(mpi::hosts().unwrap(), vec![0; place.processes]);
        assert_eq!((place.local, place.locals), (place.process, place.processes));
    }
}
