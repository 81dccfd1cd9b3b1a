//! Convolutions: `burn::nn::conv`.
//!
//! Under a split of the tensor axis each rank computes some output channels, or some groups with their input channels, and the
//! outputs are gathered. A deformable convolution is whole on every rank, as are groups that do not divide over the ranks.

mod channels;
mod deform;
mod plain;
mod transposed;

pub use deform::{DeformConv2d, DeformConv2dConfig};
pub use plain::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig};
pub use transposed::{
    ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d,
    ConvTranspose3dConfig,
};
