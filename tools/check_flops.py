"""Compare the floating-point operations that EPL counts of a step with those that PyTorch's counter counts.

    cargo run --release --example hf_parity -- fixtures/transformers/{gpt2,llama,vit} | tee out/parity
    python tools/check_flops.py out/parity

PyTorch's `FlopCounterMode` counts the products of one forward of `transformers`, eager, on the inputs of each folder; a step has three
times as many. Exit 0: each differs by at most 1 %, or has fewer where `transformers` computes what is hidden or dropped then: pairs
outside a sliding window, the pixels of a masked autoencoder's class token.

    pip install torch transformers safetensors
"""
import argparse, json, pathlib, re, sys

import torch
import transformers
from make_resmlp_fixture import ResMLP
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

TOLERANCE = 0.01
MOST_FOR_NOTHING = 0.05
OF_STEP = 3
LINE = re.compile(r"^(\S+): logits .* flops (\d+|unknown)$")


def counted(folder):
    """The operations of a forward on the folder's inputs, and what of them is for nothing."""
    stored = load_file(folder / "io.safetensors")
    inputs = {name.removeprefix("input."): value for name, value in stored.items() if name.startswith("input.")}
    config = json.loads((folder / "config.json").read_text())
    if "model_type" in config:
        architecture = getattr(transformers, config["architectures"][0])
        # Grouped products of experts are not counted.
        eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
        model = architecture.from_pretrained(folder, local_files_only=True, **eager).eval()
    else:
        model = ResMLP.of(load_file(folder / "model.safetensors"))
        inputs = {"x": inputs["pixel_values"]}
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(*inputs.values()) if "x" in inputs else model(**inputs)
    window = "outside the window" if config.get("sliding_window") else None
    pixels = "of the class token's pixels" if config.get("model_type") == "vit_mae" else None
    return counter.get_total_flops(), window or pixels


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parity", type=pathlib.Path, help="what hf_parity has printed")
    text = arguments.parse_args().parity.read_text().splitlines()
    lines = [LINE.match(line) for line in text if ": logits " in line]
    if not all(lines):
        sys.exit(f"a line of hf_parity without flops: {text[lines.index(None)]}")
    found = [(pathlib.Path(line[1]), line[2]) for line in lines if line]
    if not found:
        sys.exit("no line of hf_parity with flops")
    failed = False
    for folder, ours in found:
        forward, for_nothing = counted(folder)
        theirs = OF_STEP * forward
        apart = abs(float(ours) - theirs) / theirs if ours != "unknown" else float("inf")
        passed = apart <= TOLERANCE or (for_nothing and ours != "unknown" and (1 - MOST_FOR_NOTHING) * theirs <= float(ours) < theirs)
        failed |= not passed
        notes = (f", theirs also {for_nothing}" if for_nothing else "") + ("" if passed else "  FAILED")
        print(f"{folder}: {ours}, by PyTorch's counter {theirs}: {100 * apart:.2f} % apart{notes}")
    print(f"{len(found)} models; torch {torch.__version__}, transformers {transformers.__version__}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
