"""Have TensorBoard's own reader read the events of a run, and compare them with its metrics.jsonl.

    cargo run --release --example moe_t5 -- --out out/seen --set train.tensorboard=true
    pip install tensorboard
    python tools/check_tensorboard.py out/seen

Exit 0: each step's loss, norm and rate, and each evaluation, are there once, as written, rounded to f32.
"""
import json, pathlib, struct, sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

OTHERS = {"step", "terms", "weights", "metrics"}


def main():
    out = pathlib.Path(sys.argv[1])
    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rounded = lambda value: struct.unpack("f", struct.pack("f", value))[0]
    compared = 0
    for line in lines:
        numbers = {key: value for key, value in line.items() if key not in OTHERS and value is not None}
        for group in ("terms", "weights"):
            numbers |= {f"{group}/{name}": value for name, value in line.get(group, {}).items()}
        for tag, value in numbers.items():
            assert found[tag][line["step"]] == rounded(value), (tag, line["step"], found[tag].get(line["step"]), value)
            compared += 1
    steps = sorted(found["loss"])
    assert steps == [line["step"] for line in lines], (steps[:3], len(steps), len(lines))
    print(f"{len(steps)} steps, {len(found)} tags: {compared} numbers as in metrics.jsonl")


if __name__ == "__main__":
    main()
