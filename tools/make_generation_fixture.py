"""Writes fixtures/transformers/{t5,gpt2,llama,qwen3,mixtral,gemma2}-reversed: small models that have learned to write what they are given backwards,
so far that they are not sure of all, and what `transformers` generates with each, as generation.json.

    pip install torch transformers
    cargo test --workspace --lib -- --ignored write_the_numbers     # fixtures/transformers/draws.json, of this crate's generator
    python tools/make_generation_fixture.py [KIND …]   # --keep: with the models that are stored, which are not trained again

Each entry of generation.json: the settings under the names of `GenerationConfig`, and for each prompt the tokens behind it (of T5
behind the start token) and before the one that ends the text. What is drawn follows the numbers of draws.json: the first token up to
which the probabilities come to more than the number.
"""

import json
import pathlib
import sys

import torch
import transformers as tf
from transformers.generation import logits_process as processors

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "transformers"
VOCAB, END, LONGEST = 40, 1, 12
SETTINGS = [
    {},
    {"beams": 4},
    {"beams": 4, "length_penalty": 0.0},
    {"beams": 3, "length_penalty": 4.0},
    {"beams": 3, "length_penalty": 4.0, "early_stopping": True},
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
TOKENS = dict(vocab_size=VOCAB, pad_token_id=0, eos_token_id=END, bos_token_id=0)
LLAMA = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, **TOKENS)
# By kind: the model, and the steps after which it is not sure of all.
MODELS = {
    "t5": (lambda: tf.T5ForConditionalGeneration(tf.T5Config(
        d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0, **TOKENS)), 230),
    "gpt2": (lambda: tf.GPT2LMHeadModel(tf.GPT2Config(
        n_embd=48, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **TOKENS)), 500),
    "llama": (lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)), 350),
    "qwen3": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(head_dim=16, tie_word_embeddings=True, **LLAMA)), 350),
    "mixtral": (lambda: tf.MixtralForCausalLM(tf.MixtralConfig(
        num_local_experts=4, num_experts_per_tok=2, **{**LLAMA, "intermediate_size": 48})), 350),
    # Prompts are longer than the window, and scores and logits reach their limits.
    "gemma2": (lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(
        head_dim=16, query_pre_attn_scalar=9, sliding_window=6, attn_logit_softcapping=4.0, final_logit_softcapping=6.0,
        **LLAMA)), 350),
}


def batch(kind, rows, generator):
    """Random sources of random lengths, and themselves backwards."""
    lengths = torch.randint(3, 9, (rows,), generator=generator)
    sources = [torch.randint(2, VOCAB, (int(length),), generator=generator).tolist() for length in lengths]
    if kind == "t5":
        inputs, labels = [source + [END] for source in sources], [source[::-1] + [END] for source in sources]
    else:
        inputs = [source + [END] + source[::-1] + [END] for source in sources]
        labels = [[-100] * (len(source) + 1) + source[::-1] + [END] for source in sources]
    pad = lambda all, filler: torch.tensor([row + [filler] * (max(map(len, all)) - len(row)) for row in all])
    ids = pad(inputs, 0)
    return dict(input_ids=ids, attention_mask=(ids != 0).long(), labels=pad(labels, -100))


def trained(kind):
    torch.manual_seed(3)
    make, steps = MODELS[kind]
    model, generator = make(), torch.Generator().manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model(**batch(kind, 64, generator)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(kind, float(loss))
    return model.eval()


def cut(tokens):
    return tokens[: tokens.index(END)] if END in tokens else tokens


def searched(kind, model, prompt, setting):
    keys = {"beams": "num_beams", "no_repeat_ngram": "no_repeat_ngram_size"}
    options = {keys.get(key, key): value for key, value in setting.items()}
    ids = torch.tensor([prompt])
    found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           max_new_tokens=LONGEST, **options)
    return cut(found[0, 1 if kind == "t5" else len(prompt):].tolist())


def drawn(kind, model, prompt, setting, numbers):
    every = tf.LogitsProcessorList()
    for key, processor in (
        ("repetition_penalty", processors.RepetitionPenaltyLogitsProcessor),
        ("temperature", processors.TemperatureLogitsWarper),
        ("top_k", processors.TopKLogitsWarper),
        ("top_p", processors.TopPLogitsWarper),
        ("min_p", processors.MinPLogitsWarper),
    ):
        if key in setting:
            every.append(processor(setting[key]))
    ids = torch.tensor([prompt])
    written = torch.tensor([[0]]) if kind == "t5" else ids
    begun = written.shape[1]
    for number in numbers[:LONGEST]:
        inputs = dict(input_ids=ids, decoder_input_ids=written) if kind == "t5" else dict(input_ids=written)
        probabilities = every(written, model(**inputs).logits[:, -1]).softmax(-1)[0]
        token = int((probabilities.double().cumsum(0) > number).nonzero()[0])
        if token == END:
            break
        written = torch.cat([written, torch.tensor([[token]])], 1)
    return written[0, begun:].tolist()


def stored(kind):
    auto = tf.AutoModelForSeq2SeqLM if kind == "t5" else tf.AutoModelForCausalLM
    return auto.from_pretrained(FIXTURES / f"{kind}-reversed").eval()


def write(kind, draws, keep):
    folder = FIXTURES / f"{kind}-reversed"
    model = stored(kind) if keep else trained(kind)
    if not keep:
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        (folder / "model.safetensors").chmod(0o644)
    generator = torch.Generator().manual_seed(11)
    # Some that it has learned to write, and longer ones that it has not.
    prompts = [torch.randint(2, VOCAB, (length,), generator=generator).tolist() + [END] for length in (3, 8, 5, 11, 6)]
    entries = []
    with torch.no_grad():
        for setting in SETTINGS:
            if setting.get("sample"):
                of = lambda row, prompt: drawn(kind, model, prompt, setting, draws["numbers"][row])
            else:
                of = lambda row, prompt: searched(kind, model, prompt, setting)
            entries.append({"settings": setting, "written": [of(row, prompt) for row, prompt in enumerate(prompts)]})
    text = {"longest": LONGEST, "seed": draws["seed"], "prompts": prompts, "entries": entries}
    (folder / "generation.json").write_text(json.dumps(text, separators=(",", ":")) + "\n")


def main():
    draws = json.loads((FIXTURES / "draws.json").read_text())
    named = [kind for kind in MODELS if kind in sys.argv[1:]]
    for kind in named or MODELS:
        write(kind, draws, "--keep" in sys.argv[1:])


if __name__ == "__main__":
    main()
