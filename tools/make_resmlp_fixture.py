"""Write a tiny, randomly initialised ResMLP under timm's names, with its outputs.

One folder: `config.json` and `model.safetensors` as timm has them, `io.safetensors` as `make_fixtures.py` writes it. The model is written
here after the paper (*ResMLP: Feedforward networks for image classification with data-efficient training*), so that timm is not needed;
`tools/check_export.py` compares with it, too.

    pip install torch safetensors
    python make_resmlp_fixture.py OUT_DIR [--seed 0]
"""
import argparse, json, math, pathlib

import torch
from safetensors.torch import save_file
from torch import nn


class Affine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, 1, width))
        self.beta = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x):
        return x * self.alpha + self.beta


class Block(nn.Module):
    def __init__(self, patches, width, hidden):
        super().__init__()
        self.norm1, self.norm2 = Affine(width), Affine(width)
        self.linear_tokens = nn.Linear(patches, patches)
        self.mlp_channels = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})
        self.ls1, self.ls2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x + self.ls1 * self.linear_tokens(self.norm1(x).mT).mT
        hidden = nn.functional.gelu(self.mlp_channels["fc1"](self.norm2(x)))
        return x + self.ls2 * self.mlp_channels["fc2"](hidden)


class ResMLP(nn.Module):
    def __init__(self, classes, image, patch, channels, width, hidden, blocks):
        super().__init__()
        self.stem = nn.ModuleDict({"proj": nn.Conv2d(channels, width, patch, stride=patch)})
        self.blocks = nn.ModuleList(Block((image // patch) ** 2, width, hidden) for _ in range(blocks))
        self.norm, self.head = Affine(width), nn.Linear(width, classes)

    @classmethod
    def of(cls, weights):
        """The model that these weights are of."""
        width, channels, patch, _ = weights["stem.proj.weight"].shape
        blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        image = patch * math.isqrt(len(weights["blocks.0.linear_tokens.weight"]))
        hidden = len(weights["blocks.0.mlp_channels.fc1.weight"])
        model = cls(len(weights["head.weight"]), image, patch, channels, width, hidden, blocks)
        model.load_state_dict(weights)
        return model

    def forward(self, pixel_values):
        x = self.stem["proj"](pixel_values).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=0)
    arguments = arguments.parse_args()
    torch.manual_seed(arguments.seed)
    image, patch, width, hidden, blocks, classes = 32, 8, 24, 60, 2, 10
    model = ResMLP(classes, image, patch, 3, width, hidden, blocks)
    # Nothing is as it starts, so that each parameter shows where it stands.
    for name, values in model.named_parameters():
        if name.split(".")[-1] in ("alpha", "ls1", "ls2"):
            nn.init.uniform_(values, 0.4, 1.4)
        elif name.split(".")[-1] in ("beta", "bias"):
            nn.init.uniform_(values, -0.3, 0.3)
    pixels, labels = torch.randn(2, 3, image, image), torch.tensor([3, 7])
    logits = model(pixels)
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()
    io = {"input.pixel_values": pixels, "input.labels": labels, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    io |= {f"grad.{name}": values.grad for name, values in model.named_parameters()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_file(io, arguments.out / "io.safetensors")
    weights = {name: values.detach() for name, values in model.named_parameters()}
    save_file(weights, arguments.out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architecture": "resmlp_12_224",
        "num_classes": classes,
        "num_features": width,
        "global_pool": "avg",
        "model_args": {
            "img_size": image, "patch_size": patch, "num_blocks": blocks, "embed_dim": width, "mlp_ratio": hidden / width,
        },
        "pretrained_cfg": {
            "input_size": [3, image, image], "fixed_input_size": True, "interpolation": "bicubic", "crop_pct": 0.875,
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "num_classes": classes, "first_conv": "stem.proj",
            "classifier": "head",
        },
        "dtype": "float32",
    }
    (arguments.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(sum(values.numel() for values in model.parameters()), float(loss.detach()))


if __name__ == "__main__":
    main()
