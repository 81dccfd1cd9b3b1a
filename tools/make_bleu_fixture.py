#!/usr/bin/env python3
"""Writes fixtures/bleu/pairs.json: pairs of (hypothesis, reference) with sacreBLEU's scores.

    python3 -m venv venv && venv/bin/pip install sacrebleu==2.6.0
    venv/bin/python tools/make_bleu_fixture.py

The sentences are made here, by hand and by rule. Every pair is scored as a corpus of one; the last entry is the
score of all pairs as one corpus.
"""
import json
import pathlib
import random

import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

BY_HAND = [
    # identical, nearly identical, other order
    ("A small boat waits at the pier.", "A small boat waits at the pier."),
    ("A small boat waits at a pier.", "A small boat waits at the pier."),
    ("At the pier waits a small boat.", "A small boat waits at the pier."),
    ("a small boat waits at the pier.", "A small boat waits at the pier."),
    # empty and short
    ("", "Nothing was written."),
    ("   ", "Nothing was written."),
    ("Something was written.", ""),
    ("", ""),
    ("yes", "yes"),
    ("yes", "no"),
    ("Yes, sir", "Yes, sir"),
    ("one two three", "one two three"),
    ("one two three four", "one two three four"),
    ("one two three five", "one two three four"),
    ("Yes", "Yes, we can do that tomorrow."),
    # too short, too long, repetition
    ("The gate is", "The gate is open until nine in the evening."),
    ("The gate is open until nine in the evening, every evening, until nine.", "The gate is open until nine."),
    ("the the the the the the the", "the cat is on the mat"),
    ("no match whatsoever here", "entirely different words appear below"),
    ("one match here", "we found just one example of it there"),
    # numbers
    ("It costs 1,000.5 crowns.", "It costs 1,000.5 crowns."),
    ("It costs 1000.5 crowns.", "It costs 1,000.5 crowns."),
    ("Version 2.10 of 3.", "Version 2.10 of 3."),
    ("Room 7.", "Room 7 ."),
    ("In 2019, 2020 and 2021,", "In 2019 , 2020 and 2021 ,"),
    (".5 of it, or 5. of it", "0.5 of it, or 5.0 of it"),
    ("3-4 hours, 10-year-old", "3 - 4 hours, 10 -year-old"),
    ("1-2-3-4 and -5", "1 - 2 - 3 - 4 and - 5"),
    ("1,2,3.4.5,,6..7", "1,2,3.4.5, , 6. . 7"),
    ("at 09:30 on 24/12", "at 09 : 30 on 24 / 12"),
    ("50% of $20 is $10", "50 % of $ 20 is $ 10"),
    # stops, commas, ellipses
    ("Wait... what?!", "Wait . . . what ? !"),
    ("a.b.c. d,e,f,", "a . b . c . d , e , f ,"),
    ("...", "..."),
    ("....", ". . . ."),
    (",.,.,", ", . , . ,"),
    ("U.S. troops, e.g. here, i.e. there.", "U.S. troops, e.g. there, i.e. here."),
    ("End.\"Begin", "End . \" Begin"),
    # quotes, brackets, signs
    ("\"Stop\", she said.", "\"Stop,\" she said."),
    ("It's the dogs' bowl, isn't it?", "It is the dogs' bowl, isn't it?"),
    ("(see below) [1] {x}", "( see below ) [ 1 ] { x }"),
    ("a+b=c; d*e<f>g", "a + b = c ; d * e < f > g"),
    ("mail_me@example.org #tag ~home ^up `code` |pipe| \\back", "mail_me @ example.org # tag ~ home"),
    ("well-known state-of-the-art - dash -- two", "well-known state-of-the-art – dash — two"),
    # entities and skipped
    ("&quot;Quoted&quot; &amp; joined", "\"Quoted\" & joined"),
    ("&lt;b&gt; is &amp;lt;b&amp;gt;", "<b> is <b>"),
    ("&apos;kept&apos; &nbsp;", "'kept' &nbsp;"),
    ("&amp;quot; stays", "&quot; stays"),
    ("before <skipped> after", "before after"),
    ("line one\nline two", "line one line two"),
    ("hyphen-\nated word in a text", "hyphenated word in a text"),
    ("a line with an end\n", "a line with an end"),
    ("windows line\r", "windows line"),
    # beyond ASCII
    ("Der Fluß fließt über größere Äcker.", "Der Fluss fließt über größere Äcker."),
    ("„So nicht“, sagte sie – leise.", "„So nicht“, sagte er – leise."),
    ("« Oui », dit-il… « non »", "« Oui », dit-il… « si »"),
    ("naïve café № 5 €3,50 ½", "naive café № 5 €3,50 ½"),
    ("東京 は 大きい 。 そう です", "東京 は 小さい 。 そう です"),
    ("२.५ और ٣.٥ sind keine ASCII-Ziffern", "२ . ५ और ٣ . ٥ sind keine ASCII-Ziffern"),
    ("smile 😀 twice 😀😀.", "smile 😀 twice 😀 😀."),
    ("a\u00a0b\u2003c\u3000d\te", "a b c d e"),
    ("x\u001cy\u001dz\u001ew\u001fv\u0085u", "x y z w v u"),
    ("zero\u200bwidth and\u2060joiner stay here", "zero width and joiner stay here"),
    ("e\u0301t\u00e9 is written in two ways", "\u00e9te\u0301 is written in two ways"),
    ("trailing space   ", "trailing space"),
    ("\u3000leading wide space", "leading wide space"),
]

