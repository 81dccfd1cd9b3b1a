//! Noise on a mesh of 2 × 2 ranks: rows over one axis, columns over the other, the same numbers as on one rank.
//!
//! `cargo run --release --example noise`

use burn::tensor::Distribution;
use epl::Axis;
use epl::modules::{GlobalTensor, Sbp};
use epl::prelude::*;

/// What depends on the layout is which part a rank draws, not what it draws there.
fn noise(epl: &Epl) -> GlobalTensor<2> {
    let layout = [(Axis::Data, Sbp::Split(0)), (Axis::Tensor, Sbp::Split(1))];
    GlobalTensor::random([16, 8], Distribution::Normal(0.0, 1.0), layout, &epl.place().child("noise"))
}

fn main() -> epl::Result<()> {
    let config = Config::new().with("dist.data_parallel_size", 2)?.with("dist.tensor_parallel_size", 2)?;
    let ranks = epl::launch(&config, |epl| {
        let noise = noise(&epl);
        let about = format!(
            "global shape {:?}, layout {}, placement {}, local shape {:?}, which is {:?}",
            noise.global_shape(),
            noise.layout(),
            noise.placement(),
            noise.clone().local().dims(),
            noise.ranges()
        );
        Ok((about, noise.gather().into_data()))
    })?;
    let one_rank = epl::launch(&Config::new().with("dist.data_parallel_size", 1)?, |epl| Ok(noise(&epl).gather()))?;
    let whole = one_rank[0].to_data();
    // Printed here, not by the ranks, which would interrupt each other.
    for (rank, (about, gathered)) in ranks.iter().enumerate() {
        println!("rank {rank}: {about}");
        assert_eq!(gathered.as_bytes(), whole.as_bytes(), "rank {rank} gathered other numbers than one rank draws");
    }
    println!("all {} ranks gathered the tensor that one rank draws, to the bit", ranks.len());
    Ok(())
}
