//! How far two tensors are apart.

use burn::tensor::TensorData;

/// max |a − b| ÷ max |b|: the error of a tensor. A tensor of zeros has no scale: then max |a − b|.
pub fn relative_error(a: &TensorData, b: &TensorData) -> f64 {
    error_on_scale(a, b, b)
}

/// max |a − b| ÷ max |s|, for a tensor that is zero up to rounding, beside one of its kind that is not. The gradient of
/// the keys' biases in attention is such a one: a bias shifts all scores of a query alike.
pub fn error_on_scale(a: &TensorData, b: &TensorData, s: &TensorData) -> f64 {
    if a.shape() != b.shape() {
        return f64::INFINITY;
    }
    let mut difference = 0.0_f64;
    let scale = s.iter::<f64>().fold(0.0_f64, |scale, s| scale.max(s.abs()));
    for (a, b) in a.iter::<f64>().zip(b.iter::<f64>()) {
        // `max` would drop a NaN.
        if !(a - b).is_finite() {
            return f64::INFINITY;
        }
        difference = difference.max((a - b).abs());
    }
    if scale == 0.0 { difference } else { difference / scale }
}
