//! Colours as Pillow computes them, in bytes.

use ::image::{Rgb, RgbImage};

/// The brightness of a pixel (ITU-R 601).
pub(super) fn grey([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

/// Each pixel by a function.
pub(super) fn each(mut image: RgbImage, function: impl Fn([u8; 3]) -> [u8; 3]) -> RgbImage {
    image.pixels_mut().for_each(|pixel| pixel.0 = function(pixel.0));
    image
}

/// Between two bytes, or beyond them: `first` at 0, `second` at 1.
pub(super) fn blend(first: u8, second: u8, factor: f32) -> u8 {
    // As a cast: towards zero, and to the nearest byte of what lies outside.
    (f32::from(first) + factor * (f32::from(second) - f32::from(first))) as u8
}

/// Black at 0, the image at 1.
pub(super) fn brightness(image: RgbImage, factor: f32) -> RgbImage {
    each(image, |pixel| pixel.map(|byte| blend(0, byte, factor)))
}

/// The mean grey of the image at 0, the image at 1.
pub(super) fn contrast(image: RgbImage, factor: f32) -> RgbImage {
    let pixels = f64::from(image.width()) * f64::from(image.height());
    let sum: u64 = image.pixels().map(|pixel| u64::from(grey(pixel.0))).sum();
    let mean = (sum as f64 / pixels + 0.5) as u8;
    each(image, |pixel| pixel.map(|byte| blend(mean, byte, factor)))
}

/// Grey at 0, the image at 1.
pub(super) fn saturation(image: RgbImage, factor: f32) -> RgbImage {
    each(image, |pixel| pixel.map(|byte| blend(grey(pixel), byte, factor)))
}

/// All hues turned, by a whole turn at 1.
pub(super) fn hue(image: RgbImage, turn: f64) -> RgbImage {
    let turn = (turn * 255.0) as i32 as u8;
    each(image, |pixel| {
        let [hue, saturation, value] = to_hsv(pixel);
        from_hsv([hue.wrapping_add(turn), saturation, value])
    })
}

fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let away = |byte: u8| f64::from(f32::from(most - byte) / range);
    let sixths = match most {
        most if most == red => (away(blue) as f32 - away(green) as f32).into(),
        most if most == green => 2.0 + away(red) - away(blue),
        _ => 4.0 + away(green) - away(red),
    };
    let turn = f64::from(((f64::from(sixths as f32) / 6.0 + 1.0) % 1.0) as f32);
    let saturation = f64::from(range / f32::from(most));
    [(turn * 255.0) as u8, (saturation * 255.0) as u8, most]
}

fn from_hsv([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let rest = f64::from((sixths - sixths.floor()) as f32);
    let share = f64::from((f64::from(saturation) / 255.0) as f32);
    let [low, falling, rising] = [1.0 - share, 1.0 - share * rest, 1.0 - share * (1.0 - rest)]
        .map(|part| (f64::from(value) * part).round() as u8);
    match sixths as u8 % 6 {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}

/// A table of new bytes for each channel.
fn by_tables(image: RgbImage, tables: &[[u8; 256]; 3]) -> RgbImage {
    each(image, |pixel| core::array::from_fn(|channel| tables[channel][usize::from(pixel[channel])]))
}

/// The highest `bits` bits of each byte.
pub(super) fn posterize(image: RgbImage, bits: u32) -> RgbImage {
    let mask = !(0xff_u32 >> bits) as u8;
    each(image, |pixel| pixel.map(|byte| byte & mask))
}

/// The negative of each byte from `threshold` on.
pub(super) fn solarize(image: RgbImage, threshold: f64) -> RgbImage {
    each(image, |pixel| pixel.map(|byte| if f64::from(byte) < threshold { byte } else { 255 - byte }))
}

/// How often each byte stands in each channel.
fn histograms(image: &RgbImage) -> [[u64; 256]; 3] {
    let mut counts = [[0; 256]; 3];
    for Rgb(pixel) in image.pixels() {
        pixel.iter().zip(&mut counts).for_each(|(byte, counts)| counts[usize::from(*byte)] += 1);
    }
    counts
}

/// Each channel stretched from black to white.
pub(super) fn auto_contrast(image: RgbImage) -> RgbImage {
    let table = |counts: [u64; 256]| {
        let low = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let high = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        core::array::from_fn(|byte| {
            if high <= low {
                return byte as u8;
            }
            let scale = 255.0 / (high - low) as f64;
            let offset = -(low as f64) * scale;
            (byte as f64 * scale + offset) as u8
        })
    };
    let tables = histograms(&image).map(table);
    by_tables(image, &tables)
}

/// Each channel with as many dark bytes as bright ones.
pub(super) fn equalize(image: RgbImage) -> RgbImage {
    let table = |counts: [u64; 256]| {
        let last = counts.iter().rev().find(|count| **count > 0).copied().unwrap_or(0);
        let step = (counts.iter().sum::<u64>() - last) / 255;
        let mut sum = step / 2;
        core::array::from_fn(|byte| {
            let below = sum;
            sum += counts[byte];
            // A single byte, or too few pixels: as it is.
            below.checked_div(step).map_or(byte as u8, |level| level.min(255) as u8)
        })
    };
    let tables = histograms(&image).map(table);
    by_tables(image, &tables)
}
