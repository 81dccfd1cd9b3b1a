"""What `transformers` writes, token by token with its cache: what a user would run instead.

    pip install torch transformers
    python generate_torch.py FOLDER [--rows 1] [--prompt 64] [--written 64] [--threads 2]

Greedy, behind prompts of equal length; the first run does not count. Prints one line:
`torch ms=MEDIAN tokens/s=.. peak_mib=.. written=tokens, with commas between, and semicolons between the rows`.
"""
import argparse, pathlib, resource, statistics, time

import torch
import transformers

RUNS = 4


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=pathlib.Path)
    for name, value in dict(rows=1, prompt=64, written=64, threads=2).items():
        arguments.add_argument(f"--{name}", type=int, default=value)
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    config = transformers.AutoConfig.from_pretrained(args.folder, local_files_only=True)
    model = getattr(transformers, config.architectures[0]).from_pretrained(args.folder, local_files_only=True).eval()
    vocab = config.vocab_size
    prompts = torch.tensor(
        [[3 + at * 7919 % (vocab - 3) for at in range(row * args.prompt, (row + 1) * args.prompt)] for row in range(args.rows)])
    begun = 1 if config.is_encoder_decoder else args.prompt
    # What would end a text, or fill one up, of a model that has such tokens.
    ends = model.generation_config.eos_token_id
    ends = set() if ends is None else {ends} if isinstance(ends, int) else set(ends)
    took = []
    for _ in range(RUNS):
        start = time.perf_counter()
        written = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, num_beams=1,
                                 max_new_tokens=args.written)
        took.append((time.perf_counter() - start) * 1e3)
    rows = []
    for row in written[:, begun:].tolist():
        stop = next((at for at, token in enumerate(row) if token in ends), len(row))
        rows.append(row[:stop])
    ms = statistics.median(took[1:])
    text = ";".join(",".join(map(str, row)) for row in rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"torch ms={ms:.1f} tokens/s={sum(map(len, rows)) / ms * 1e3:.0f} peak_mib={peak:.0f} written={text}")


if __name__ == "__main__":
    main()
