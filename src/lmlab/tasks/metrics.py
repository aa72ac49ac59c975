"""Task metrics: accuracy, exact match, macro, entity and token F1, ROUGE, BLEU, majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from lmlab.scoring.translation_metrics import make_metric


def accuracy(expected: Sequence[object], predicted: Sequence[object]) -> float:
    """The proportion of answers equal to the expected ones."""
    assert len(expected) == len(predicted), (len(expected), len(predicted))
    return sum(a == b for a, b in zip(expected, predicted, strict=True)) / max(len(expected), 1)


def exact_match(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Share of answers that equal the expected text, but for whitespace around it."""
    return accuracy([text.strip() for text in expected], [text.strip() for text in predicted])


def macro_f1(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Macro F1: the mean of 2PR / (P + R) over the labels that are expected somewhere."""
    scores = []
    for label in sorted(set(expected)):
        hits = sum(a == b == label for a, b in zip(expected, predicted, strict=True))
        predicted_count = sum(b == label for b in predicted)
        scores.append(2 * hits / (predicted_count + sum(a == label for a in expected)))
    return sum(scores) / max(len(scores), 1)


def majority_accuracy(expected: Sequence[object]) -> float:
    """Majority baseline: the accuracy of the split's own most frequent answer, an upper bound for
    guessing without the input."""
    return max(Counter(expected).values(), default=0) / max(len(expected), 1)


def tagged_entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first, last + 1, kind) of each entity marked by B- and I- tags; a lone I- begins one."""
    entities: set[tuple[int, int, str]] = set()
    start, kind = 0, ""
    for position, tag in enumerate([*tags, "O"]):
        continues = tag.startswith("I-") and tag[2:] == kind
        if kind and not continues:
            entities.add((start, position, kind))
            kind = ""
        if not continues and tag[:2] in ("B-", "I-"):
            start, kind = position, tag[2:]
    return entities


def f1(hits: int, predicted: int, expected: int) -> float:
    """F1 = 2 · hits / (predicted + expected), of three counts; 1 if the last two are 0."""
    return 2 * hits / (predicted + expected) if predicted + expected else 1.0


def entity_f1(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Entity F1 over all sequences: correct if boundaries and kind are (CoNLL)."""
    gold = {(i, *entity) for i, tags in enumerate(expected) for entity in tagged_entities(tags)}
    output = {(i, *entity) for i, tags in enumerate(predicted) for entity in tagged_entities(tags)}
    assert len(expected) == len(predicted), (len(expected), len(predicted))
    return f1(len(gold & output), len(output), len(gold))


def token_f1(expected: str, predicted: str) -> float:
    """Token F1 of the words of two texts as bags (SQuAD)."""
    return _bag_f1(Counter(metric_words(expected)), Counter(metric_words(predicted)))


def _bag_f1(gold: Counter[Any], output: Counter[Any]) -> float:
    return f1((gold & output).total(), output.total(), gold.total())


def metric_words(text: str) -> list[str]:
    """Lower-case words; characters if there are no spaces between them (Chinese)."""
    parts = text.lower().split()
    return list(parts[0]) if len(parts) == 1 and not parts[0].isascii() else parts


def rouge_n(expected: str, predicted: str, n: int = 1) -> float:
    """ROUGE-N: F1 of n-grams with clipped counts (Lin 2004); 0 if neither text has any."""
    gold, output = (Counter(_grams(metric_words(text), n)) for text in (expected, predicted))
    # A single word has no bigrams: nothing is correct.
    return _bag_f1(gold, output) if gold or output else 0.0


def rouge_l(expected: str, predicted: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words (Lin 2004)."""
    gold, output = metric_words(expected), metric_words(predicted)
    return f1(_longest_common(gold, output), len(output), len(gold))


def has_bleu(expected: Sequence[str]) -> bool:
    """Whether BLEU applies: it needs texts of four words or more, and sacreBLEU."""
    return find_spec("sacrebleu") is not None and any(len(text.split()) > 3 for text in expected)


def bleu(expected: Sequence[str], predicted: Sequence[str]) -> float:
    """Corpus BLEU of sacreBLEU, from 0 to 100, of texts with space-separated words."""
    return float(make_metric("bleu").corpus_score(list(predicted), [list(expected)]).score)


def _grams(tokens: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def _longest_common(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence, O(len(first) · len(second))."""
    row = [0] * (len(second) + 1)
    for word in first:
        above_left = 0
        for column, other in enumerate(second, start=1):
            above = row[column]
            row[column] = above_left + 1 if word == other else max(above, row[column - 1])
            above_left = above
    return row[-1]
