#!/usr/bin/env python3
"""Writes fixtures/squad/pairs.json: predictions and answers with their SQuAD v1.1 scores.

    python3 tools/make_squad_pairs.py

Follows the published definition of exact match and f1 (Rajpurkar et al., 2016): lower case, no ASCII punctuation, no
English articles, single spaces; the best of a question's answers; zero without a prediction. Needs Python's standard
library only and always writes the same file. Numbers are not rounded.
"""

import collections
import json
import pathlib
import re
import string

FIXTURE = pathlib.Path(__file__).parent.parent / "fixtures" / "squad" / "pairs.json"

# (prediction or None, answers)
BY_HAND = [
    (None, ["Ada"]),
    (None, ["the", "a"]),
    ("", ["Ada"]),
    ("Ada", [""]),
    ("", [""]),
    ("the", ["a"]),
    ("An", ["..."]),
    ("?!", [",;"]),
    ("the", ["cat"]),
    ("cat", ["the"]),
    (" \t\n", ["the cat"]),
    ("the cat", ["cat"]),
    ("The Cat!", ["a cat", "dog"]),
    ("cat", ["dog", "cats", "the cat."]),
    ("red cat", ["cat", "red", "a red, red cat"]),
    ("U.S.A.", ["usa"]),
    ("U. S. A.", ["usa"]),
    ("U. S. A.", ["u s"]),
    ("a.b", ["ab"]),
    ("an-other", ["another"]),
    ("the-end", ["theend"]),
    ("the_end", ["theend"]),
    ("the end", ["end the"]),
    ("a a a", ["the an"]),
    ("theatre", ["atre"]),
    ("banana", ["bnn"]),
    ("it's", ["its"]),
    ("it\u2019s", ["its"]),
    ("it\u2019s", ["it's"]),
    ("a\u2019s", ["\u2019s"]),
    ("the\u2013end", ["\u2013end"]),
    ("the\u2013end", ["\u2013 end"]),
    ("\u201cA man\u201d", ["\u201c man\u201d"]),
    ("\u201ca\u201d", ["a"]),
    ("$5", ["5"]),
    ("\u20ac5", ["5"]),
    ("5%", ["5 %"]),
    ("1,000", ["1000"]),
    ("1.5", ["15"]),
    ("1 000", ["1000"]),
    ("\u00c4PFEL", ["\u00e4pfel"]),
    ("A\u0308PFEL", ["\u00e4pfel"]),
    ("caf\u00e9", ["cafe"]),
    ("cafe\u0301", ["caf\u00e9"]),
    ("a\u0301", ["\u0301"]),
    ("\u00e1", ["\u00c1"]),
    ("STRASSE", ["stra\u00dfe"]),
    ("STRA\u1e9eE", ["stra\u00dfe"]),
    ("\u0130stanbul", ["istanbul"]),
    ("\u0130stanbul", ["i\u0307stanbul"]),
    ("\u039f\u0394\u039f\u03a3", ["\u03bf\u03b4\u03cc\u03c2", "\u03bf\u03b4\u03bf\u03c2"]),
    ("\u039f\u0394\u039f\u03a3 \u03a3", ["\u03bf\u03b4\u03bf\u03c3 \u03c3"]),
    ("\u65e5\u672c", ["\u65e5\u672c"]),
    ("\u65e5 \u672c", ["\u65e5\u672c", "\u65e5"]),
    ("a\u65e5", ["\u65e5"]),
    ("\u3001a\u3001", ["\u3001\u3001", "\u3001 \u3001"]),
    ("\U0001f980 crab", ["\U0001f980"]),
    ("a\U0001f980", ["\U0001f980"]),
    ("\U0001f469\u200d\U0001f469", ["\U0001f469\U0001f469"]),
    ("the\u200bcat", ["cat"]),
    ("the\u200bcat", ["\u200bcat"]),
    ("red\u00a0cat", ["red cat"]),
    ("red\u3000cat", ["cat red"]),
    ("red\u2028cat", ["red cat"]),
    ("red\x85cat", ["red cat"]),
    ("red\x1ccat", ["red cat"]),
    ("red\x1fthe\x1ecat", ["red cat"]),
    ("red\x0bcat", ["red cat"]),
    ("red\x0ccat", ["redcat"]),
    ("red\x08cat", ["red cat"]),
    ("red\ufeffcat", ["red cat"]),
    ("red\n\n  cat", ["red cat"]),
    ("\u0430", ["a"]),
    ("\u0430 cat", ["a cat"]),
    ("\uff34\uff28\uff25 cat", ["the cat", "cat"]),
    ("the\u0663", ["\u0663"]),
    ("a\u00b2", ["\u00b2"]),
    ("a\u00bd cup", ["\u00bd cup"]),
    ("to be or not to be", ["to be"]),
    ("to be", ["to be or not to be"]),
    ("to", ["to to to"]),
    ("to to to to", ["to to"]),
    ("x y z x", ["x x y", "z z z x"]),
    ("1 1 2 3 5", ["1 2 3", "5 3 2 1 1"]),
]

WORDS = ["The", "red", "crab", "of", "a", "Zo\u00eb", "Lake", "an", "1911", "caf\u00e9", "rye-bread", "U.S.", "crab"]
MARKS = ["", ",", ".", "!", "'s", "\u2019s", "\u2026", " \u2013", ")"]
SPACES = [" ", "  ", "\t", "\u00a0", "\n"]


def text(seed, length):
    """Some words, signs and spaces; another seed gives another text."""
    parts = []
    for place in range(length):
        seed = (seed * 1103515245 + 12345) % 2**31
        word = WORDS[(seed >> 8) % len(WORDS)]
        parts.append((word.upper() if (seed >> 5) % 4 == 0 else word) + MARKS[(seed >> 13) % len(MARKS)])
        parts.append(SPACES[(seed >> 18) % len(SPACES)])
    return "".join(parts[:-1])


def drawn(seed):
    """A prediction with one to three answers, of which some share words with it."""
    prediction = text(seed, seed % 7)
    other = text(seed + 1000, 1 + seed % 4)
    answers = [
        [text(seed + 2000, 3 + seed % 3), other],
        [" ".join(reversed(prediction.split())), other],
        [prediction.lower() + ".", other, text(seed + 3000, 5)],
        [prediction + " " + other],
    ]
    return prediction, answers[seed % len(answers)]


def normalized(answer):
    answer = "".join(sign for sign in answer.lower() if sign not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer).split())


def exact(prediction, answer):
    return int(normalized(prediction) == normalized(answer))


def f1(prediction, answer):
    prediction, answer = normalized(prediction).split(), normalized(answer).split()
    same = sum((collections.Counter(prediction) & collections.Counter(answer)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(answer)
    return 2 * precision * recall / (precision + recall)


def scored(prediction, answers):
    best = {"exact_match": 0, "f1": 0.0}
    if prediction is not None:
        best["exact_match"] = max(exact(prediction, answer) for answer in answers)
        best["f1"] = max(f1(prediction, answer) for answer in answers)
    return {"prediction": prediction, "answers": answers, **best}


def main():
    pairs = [scored(*pair) for pair in BY_HAND + [drawn(seed) for seed in range(1, 201 - len(BY_HAND))]]
    sums = {"exact_match": 0, "f1": 0.0}
    for pair in pairs:
        # One after the other: newer versions of Python's sum() round less.
        sums = {name: value + pair[name] for name, value in sums.items()}
    percent = {name: 100.0 * value / len(pairs) for name, value in sums.items()}
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_text(json.dumps({**percent, "pairs": pairs}, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
