"""Counts of the code's structure, printed as a table; of an earlier commit with `--at COMMIT`.

    python3 tools/counts.py [--at COMMIT] [--list]

`--list` names what is behind each count. The predicates are those that ask where a parameter, its gradient or its
optimizer state lives: outside the rooms that decide it, nobody should have to.
"""

import argparse
import re
import subprocess
from collections import defaultdict
from pathlib import Path

CRATES = ["epl-comm", "epl-launch", "epl-core", "epl-modules", "epl-models"]
PREDICATES = [
    r"\.parks\(\)", r"\.offloads\(\)", r"shards_parameters\(\)", r"shards_gradients\(\)", r"reduces_each\(\)",
    r"is_parked\(", r"\.parked\b(?!\.)", r"\.shards\.is_empty\(\)", r"away\.is_some\(\)", r"one_pass\.is_some\(\)",
    r"\belement_wise\b", r"scatters\(\)",
    # Their successors.
    r"\.residency\b", r"\.gathers\(\)", r"\bHome::", r"\bForm::", r"\.scatters\b", r"is_gathered\(", r"is_sharded\(",
]
# `optim` says which optimizers update each element by itself.
DECIDE = ("epl-core/src/params/", "epl-core/src/plan/", "epl-core/src/optim/")
# Types of one name in a crate that stay.
ALIKE = {
    "epl-core": {
        "Batch": "the sizes of a batch, in `config`, and the trait of what a model reads",
        "BertAdam": "the optimizer, and its rule for state away from the device, private, as the others' are called like Burn's",
        "Constants": "each update rule's own, which its trait names",
    },
    "epl-modules": {
        "Activation": "a function, and in `nn` Burn's name of the module that is one",
        "DropoutConfig": "and in `nn` Burn's, whose `init` takes nothing",
        "MultiHeadAttention": "and in `nn` Burn's name",
        "MultiHeadAttentionConfig": "and in `nn` Burn's name",
        "Saved": "each operation's own, private: what its backward needs",
    },
    "epl-models": {"Error": "each room's own, as `std::io::Error` and `std::fmt::Error`"},
}
# Public items that users need, though nothing outside their crate names them.
NEEDED = {
    "hooks that a trainer is given by default, for who makes a list of their own": """
        CheckReplicas Curve EvaluateEvery EvaluateWith KeepBest MetricsLog OpenFolder Progress SaveEvery
        StopOnRequest ValidLoss
    """,
    "what an error holds, to be matched": """
        CostError LayoutError NotAnAction OverBudget Fits Setting Unlinked UnknownPreset WrongShape
    """,
    "what a configuration's `init` gives": """
        FileSampler LengthSampler ImageFolder NumberPairs NumberSplit ShapesSplit BertForMaskedLanguage
    """,
    "what a public function or field gives, to be stored or passed on": """
        Accumulated GlobalBatch Bucket Shard Compared DeviceSlot EvalReport FileEntry Slice Fit Flow
        SegmentActivations LossScaleState LossTerms MemoryLine StepPhase OptionSpec PlannedMemory SegmentProfile
        Summary TermKind WindowMut DataSource ModelChunk StepData MemoryUsage Crossing MoeOutput Rules Router
        Article Backbone ConvNorm ResidualLayer BertEmbeddings Stack ClassLabels TokenLabels BertCarry
        JsonConfig NameTable Exported BleuCounts ExactMatch ORDER
    """,
    "what a public alias or trait of a transport holds": """
        InProcess PerProcess Distributed CudaBlock CudaPoint CudaQueue LogEntry VjpInputs
    """,
    "learning rates beside the options'": "BurnLrSchedule SequentialLr",
    "what `Model::batch_tensors`, a group's closure and an option of paths take or give": """
        BatchTensors FloatTypes GroupSettings PathNumber WholeLayer
    """,
    "Burn's names in `nn`": """
        MhaOutput TensorCache TransformerDecoderAutoregressiveCache TransformerDecoderLayerAutoregressiveCache
        TransformerEncoderAutoregressiveCache TransformerEncoderLayerAutoregressiveCache
    """,
    "traits that say what a function takes": "CarryReader FromSetting ToSetting Operand SplitConvInput SplitInput",
    "functions for programs without a trainer or an evaluator": "write_trace option_table tokenize_13a english",
}
ITEM = re.compile(r"^pub (?:unsafe )?(?:fn|struct|enum|trait|type|const|static|mod) (\w+)", re.M)
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union) (\w+)", re.M)


