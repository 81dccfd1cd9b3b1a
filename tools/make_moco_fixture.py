"""Write fixtures/moco.safetensors: a small MoCo v3 after three steps of SGD in PyTorch, in f64.

The program is written from the paper's pseudo-code (arXiv:2104.02057) in the order of its published code: in each step the
momentum encoder follows first, by a momentum that rises along half a cosine, then keys and queries are made. It holds

- what the parameters begin with, under the names of `epl_models::moco`, products as [inputs, outputs]; the momentum encoder
  begins as the encoder;
- two views of each image for each step, and the loss of each step;
- the gradients of the first step;
- parameters and running statistics once the momentum encoder has followed the last step.

    pip install torch==2.15.0 safetensors
    python tools/make_moco_fixture.py fixtures/moco.safetensors
"""
import math
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

STEPS, SCHEDULE, MOMENTUM, TEMPERATURE, RATE = 3, 5, 0.9, 0.2, 0.1
ROWS, IMAGE, PATCH = 5, 8, 4
WIDTH, INNER, HEADS, LAYERS = 8, 12, 2, 2
MLP, DIM = 10, 6
GRID = IMAGE // PATCH


def values(seed, shape, scale=1.0, shift=0.0):
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    return (torch.sin(seed * 7.0 + index * 1.3 + index * index * 0.01) * scale + shift).reshape(shape)


