"""Write fixtures/param_groups.json: a small model after 20 steps of PyTorch's optimizers with three parameter groups.

Everything is in f64: the values that the parameters begin with, the batches, and the parameters after the steps, of

- AdamW and SGD: torch.optim.AdamW and torch.optim.SGD;
- Adam without bias correction, which PyTorch does not have: the update of BERT's AdamWeightDecayOptimizer
  (google-research/bert, optimization.py) on PyTorch's gradients.

The model is tanh(x W + b), a layer norm, and a linear head; the loss is the mean square. The groups:

1. the weight of the first layer, as the optimizer says;
2. biases and the norm, without weight decay;
3. the weight of the head, with half of the rate and settings of its own.

    pip install torch==2.15.0
    python tools/make_param_groups_fixture.py fixtures/param_groups.json
"""
import json
import math
import sys

import torch

STEPS, ROWS, FEATURES, HIDDEN = 20, 5, 3, 4
RATE = 5e-3
SHAPES = {
    "first.weight": [FEATURES, HIDDEN],
    "first.bias": [HIDDEN],
    "norm.gamma": [HIDDEN],
    "norm.beta": [HIDDEN],
    "head.weight": [HIDDEN, 2],
    "head.bias": [2],
}
GROUPS = [["first.weight"], ["first.bias", "norm.gamma", "norm.beta", "head.bias"], ["head.weight"]]


def values(seed, shape):
    count = math.prod(shape)
    return torch.tensor([math.sin(seed * 7 + index * 1.3) for index in range(count)], dtype=torch.float64).reshape(shape)


def initial():
    return {name: values(seed, shape) * 0.5 for seed, (name, shape) in enumerate(SHAPES.items())}


def batch(step):
    return values(100 + step, [ROWS, FEATURES]), values(200 + step, [ROWS, 2])


def loss_of(p, x, y):
    hidden = torch.tanh(x @ p["first.weight"] + p["first.bias"])
    hidden = torch.nn.functional.layer_norm(hidden, [HIDDEN], p["norm.gamma"], p["norm.beta"], eps=1e-5)
    return ((hidden @ p["head.weight"] + p["head.bias"] - y) ** 2).mean()


class BertAdam(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            beta_1, beta_2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m, v = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p))
                state["m"] = m = beta_1 * m + (1 - beta_1) * p.grad
                state["v"] = v = beta_2 * v + (1 - beta_2) * p.grad**2
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p.detach()
                p.data -= group["lr"] * update


# Of each optimizer: its class, its settings, and those of the third group.
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1), dict(betas=(0.8, 0.99))),
    "BertAdam": (BertAdam, dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1), dict(betas=(0.8, 0.99))),
    "SGD": (torch.optim.SGD, dict(momentum=0.9, dampening=0.1, weight_decay=0.1), dict(momentum=0.5)),
}


def trained(kind, settings, own):
    p = {name: value.requires_grad_() for name, value in initial().items()}
    said = [{}, dict(weight_decay=0.0), dict(lr=RATE * 0.5, **own)]
    groups = [dict(params=[p[name] for name in names], **more) for names, more in zip(GROUPS, said)]
    optimizer = kind(groups, dict(lr=RATE, **settings)) if kind is BertAdam else kind(groups, lr=RATE, **settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(p, *batch(step)).backward()
        optimizer.step()
    return p


def listed(tensors):
    return {name: value.detach().reshape(-1).tolist() for name, value in tensors.items()}


def main():
    found = {name: listed(trained(*said)) for name, said in OPTIMIZERS.items()}
    batches = [[part.reshape(-1).tolist() for part in batch(step)] for step in range(STEPS)]
    with open(sys.argv[1], "w") as file:
        json.dump(dict(torch=torch.__version__, rate=RATE, initial=listed(initial()), batches=batches, trained=found), file)
        file.write("\n")


if __name__ == "__main__":
    main()
