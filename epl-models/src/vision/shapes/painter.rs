//! One image from (seed, number, class).

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::form::Form;
use crate::vision::image::LabelledImage;
use crate::vision::random::generator;

/// The colours of shapes, by name.
pub(super) const COLOURS: [(&str, [f64; 3]); 4] = [
    ("red", [220.0, 50.0, 45.0]),
    ("green", [45.0, 185.0, 70.0]),
    ("blue", [60.0, 90.0, 225.0]),
    ("yellow", [230.0, 205.0, 50.0]),
];

/// How far a channel of the shape may be from its colour's.
const TINT: f64 = 25.0;
/// How far a channel of a pixel may be from what it should be.
const NOISE: f64 = 15.0;
/// Points a pixel along each side: what they cover of a shape smooths its edge.
const POINTS: usize = 2;

/// Where and how a shape is drawn. Lengths are in pixels.
struct Scene {
    form: Form,
    colour: [f64; 3],
    background: [f64; 3],
    /// What a pixel further down adds to the background.
    slope: f64,
    centre: (f64, f64),
    radius: f64,
    /// Sine and cosine of the angle by which the shape is turned.
    turn: (f64, f64),
}

/// Paints image `number` of a seed, as a square of `size` pixels.
pub(super) fn paint(seed: u64, number: u64, label: usize, size: usize) -> LabelledImage {
    let mut random = generator(seed, number);
    let scene = Scene::draw(&mut random, label, size as f64);
    let mut pixels = Vec::with_capacity(3 * size * size);
    for row in 0..size {
        for column in 0..size {
            let colour = scene.colour_at(column as f64, row as f64);
            let noisy = |channel: f64, random: &mut ChaCha8Rng| channel + random.random_range(-NOISE..=NOISE);
            pixels.extend(colour.map(|channel| noisy(channel, &mut random).round().clamp(0.0, 255.0) as u8));
        }
    }
    LabelledImage { pixels, height: size, width: size, label }
}

impl Scene {
    fn draw(random: &mut ChaCha8Rng, label: usize, size: f64) -> Self {
        let (form, (_, colour)) = (Form::ALL[label / COLOURS.len()], COLOURS[label % COLOURS.len()]);
        let radius = size * random.random_range(0.22..0.38);
        let grey = random.random_range(20.0..150.0);
        let angle: f64 = random.random_range(-0.35..0.35);
        Self {
            form,
            colour: colour.map(|channel| channel + random.random_range(-TINT..TINT)),
            background: [grey; 3].map(|channel| channel + random.random_range(-TINT..TINT)),
            slope: random.random_range(-40.0..40.0) / size,
            centre: (random.random_range(radius..size - radius), random.random_range(radius..size - radius)),
            radius,
            turn: angle.sin_cos(),
        }
    }

    /// The colour of the pixel whose upper left corner is here.
    fn colour_at(&self, x: f64, y: f64) -> [f64; 3] {
        let step = |point: usize| (point as f64 + 0.5) / POINTS as f64;
        let points = (0..POINTS * POINTS).map(|point| (x + step(point % POINTS), y + step(point / POINTS)));
        let covered = points.filter(|(x, y)| self.covers(*x, *y)).count() as f64 / (POINTS * POINTS) as f64;
        core::array::from_fn(|channel| {
            let behind = self.background[channel] + self.slope * y;
            behind + covered * (self.colour[channel] - behind)
        })
    }

    fn covers(&self, x: f64, y: f64) -> bool {
        let (x, y) = ((x - self.centre.0) / self.radius, (y - self.centre.1) / self.radius);
        let (sin, cos) = self.turn;
        self.form.contains(cos * x + sin * y, cos * y - sin * x)
    }
}
