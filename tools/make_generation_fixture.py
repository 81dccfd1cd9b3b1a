"""Writes fixtures/transformers/t5-reversed: a small T5 that has learned to write its source backwards, and what `transformers`
generates with it, as generation.json.

    pip install torch transformers
    cargo test --workspace --lib -- --ignored write_the_numbers     # fixtures/transformers/draws.json, of this crate's generator
    python tools/make_generation_fixture.py

Each entry of generation.json: the settings under the names of `GenerationConfig`, and for each prompt the tokens behind the start
token and before the one that ends it. What is drawn follows the numbers of draws.json: the first token up to which the probabilities
come to more than the number.
"""

import json
import pathlib

import torch
from transformers import LogitsProcessorList, T5Config, T5ForConditionalGeneration
from transformers.generation import logits_process as processors

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "transformers"
VOCAB, END, LONGEST = 40, 1, 12
SETTINGS = [
    {},
    {"beams": 4},
    {"beams": 4, "length_penalty": 0.0},
    {"beams": 3, "length_penalty": 2.5},
    {"beams": 4, "early_stopping": True},
    {"beams": 4, "no_repeat_ngram": 2, "repetition_penalty": 1.3},
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram": 1},
    {"sample": True},
    {"sample": True, "temperature": 2.5},
    {"sample": True, "temperature": 3.0, "top_k": 5},
    {"sample": True, "temperature": 3.0, "top_p": 0.8},
    {"sample": True, "temperature": 3.0, "min_p": 0.2},
    {"sample": True, "temperature": 2.0, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2},
]


def batch(rows, generator):
    """Random sources of random lengths, and themselves backwards."""
    lengths = torch.randint(3, 9, (rows,), generator=generator)
    sources = [torch.randint(2, VOCAB, (int(length),), generator=generator).tolist() for length in lengths]
    width = max(map(len, sources)) + 1
    padded = lambda row, filler: row + [filler] * (width - len(row))
    ids = torch.tensor([padded(source + [END], 0) for source in sources])
    labels = torch.tensor([padded(source[::-1] + [END], -100) for source in sources])
    return ids, (ids != 0).long(), labels


def trained():
    torch.manual_seed(3)
    config = T5Config(vocab_size=VOCAB, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
                      decoder_start_token_id=0, pad_token_id=0, eos_token_id=END)
    model = T5ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(230):  # So few that it is not sure of all: beams and greedy differ.
        ids, mask, labels = batch(64, generator)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, float(loss))
    return model.eval()


def cut(tokens):
    return tokens[: tokens.index(END)] if END in tokens else tokens


def searched(model, prompt, setting):
    keys = {"beams": "num_beams", "no_repeat_ngram": "no_repeat_ngram_size"}
    options = {keys.get(key, key): value for key, value in setting.items()}
    ids = torch.tensor([prompt])
    found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           max_new_tokens=LONGEST, **options)
    return cut(found[0, 1:].tolist())


def drawn(model, prompt, setting, numbers):
    every = LogitsProcessorList()
    if "repetition_penalty" in setting:
        every.append(processors.RepetitionPenaltyLogitsProcessor(setting["repetition_penalty"]))
    if "temperature" in setting:
        every.append(processors.TemperatureLogitsWarper(setting["temperature"]))
    if "top_k" in setting:
        every.append(processors.TopKLogitsWarper(setting["top_k"]))
    if "top_p" in setting:
        every.append(processors.TopPLogitsWarper(setting["top_p"]))
    if "min_p" in setting:
        every.append(processors.MinPLogitsWarper(setting["min_p"]))
    ids, written = torch.tensor([prompt]), torch.tensor([[0]])
    for number in numbers[:LONGEST]:
        logits = model(input_ids=ids, decoder_input_ids=written).logits[:, -1]
        probabilities = every(written, logits).softmax(-1)[0]
        token = int((probabilities.double().cumsum(0) > number).nonzero()[0])
        if token == END:
            break
        written = torch.cat([written, torch.tensor([[token]])], 1)
    return written[0, 1:].tolist()


def main():
    model = trained()
    folder = FIXTURES / "t5-reversed"
    model.save_pretrained(folder)
    draws = json.loads((FIXTURES / "draws.json").read_text())
    generator = torch.Generator().manual_seed(11)
    # Some that it has learned to write, and longer ones that it has not.
    prompts = [torch.randint(2, VOCAB, (length,), generator=generator).tolist() + [END] for length in (3, 8, 5, 11, 6)]
    entries = []
    with torch.no_grad():
        for setting in SETTINGS:
            if setting.get("sample"):
                written = [drawn(model, prompt, setting, draws["numbers"][row]) for row, prompt in enumerate(prompts)]
            else:
                written = [searched(model, prompt, setting) for prompt in prompts]
            entries.append({"settings": setting, "written": written})
    text = {"longest": LONGEST, "seed": draws["seed"], "prompts": prompts, "entries": entries}
    (folder / "generation_config.json").unlink()
    (folder / "generation.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
