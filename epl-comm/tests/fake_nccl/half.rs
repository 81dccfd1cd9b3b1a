//! Floats of 16 bits.

/// From bits of an f16.
pub fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, mantissa) = (u32::from(bits >> 15), u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa as f32 * 2f32.powi(-24),
        31 => f32::from_bits(0x7f80_0000 | mantissa << 13),
        _ => f32::from_bits((exponent + 112) << 23 | mantissa << 13),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// To bits of an f16, to the nearest, to even when two are as near.
pub fn to_f16(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 31) as u16) << 15;
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return 0x7e00;
    }
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    let step = if magnitude < 2f32.powi(-14) { 2f32.powi(-24) } else { 2f32.powi(exponent(magnitude) - 10) };
    let rounded = (magnitude / step).round_ties_even() * step;
    if rounded < 2f32.powi(-14) {
        return sign | (rounded * 2f32.powi(24)) as u16;
    }
    let bits = rounded.to_bits();
    sign | ((bits >> 23) as u16 - 112) << 10 | (bits >> 13 & 1023) as u16
}

fn exponent(value: f32) -> i32 {
    (value.to_bits() >> 23) as i32 - 127
}

/// From bits of a bf16.
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To bits of a bf16, to the nearest, to even when two are as near.
pub fn to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc0;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
