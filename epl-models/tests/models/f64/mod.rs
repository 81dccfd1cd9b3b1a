//! No layout changes what a model computes: in f64, all errors are at most 1e-10.

mod bert;
mod mae;
mod mixed;
mod moco;
mod resmlp;
mod resnet;
mod swin;
mod t5;
mod vit;

use epl_core::config::Config;
use epl_core::testing;

/// Options of that many data and tensor ranks, and what else a layout has.
fn layout((data, tensor): (usize, usize), change: fn(&mut Config)) -> Config {
    let mut options = testing::config(data, tensor, 1);
    change(&mut options);
    options
}
