//! Buffers of more bytes, and more numbers, than 31 bits can count.

use std::time::Duration;

use burn::tensor::{DType, Device, Int, Tensor};
use epl_comm::{Error, mpi};

use crate::processes::{World, mpirun, passed};

const CHILD: [&str; 3] = ["--exact", "large::child", "--ignored"];
/// More than 2 GiB of u8.
const LEN: usize = (1 << 31) + (1 << 20) + 3;

#[test]
#[ignore = "run by the test below"]
fn child() {
    mpi::run(|world| {
        let value = 7 * (world.rank() as i64 + 1);
        let x = Tensor::<1, Int>::full([LEN], value, (&Device::flex(), DType::U8));
        let x = world.broadcast(x, 1)?;
        let bytes = x.into_data();
        let bytes: &[u8] = bytes.as_bytes();
        assert_eq!(bytes.len(), LEN);
        assert!(bytes.iter().all(|byte| *byte == 14));
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn more_than_two_gib_are_broadcast() {
    let output = mpirun(World::of(2, 1), Duration::from_secs(400), &CHILD, "");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && passed(&text) == 2, "{text}\n{errors}");
}
