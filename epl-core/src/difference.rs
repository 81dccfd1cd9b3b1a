//! How far two tensors are apart.

use burn::tensor::TensorData;

/// max |a − b| ÷ max |b|: the error of a tensor. A tensor of zeros has no scale: then max |a − b|.
pub fn relative_error(a: &TensorData, b: &TensorData) -> f64 {
    if a.shape() != b.shape() {
        return f64::INFINITY;
    }
    let mut difference = 0.0_f64;
    let mut scale = 0.0_f64;
    for (a, b) in a.iter::<f64>().zip(b.iter::<f64>()) {
        // `max` would drop a NaN.
        if !(a - b).is_finite() {
            return f64::INFINITY;
        }
        difference = difference.max((a - b).abs());
        scale = scale.max(b.abs());
    }
    if scale == 0.0 { difference } else { difference / scale }
}