def sources(commit):
    """The text of every Rust and Markdown file, by its path."""
    if commit is None:
        names = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
        return {name: Path(name).read_text() for name in names if name.endswith((".rs", ".md")) and Path(name).exists()}
    names = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    shown = lambda name: subprocess.run(["git", "show", f"{commit}:{name}"], capture_output=True, text=True).stdout
    return {name: shown(name) for name in names if name.endswith((".rs", ".md"))}


def without_tests(text):
    """The part of a file before its inline tests, without comments."""
    text = re.split(r"^#\[cfg\(test\)\]\nmod ", text, maxsplit=1, flags=re.M)[0]
    return re.sub(r"//.*", "", text)


def lines(text):
    code = comments = tests = 0
    body, *inline = re.split(r"^#\[cfg\(test\)\]\nmod ", text, maxsplit=1, flags=re.M)
    for line in body.split("\n"):
        line = line.strip()
        comments += line.startswith("//")
        code += bool(line) and not line.startswith("//")
    for part in inline:
        tests += sum(bool(line.strip()) for line in part.split("\n"))
    return code, comments, tests


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--at", metavar="COMMIT")
    arguments.add_argument("--list", action="store_true")
    arguments = arguments.parse_args()
    files = sources(arguments.at)
    rust = {name: text for name, text in files.items() if name.endswith(".rs")}
    found = []

    def count(what, items):
        items = list(items)
        print(f"| {what} | {len(items)} |")
        found.append((what, items))

    print("| crate | files | lines of code | of comments | of inline tests | siblings at the root |")
    print("|---|---|---|---|---|---|")
    for crate in CRATES:
        own = {name: text for name, text in rust.items() if name.startswith(f"{crate}/src/")}
        if not own:
            continue
        code, comments, tests = (sum(part) for part in zip(*map(lines, own.values())))
        root = without_tests(own.get(f"{crate}/src/lib.rs", ""))
        siblings = len(re.findall(r"^(?:pub(?:\([^)]*\))? )?mod \w+;", root, re.M))
        print(f"| {crate} | {len(own)} | {code} | {comments} | {tests} | {siblings} |")

    print("\n| count | |\n|---|---|")
    core = {name: without_tests(text) for name, text in rust.items() if name.startswith("epl-core/src/")}

    def places(pattern, of):
        for name, text in of.items():
            for number, line in enumerate(text.split("\n"), 1):
                if re.search(pattern, line):
                    yield f"{name}:{number} {line.strip()[:110]}"

    outside = {name: text for name, text in core.items() if not name.startswith(DECIDE)}
    count("`impl Engine` blocks", places(r"^impl\b.*\bEngine<", core))
    count("questions where state lives, outside params/ and plan/", places("|".join(PREDICATES), outside))
    count("`&mut Plan` outside plan/", places(r"&mut Plan\b", {n: t for n, t in core.items() if "/plan/" not in n}))
    count("writes to a plan outside plan/", places(r"\bplan\.\w+(?:\.\w+)* = ", {n: t for n, t in core.items() if "/plan/" not in n}))

    for crate in CRATES:
        own = {name: without_tests(text) for name, text in rust.items() if name.startswith(f"{crate}/src/")}
        if not own:
            continue
        types = defaultdict(list)
        for name, text in own.items():
            for type_name in TYPE.findall(text):
                types[type_name].append(name)
        count(f"types defined more than once in {crate}", (
            f"{t}: {', '.join(n)}" for t, n in types.items() if len(n) > 1 and t not in ALIKE.get(crate, {})
        ))
    needed = {item for items in NEEDED.values() for item in items.split()}
    words = {name: set(re.findall(r"\w+", text)) for name, text in files.items()}
    for crate in CRATES:
        own = {name: without_tests(text) for name, text in rust.items() if name.startswith(f"{crate}/src/")}
        if not own:
            continue
        others = [found for name, found in words.items() if not name.startswith(f"{crate}/src/")]
        items = {item: name for name, text in own.items() for item in ITEM.findall(text)}
        unnamed = (
            f"{item}: {name}"
            for item, name in items.items()
            if item not in needed and not any(item in found for found in others)
        )
        count(f"public items of {crate} that nothing outside it names", unnamed)

    if arguments.list:
        for what, items in found:
            print(f"\n{what}")
            for item in sorted(items):
                print(f"  {item}")


if __name__ == "__main__":
    main()
