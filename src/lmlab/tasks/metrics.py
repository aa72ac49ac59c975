"""Task metrics: accuracy, macro F1, entity F1, token F1, ROUGE, BLEU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

from lmlab.scoring.translation_metrics import make_metric


def accuracy(expected: Sequence[object], found: Sequence[object]) -> float:
    """The proportion of answers equal to the expected ones."""
    assert len(expected) == len(found), (len(expected), len(found))
    return sum(a == b for a, b in zip(expected, found, strict=True)) / max(len(expected), 1)


def exact_match(expected: Sequence[str], found: Sequence[str]) -> float:
    """Share of answers that equal the expected text, but for whitespace around it."""
    return accuracy([each.strip() for each in expected], [each.strip() for each in found])


def macro_f1(expected: Sequence[str], found: Sequence[str]) -> float:
    """Macro F1: the mean of 2PR / (P + R) over the labels that are expected somewhere."""
    scores = []
    for label in sorted(set(expected)):
        hits = sum(a == b == label for a, b in zip(expected, found, strict=True))
        told = sum(b == label for b in found)
        scores.append(2 * hits / (told + sum(a == label for a in expected)))
    return sum(scores) / max(len(scores), 1)


def majority_accuracy(expected: Sequence[object]) -> float:
    """Majority baseline: the accuracy of the split's own most frequent answer, an upper bound for
    guessing without the input."""
    return max(Counter(expected).values(), default=0) / max(len(expected), 1)


def tagged_entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first, last + 1, kind) of each entity marked by B- and I- tags; a lone I- begins one."""
    found: set[tuple[int, int, str]] = set()
    begun, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        goes_on = tag.startswith("I-") and tag[2:] == kind
        if kind and not goes_on:
            found.add((begun, place, kind))
            kind = ""
        if not goes_on and tag[:2] in ("B-", "I-"):
            begun, kind = place, tag[2:]
    return found


def f1(hits: int, told: int, wanted: int) -> float:
    """F1 = 2 · hits / (told + wanted), `told` predicted, `wanted` expected; 1 if both are 0."""
    return 2 * hits / (told + wanted) if told + wanted else 1.0


def entity_f1(expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    """Entity F1 over all sequences: correct if boundaries and kind are (CoNLL)."""
    hits = told = wanted = 0
    for gold, answer in zip(expected, found, strict=True):
        right, given = tagged_entities(gold), tagged_entities(answer)
        hits, told, wanted = hits + len(right & given), told + len(given), wanted + len(right)
    return f1(hits, told, wanted)


def token_f1(expected: str, found: str) -> float:
    """Token F1 of the words of two texts as bags (SQuAD)."""
    right, given = Counter(metric_words(expected)), Counter(metric_words(found))
    return f1(sum((right & given).values()), sum(given.values()), sum(right.values()))


def metric_words(text: str) -> list[str]:
    """Lower-case words; characters if there are no spaces between them (Chinese)."""
    parts = text.lower().split()
    return list(parts[0]) if len(parts) == 1 and not parts[0].isascii() else parts


def rouge_n(expected: str, found: str, n: int = 1) -> float:
    """ROUGE-N: F1 of n-grams with clipped counts (Lin 2004); 0 if neither text has any."""
    right, given = (Counter(_grams(metric_words(text), n)) for text in (expected, found))
    if not right and not given:
        return 0.0  # A single word has no bigrams: nothing is correct.
    return f1(sum((right & given).values()), sum(given.values()), sum(right.values()))


def rouge_l(expected: str, found: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words (Lin 2004)."""
    right, given = metric_words(expected), metric_words(found)
    return f1(_longest_common(right, given), len(given), len(right))


def has_bleu(expected: Sequence[str]) -> bool:
    """Whether BLEU applies: it needs texts of four words or more, and sacreBLEU."""
    return find_spec("sacrebleu") is not None and any(len(text.split()) > 3 for text in expected)


def bleu(expected: Sequence[str], found: Sequence[str]) -> float:
    """Corpus BLEU of sacreBLEU, from 0 to 100, of texts with space-separated words."""
    return float(make_metric("bleu").corpus_score(list(found), [list(expected)]).score)


def _grams(tokens: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def _longest_common(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence, O(len(first) · len(second))."""
    row = [0] * (len(second) + 1)
    for word in first:
        above_left = 0
        for place, other in enumerate(second, start=1):
            above = row[place]
            row[place] = above_left + 1 if word == other else max(above, row[place - 1])
            above_left = above
    return row[-1]