def positions():
    waves = WIDTH // 4
    rows = [[0.0] * WIDTH]
    for patch in range(GRID * GRID):
        row = []
        for coordinate in (patch % GRID, patch // GRID):
            angles = [coordinate / 10_000 ** (wave / waves) for wave in range(waves)]
            row += [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        rows.append(row)
    return torch.tensor([rows], dtype=torch.float64)


def head_shapes(widths):
    shapes = {}
    for layer, (before, behind) in enumerate(zip(widths, widths[1:])):
        shapes[f"linears.{layer}.weight"] = [before, behind]
        shapes[f"norms.{layer}.gamma"] = [behind]
        shapes[f"norms.{layer}.beta"] = [behind]
    return shapes


def encoder_shapes():
    shapes = {
        "embeddings.projection.weight": [WIDTH, 3, PATCH, PATCH],
        "embeddings.projection.bias": [WIDTH],
        "embeddings.class_token": [1, 1, WIDTH],
    }
    for layer in range(LAYERS):
        attention, network = f"layers.{layer}.self_attention", f"layers.{layer}.feed_forward"
        for part in ("query", "key", "value", "output"):
            shapes[f"{attention}.heads.{part}.weight"] = [WIDTH, WIDTH]
            shapes[f"{attention}.heads.{part}.bias"] = [WIDTH]
        shapes[f"{network}.dense.input.weight"], shapes[f"{network}.dense.input.bias"] = [WIDTH, INNER], [INNER]
        shapes[f"{network}.dense.output.weight"], shapes[f"{network}.dense.output.bias"] = [INNER, WIDTH], [WIDTH]
        for part in (attention, network):
            shapes[f"{part}.norm.gamma"], shapes[f"{part}.norm.beta"] = [WIDTH], [WIDTH]
    shapes["norm.gamma"], shapes["norm.beta"] = [WIDTH], [WIDTH]
    return shapes | {f"projector.{name}": shape for name, shape in head_shapes([WIDTH, MLP, MLP, DIM]).items()}


def is_fixed(name):
    last = {"projector": 2, "predictor": 1}
    return "projection" in name or any(f"{head}.norms.{layer}." in name for head, layer in last.items())


def initial():
    shapes = {f"encoder.{name}": shape for name, shape in encoder_shapes().items()}
    shapes |= {f"predictor.{name}": shape for name, shape in head_shapes([DIM, MLP, DIM]).items()}
    found = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        if is_fixed(name) and "norms" in name:
            found[name] = torch.full(shape, float(name.endswith("gamma")), dtype=torch.float64)
        elif name.endswith("gamma"):
            found[name] = values(seed, shape, 0.1, 1.0)
        else:
            found[name] = values(seed, shape, 0.4)
    return found


def norm(p, name, x):
    return F.layer_norm(x, [WIDTH], p[f"{name}.gamma"], p[f"{name}.beta"], 1e-12)


def product(p, name, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def attend(p, name, x):
    rows, tokens, _ = x.shape
    heads = lambda part: product(p, f"{name}.{part}", x).reshape(rows, tokens, HEADS, -1).transpose(1, 2)
    weights = torch.softmax(heads("query") @ heads("key").transpose(2, 3) / math.sqrt(WIDTH // HEADS), -1)
    return product(p, f"{name}.output", (weights @ heads("value")).transpose(1, 2).reshape(rows, tokens, WIDTH))


def head(p, running, name, x, layers):
    for layer in range(layers):
        x = x @ p[f"{name}.linears.{layer}.weight"]
        at = f"{name}.norms.{layer}"
        statistics = running[f"{at}.running_mean"], running[f"{at}.running_var"]
        x = F.batch_norm(x, *statistics, p[f"{at}.gamma"], p[f"{at}.beta"], training=True, momentum=0.1, eps=1e-5)
        if layer + 1 < layers:
            x = torch.relu(x)
    return x


def encode(p, running, name, pixels):
    at = f"{name}.embeddings"
    patches = F.conv2d(pixels, p[f"{at}.projection.weight"], p[f"{at}.projection.bias"], stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([p[f"{at}.class_token"].expand(len(pixels), 1, WIDTH), patches], 1) + positions()
    for layer in range(LAYERS):
        attention, network = f"{name}.layers.{layer}.self_attention", f"{name}.layers.{layer}.feed_forward"
        x = x + attend(p, f"{attention}.heads", norm(p, f"{attention}.norm", x))
        inner = F.gelu(product(p, f"{network}.dense.input", norm(p, f"{network}.norm", x)))
        x = x + product(p, f"{network}.dense.output", inner)
    return head(p, running, f"{name}.projector", norm(p, f"{name}.norm", x)[:, 0], 3)


def contrast(queries, keys):
    logits = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / TEMPERATURE
    return F.cross_entropy(logits, torch.arange(len(queries))) * 2 * TEMPERATURE


def follow(p, step):
    stays = 1 - 0.5 * (1 + math.cos(math.pi * step / SCHEDULE)) * (1 - MOMENTUM)
    for name in p:
        if name.startswith("momentum_"):
            p[name] = p[name] * stays + p[name.removeprefix("momentum_")].detach() * (1 - stays)


def main():
    p = initial()
    out = {f"initial.{name}": value.clone() for name, value in p.items()}
    p |= {f"momentum_{name}": value.clone() for name, value in p.items() if name.startswith("encoder.")}
    running = {}
    for name, value in p.items():
        if ".norms." in name and name.endswith("gamma"):
            at = name.removesuffix("gamma")
            running[f"{at}running_mean"], running[f"{at}running_var"] = torch.zeros_like(value), torch.ones_like(value)
    learned = [name for name in p if not name.startswith("momentum_") and not is_fixed(name)]
    for step in range(STEPS):
        views = [values(100 + 10 * step + view, [ROWS, 3, IMAGE, IMAGE]) for view in range(2)]
        follow(p, step)
        for name in learned:
            p[name] = p[name].detach().requires_grad_()
        queries, keys = [], []
        for view in views:
            queries.append(head(p, running, "predictor", encode(p, running, "encoder", view), 2))
            with torch.no_grad():
                keys.append(encode(p, running, "momentum_encoder", view))
        loss = contrast(queries[0], keys[1]) + contrast(queries[1], keys[0])
        loss.backward()
        out[f"first.{step}"], out[f"second.{step}"] = views
        out[f"loss.{step}"] = loss.detach().reshape(1)
        if step == 0:
            out |= {f"gradient.{name}": p[name].grad.clone() for name in learned}
        with torch.no_grad():
            for name in learned:
                p[name] = p[name] - RATE * p[name].grad
    follow(p, STEPS)
    out |= {f"final.{name}": value.detach().clone() for name, value in (p | running).items()}
    save_file({name: value.contiguous() for name, value in out.items()}, sys.argv[1])
    print(*(float(out[f"loss.{step}"]) for step in range(STEPS)))


main()