SUBJECTS = ["The old miller", "A grey heron", "Our neighbour", "The second train", "Every student", "Nobody"]
VERBS = ["watches", "carries", "forgets", "repairs", "paints", "sells"]
OBJECTS = ["the long bridge", "a red lamp", "two wooden chairs", "some letters", "the 1,250 tickets", "a clock-tower"]
TAILS = ["before noon.", "in the rain, slowly.", "without a word!", "at 6.45 p.m.", "(again).", "for \"the club\"."]


def by_rule(count: int, seed: int):
    """A sentence, and the same with words dropped, doubled, swapped or exchanged."""
    draw = random.Random(seed)
    words = " ".join(SUBJECTS + VERBS + OBJECTS + TAILS).split()
    for _ in range(count):
        reference = [w for part in (SUBJECTS, VERBS, OBJECTS, TAILS) for w in draw.choice(part).split()]
        if draw.random() < 0.4:
            reference += ["And"] + [w for part in (SUBJECTS, VERBS, OBJECTS) for w in draw.choice(part).split()] + ["too."]
        hypothesis = list(reference)
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(hypothesis))
            kind = draw.randrange(4)
            if kind == 0 and len(hypothesis) > 1:
                del hypothesis[at]
            elif kind == 1:
                hypothesis.insert(at, hypothesis[at])
            elif kind == 2 and at > 0:
                hypothesis[at - 1], hypothesis[at] = hypothesis[at], hypothesis[at - 1]
            else:
                hypothesis[at] = draw.choice(words)
        yield " ".join(hypothesis), " ".join(reference)


def components(score) -> dict:
    return {
        "score": score.score,
        "precisions": list(score.precisions),
        "brevity_penalty": score.bp,
        "hypothesis_length": score.sys_len,
        "reference_length": score.ref_len,
        "matches": list(score.counts),
        "totals": list(score.totals),
    }


def main():
    pairs = BY_HAND + list(by_rule(40, seed=13))
    metric, tokenize = BLEU(), Tokenizer13a()
    entries = []
    for hypothesis, reference in pairs:
        entries.append({
            "hypothesis": hypothesis,
            "reference": reference,
            # As BLEU itself calls it.
            "hypothesis_tokens": tokenize(hypothesis.rstrip()).split(),
            "reference_tokens": tokenize(reference.rstrip()).split(),
            "bleu": components(metric.corpus_score([hypothesis], [[reference]])),
        })
    corpus = metric.corpus_score([h for h, _ in pairs], [[r for _, r in pairs]])
    fixture = {
        "sacrebleu": sacrebleu.__version__,
        "signature": str(metric.get_signature()),
        "pairs": entries,
        "corpus": components(corpus),
    }
    path = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "bleu" / "pairs.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fixture, indent=1, ensure_ascii=True) + "\n")
    print(f"{len(pairs)} pairs, corpus {corpus}")


if __name__ == "__main__":
    main()
