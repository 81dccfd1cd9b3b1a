"""Have `transformers` load exported models, and compare its logits with ours.

    cargo run --release --example hf_parity -- fixtures/transformers/t5 --data 2 --export out/exported
    python tools/check_export.py out/exported/*

A folder holds `config.json`, `model.safetensors` and `io.safetensors`: `input.NAME` and `logits`. One of timm's format, a ResMLP, is
loaded by the model of `make_resmlp_fixture.py`, and by timm where that is installed and has the size. Exit 0: the
largest error of every model, max|a - b| / max|b|, is at most 1e-4, and every stored tensor was used, none drawn anew.
Exit 1: not so. The architecture is the one that `config.json` names; nothing is downloaded.

    pip install torch transformers safetensors
"""
import argparse, importlib.util, json, pathlib, sys

import torch
import transformers
from make_resmlp_fixture import ResMLP
from safetensors.torch import load_file

TOLERANCE = 1e-4
LABELS = ("labels", "start_positions", "end_positions", "next_sentence_label")
# The arguments that timm's `resmlp_*` take.
OF_TIMM = {"img_size", "in_chans", "drop_path_rate"}


def check(folder):
    """The largest error of the logits, and what did not fit while loading."""
    config = json.loads((folder / "config.json").read_text())
    if "model_type" not in config:
        return check_resmlp(folder, config), {}
    architecture = getattr(transformers, config["architectures"][0])
    model, loading = architecture.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    unfit = {what: sorted(map(str, names)) for what, names in loading.items() if names}
    stored = load_file(folder / "io.safetensors")
    inputs = {name.removeprefix("input."): value for name, value in stored.items() if name.startswith("input.")}
    # An encoder and a decoder are given what the decoder reads by the labels.
    if not model.config.is_encoder_decoder:
        inputs = {name: value for name, value in inputs.items() if name not in LABELS}
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    if "start_logits" in outputs:
        logits = torch.stack([outputs.start_logits, outputs.end_logits], -1)
    elif "prediction_logits" in outputs:
        logits = outputs.prediction_logits
    else:
        logits = outputs.logits
    expected = stored["logits"]
    # A head that classifies rows has one position here.
    logits = logits.reshape(expected.shape)
    return float((logits - expected).abs().max() / logits.abs().max()), unfit


def check_resmlp(folder, config):
    """The largest error of the logits of a model of timm's format, which names all its weights."""
    stored = load_file(folder / "io.safetensors")
    models = [ResMLP.of(load_file(folder / "model.safetensors"))]
    if importlib.util.find_spec("timm") and set(config.get("model_args", {})) <= OF_TIMM:
        import timm

        models.append(timm.create_model(f"local-dir:{folder}", pretrained=True).eval())
    with torch.no_grad():
        found = [model(stored["input.pixel_values"]) for model in models]
    return max(float((logits - stored["logits"]).abs().max() / logits.abs().max()) for logits in found)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER")
    failed = False
    for folder in arguments.parse_args().folders:
        error, unfit = check(folder)
        passed = error <= TOLERANCE and not unfit
        failed |= not passed
        print(f"{folder}: logits {error:.1e}" + (f"; {unfit}" if unfit else "") + ("" if passed else "  FAILED"))
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
