//! Which communicators there are, and what is on their streams.

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, Pool, ReduceOp};

use crate::fake::Fake;

#[test]
fn a_part_is_made_by_dividing_the_communicator() {
    let fake = Fake::new();
    fake.run(4, true, |world| {
        let pair = world.split("pair", world.rank() % 2, 0).unwrap();
        assert_eq!(pair.all_reduce_values(&[1.0], ReduceOp::Sum).unwrap(), [2.0]);
    });
    assert_eq!((fake.count("ncclCommSplit"), fake.count("made")), (4, 4 + 4));
}

/// Every communicator has a stream of its own.
#[test]
fn several_communicators_are_in_flight_together() {
    let fake = Fake::new();
    let ended = fake.run_on(fake.launcher(2).lanes(3).check_order(), true, |group| {
        let pool = Pool::new(&group, 8)?;
        let x = |number: usize| Tensor::<1>::full([100 + number], number as f32, &Device::flex());
        let started: Vec<_> = (0..12)
            .map(|number| pool.communicator(number).start_all_reduce(x(number), ReduceOp::Sum))
            .collect::<Result<_, _>>()?;
        for (number, sum) in started.into_iter().enumerate() {
            assert_eq!(sum.wait()?.into_data(), x(2 * number).slice([0..100 + number]).into_data());
        }
        Ok::<_, Error>(())
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((fake.count("made"), fake.count("misused")), (2 + 3 * 2, 0));
}
