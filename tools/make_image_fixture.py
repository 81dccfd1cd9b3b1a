"""Write what Pillow and torchvision make of a small generated image, for the tests of image transforms.

One file, `transforms.safetensors`: `image`, `[rows, columns, 3]` in bytes, and under the name of each transform with its settings what it
makes of the image, in the same form. All transforms are those of torchvision on an image of Pillow; RandAugment's operations have the
strengths that it gives them.

    pip install torch torchvision pillow safetensors
    python make_image_fixture.py OUT_FILE
"""
import sys

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from safetensors.numpy import save_file
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2._auto_augment import RandAugment

WIDTH, HEIGHT = 32, 24
MODES = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}
NEAREST, NO_FILL = v2.InterpolationMode.NEAREST, {"others": None, Image.Image: None}


def generated():
    """Waves in three colours, a bright rectangle, noise; no channel has all bytes."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    waves = [np.sin(x / 4), np.cos(y / 3 + x / 9), np.sin((x + y) / 5)]
    channels = [110 + 70 * wave for wave in waves]
    channels[1][5:14, 8:20] += 60
    noise = np.random.default_rng(0).uniform(-18, 18, (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(np.stack(channels, -1) + noise, 12, 243).astype(np.uint8))


def resized(image, out):
    for name, mode in MODES.items():
        for height, width in [(9, 13), (40, 50), (24, 20)]:
            out[f"resize.{name}.{height}x{width}"] = F.resize(image, [height, width], mode)
        out[f"resized_crop.{name}"] = F.resized_crop(image, 3, 7, 17, 21, [16, 16], mode)
    out["resize.short.10"] = F.resize(image, [10], MODES["bilinear"])
    out["center_crop.17"] = F.center_crop(image, [17, 17])
    out["pad.3.crop"] = F.crop(F.pad(image, [3]), 1, 5, 20, 20)
    out["hflip"] = F.horizontal_flip(image)


def colours(image, out):
    for factor in [0.0, 0.55, 1.0, 1.4, 2.5]:
        out[f"brightness.{factor}"] = F.adjust_brightness(image, factor)
        out[f"contrast.{factor}"] = F.adjust_contrast(image, factor)
        out[f"saturation.{factor}"] = F.adjust_saturation(image, factor)
        out[f"sharpness.{factor}"] = F.adjust_sharpness(image, factor)
    for turn in [-0.5, -0.11, 0.03, 0.4]:
        out[f"hue.{turn}"] = F.adjust_hue(image, turn)
    out["grayscale"] = F.rgb_to_grayscale(image, num_output_channels=3)
    out["autocontrast"] = F.autocontrast(image)
    out["equalize"] = F.equalize(image)
    out["solarize.128"] = F.solarize(image, 128)
    for kernel, sigma in [(3, 0.4), (5, 1.3), (9, 2.0)]:
        out[f"blur.{kernel}.{sigma}"] = F.gaussian_blur(image, [kernel, kernel], [sigma, sigma])


def operations(image, out):
    """All operations of RandAugment, at some of 31 strengths, either way."""
    augment = RandAugment(num_magnitude_bins=31)
    for name, (strengths, signed) in RandAugment._AUGMENTATION_SPACE.items():
        values = strengths(31, HEIGHT, WIDTH)
        for strength in [9, 20] if values is not None else [0]:
            value = 0.0 if values is None else float(values[strength])
            for sign in [1, -1] if signed else [1]:
                made = augment._apply_image_or_video_transform(image, name, sign * value, NEAREST, NO_FILL)
                out[f"augment.{name}.{strength}.{sign}"] = made


def main():
    image, out = generated(), {}
    resized(image, out)
    colours(image, out)
    operations(image, out)
    arrays = {name: np.ascontiguousarray(np.asarray(made)) for name, made in out.items()}
    arrays["image"] = np.asarray(image)
    versions = {"pillow": PIL.__version__, "torchvision": torchvision.__version__, "torch": torch.__version__}
    save_file(arrays, sys.argv[1], metadata=versions)
    print(len(out), "transforms", versions)


if __name__ == "__main__":
    main()
