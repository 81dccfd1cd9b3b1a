//! What torchvision makes of an image of Pillow, these transforms make: `tools/make_image_fixture.py` wrote it.

use ::image::RgbImage;
use safetensors::SafeTensors;

use super::blur::{GaussianBlur, sharpness};
use super::crop::{CenterCrop, RandomHorizontalFlip, Resize};
use super::draws::Draws;
use super::jitter::{RandomGrayscale, RandomSolarize};
use super::pipeline::Transform;
use super::rand_augment::{Operation, RandAugment};
use super::resample::{Interpolation, cut, resized};
use super::{colour, crop};

/// All images of the fixture, by name.
fn stored() -> Vec<(String, RgbImage)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/images/transforms.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let image = |(name, tensor): (String, safetensors::tensor::TensorView<'_>)| {
        let [height, width, 3] = tensor.shape()[..] else { panic!("{name} is {:?}", tensor.shape()) };
        (name, RgbImage::from_raw(width as u32, height as u32, tensor.data().to_vec()).unwrap())
    };
    tensors.tensors().into_iter().map(image).collect()
}

/// The one that `transform` makes, whatever it draws.
fn made(transform: impl Transform, image: &RgbImage) -> RgbImage {
    transform.check().unwrap();
    transform.apply(image.clone(), &mut Draws::new(0, 0, 0)).unwrap()
}

fn interpolation(name: &str) -> Interpolation {
    if name == "bicubic" { Interpolation::Bicubic } else { Interpolation::Bilinear }
}

/// What the transform of that name makes, and by how much a byte may differ.
fn expected_to_equal(name: &str, image: &RgbImage) -> (RgbImage, u8) {
    let (kind, settings) = name.split_once('.').unwrap_or((name, ""));
    let number = || settings.parse::<f64>().unwrap();
    let words: Vec<&str> = settings.split('.').collect();
    match kind {
        "resize" if words[0] == "short" => (made(Resize::new(10), image), 1),
        // Pillow rounds to bytes between the two sides.
        "resize" => {
            let [height, width] = words[1].split('x').map(|side| side.parse().unwrap()).collect::<Vec<u32>>()[..]
            else {
                panic!("{name}")
            };
            (resized(image.clone(), [width, height], interpolation(words[0])), 1)
        }
        "resized_crop" => (resized(cut(image, (7, 3), [21, 17]), [16, 16], interpolation(words[0])), 1),
        "center_crop" => (made(CenterCrop::new(17), image), 0),
        "pad" => (cut(&crop::padded(image, 3), (5, 1), [20, 20]), 0),
        "hflip" => (made(RandomHorizontalFlip::new().with_probability(1.0), image), 0),
        "brightness" => (colour::brightness(image.clone(), number() as f32), 0),
        "contrast" => (colour::contrast(image.clone(), number() as f32), 0),
        "saturation" => (colour::saturation(image.clone(), number() as f32), 0),
        "sharpness" => (sharpness(image.clone(), number() as f32), 0),
        "hue" => (colour::hue(image.clone(), number()), 0),
        "grayscale" => (made(RandomGrayscale::new().with_probability(1.0), image), 0),
        "autocontrast" => (colour::auto_contrast(image.clone()), 0),
        "equalize" => (colour::equalize(image.clone()), 0),
        "solarize" => (made(RandomSolarize::new().with_probability(1.0), image), 0),
        // torchvision sums in single precision, over both sides at once.
        "blur" => {
            let (kernel, sigma) = settings.split_once('.').unwrap();
            let sigma: f64 = sigma.parse().unwrap();
            (made(GaussianBlur::new(kernel.parse().unwrap()).with_sigma([sigma; 2]), image), 1)
        }
        "augment" => {
            let operation = Operation::ALL.into_iter().find(|operation| format!("{operation:?}") == words[0]).unwrap();
            let augment = RandAugment::new().with_magnitude(words[1].parse().unwrap());
            let strength = augment.strength(operation, image.dimensions());
            (operation.apply(image.clone(), if words[2] == "-1" { -strength } else { strength }), 0)
        }
        other => panic!("no transform {other}"),
    }
}

#[test]
fn transforms_make_what_torchvision_makes() {
    let stored = stored();
    let image = &stored.iter().find(|(name, _)| name == "image").unwrap().1;
    let mut wrong = Vec::new();
    for (name, expected) in stored.iter().filter(|(name, _)| name != "image") {
        let (found, most) = expected_to_equal(name, image);
        assert_eq!(found.dimensions(), expected.dimensions(), "{name}");
        let differences =
            found.as_raw().iter().zip(expected.as_raw()).map(|(found, expected)| found.abs_diff(*expected));
        let worst = differences.clone().max().unwrap();
        if worst > most {
            wrong.push(format!("{name}: {worst} at most, {} bytes", differences.filter(|byte| *byte > most).count()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(stored.len(), 87);
}

/// The two strengths of the fixture are two of all, which grow evenly.
#[test]
fn strengths_grow_evenly() {
    let at = |operation, magnitude: usize| RandAugment::new().with_magnitude(magnitude).strength(operation, (331, 662));
    assert_eq!([0, 15, 30].map(|magnitude| at(Operation::Rotate, magnitude)), [0.0, 15.0, 30.0]);
    assert_eq!([0, 30].map(|magnitude| at(Operation::TranslateY, magnitude)), [0.0, 300.0]);
    assert_eq!([0, 30].map(|magnitude| at(Operation::Posterize, magnitude)), [8.0, 4.0]);
    let refused = RandAugment::new().with_magnitude(31).check().unwrap_err().to_string();
    assert!(refused.contains("RandAugment: `magnitude` is 31 of 31 `strengths`"), "{refused}");
}
