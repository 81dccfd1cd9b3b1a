//! Positions that are not learned.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use epl_core::Place;

use super::config::ViTConfig;

/// Sines and cosines of column and row of each patch, behind zeros for the class token: of each coordinate `d_model / 4` sines and as
/// many cosines, whose waves grow from 2π to 20,000 π patches. A frozen parameter: it is saved, read and written as others are.
///
/// As in MAE; MoCo v3's have the row before the column, which says the same in another order of features. *Attention is All You Need*, Vaswani et al., 2017, for two coordinates.
///
/// # Shapes
///
/// - output: `[1, patches + 1, d_model]`
pub(crate) fn sine_cosine(config: &ViTConfig, place: &Place) -> Param<Tensor<3>> {
    let (grid, waves) = (config.image_size / config.patch_size, config.d_model / 4);
    let mut values = vec![0.0; config.d_model];
    for patch in 0..grid * grid {
        for coordinate in [patch % grid, patch / grid] {
            let angle = |wave: usize| coordinate as f64 / 10_000_f64.powf(wave as f64 / waves as f64);
            values.extend((0..waves).map(|wave| angle(wave).sin()));
            values.extend((0..waves).map(|wave| angle(wave).cos()));
        }
    }
    let values = TensorData::new(values, [1, grid * grid + 1, config.d_model]);
    Param::from_tensor(Tensor::from_data(values, place.device())).set_require_grad(false)
}
