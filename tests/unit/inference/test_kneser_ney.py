"""Kneser-Ney by hand, against a slow reference implementation, and on tiny corpora."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.backoff import BackoffModel
from lmlab.inference.kneser_ney import (
    FALLBACK_DISCOUNTS,
    KneserNeyFit,
    adjusted_counts,
    count_ngrams,
    estimate_discounts,
    fit_kneser_ney,
)

PAD, UNKNOWN, START, END, MASK = range(5)
A, B, C = 5, 6, 7
NOTHING = -1


def flatten(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = [len(sequence) for sequence in sequences]
    tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    return tokens, np.cumsum([0, *lengths])


def fitted(sequences: list[list[int]], order: int, size: int) -> KneserNeyFit:
    return fit_kneser_ney(*flatten(sequences), order=order, vocabulary=Vocabulary(size=size))


def probabilities(fitted: KneserNeyFit, *context: int) -> dict[int, float]:
    """p of every token after a context, which is padded to its full length."""
    width = fitted.tables.order - 1
    padded = [*[NOTHING] * width, *context][len(context) :]
    log_probs = BackoffModel(fitted.tables).distribution(np.array([padded]).reshape(1, width))[0]
    return dict(enumerate(np.exp(log_probs).tolist()))


HAND = [[START, A, B, A, END], [START, B, A, END], [START, B, END]]


def test_bigram_by_hand():
    """
    Bigrams:  <s> a 1   <s> b 2   a b 1   b a 2   a </s> 2   b </s> 1
    No bigram occurs three times, so D(1), D(2) = 0.5, 1 by fallback. Unigrams count the different
    words before them: a {<s>, b} 2, b {<s>, a} 2, </s> {a, b} 2; none counts 1, so fallback again.

    p(a) = (2 - 1) / 6 + γ / 4 = 7/24, as γ = (1 + 1 + 1) / 6 = 1/2 and four tokens can come: <unk>,
    </s>, a, b. The same for b and </s>; p(<unk>) = γ / 4 = 3/24. Together 24/24.

    After b: a twice and </s> once, so γ(b) = (1 + 0.5) / 3 = 1/2.
    p(a | b)    = (2 - 1) / 3 + 7/48 = 23/48      p(b | b)     = 7/48
    p(</s> | b) = (1 - .5) / 3 + 7/48 = 15/48     p(<unk> | b) = 3/48
    """
    model = fitted(HAND, order=2, size=7)
    assert model.fallback_orders == (1, 2)
    assert model.discounts.tolist() == [list(FALLBACK_DISCOUNTS)] * 2
    alone = {PAD: 0, UNKNOWN: 3 / 24, START: 0, END: 7 / 24, MASK: 0, A: 7 / 24, B: 7 / 24}
    assert probabilities(model, NOTHING) == pytest.approx(alone, abs=1e-15)
    after_b = {PAD: 0, UNKNOWN: 3 / 48, START: 0, END: 15 / 48, MASK: 0, A: 23 / 48, B: 7 / 48}
    assert probabilities(model, B) == pytest.approx(after_b, abs=1e-15)
    # <unk> was never seen, so nothing is known of what follows it.
    assert probabilities(model, UNKNOWN) == pytest.approx(alone, abs=1e-15)


def test_counts_by_hand():
    tokens, offsets = flatten(HAND)
    heads = np.isin(np.arange(len(tokens)), offsets[:-1])
    counts = count_ngrams(np.asarray(tokens, dtype=np.int64), heads, 2, Vocabulary(size=7))
    bigrams = {
        (int(key) // 7, int(key) % 7): int(count)
        for key, count in zip(counts.keys, counts.counts[7:], strict=True)
    }
    assert bigrams == {
        (START, A): 1, (START, B): 2, (A, B): 1, (B, A): 2, (A, END): 2, (B, END): 1,
    }  # fmt: skip
    assert counts.counts[:7].tolist() == [0, 0, 0, 3, 0, 3, 3]  # <s> is never predicted
    assert adjusted_counts(counts)[:7].tolist() == [0, 0, 0, 2, 0, 2, 2]


def test_discounts_by_hand():
    """n = 10, 4, 2, 1: y = 10/18; D(1) = 1 - 2y 4/10, D(2) = 2 - 3y 2/4, D(3) = 3 - 4y 1/2."""
    assert estimate_discounts(10, 4, 2, 1) == pytest.approx((5 / 9, 7 / 6, 17 / 9))
    assert estimate_discounts(10, 4, 2, 0) == pytest.approx((5 / 9, 7 / 6, 3.0))
    for missing in [(0, 4, 2, 1), (10, 0, 2, 1), (10, 4, 0, 1)]:
        assert estimate_discounts(*missing) is None
    assert estimate_discounts(10, 4, 12, 1) is None  # D(2) = 2 - 3 · 10/18 · 12/4 = -3
    assert estimate_discounts(4, 1, 1, 1) is None  # D(2) = 2 - 3 · 4/6 · 1 = 0: no smoothing


def reference_probability(
    sequences: list[list[int]], model: KneserNeyFit, context: tuple[int, ...], word: int
):
    """p(word | context) from the definition, by dictionaries and recursion."""
    vocabulary, order = model.tables.vocabulary, model.tables.order
    words = len(context) + 1

    def grams(length: int):
        for sequence in sequences:
            for end in range(1, len(sequence)):
                if end - length + 1 >= 0:
                    yield end - length + 1, sequence, tuple(sequence[end - length + 1 : end + 1])

    if words == order:
        adjusted = Counter(gram for _, _, gram in grams(words))
    else:
        before = {(s[at - 1], *gram) for at, s, gram in grams(words) if at > 0}
        adjusted = Counter(longer[1:] for longer in before)
        adjusted.update(gram for at, _, gram in grams(words) if at == 0)
    lower = (
        reference_probability(sequences, model, context[1:], word)
        if context
        else 1 / (vocabulary.size - len(vocabulary.unpredictable))
    )
    after = {gram: count for gram, count in adjusted.items() if gram[:-1] == context}
    if not after:
        return lower
    discount = [0.0, *model.discounts[words - 1]]
    held_back = sum(discount[min(count, 3)] for count in after.values())
    count = after.get((*context, word), 0)
    return (count - discount[min(count, 3)] + held_back * lower) / sum(after.values())


def random_sequences(seed: int, *, start: bool, end: bool, count: int = 40) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    sequences = []
    for _ in range(count):
        words = (5 + generator.geometric(0.4, size=generator.integers(1, 9)).clip(max=6)).tolist()
        sequences.append([START] * start + words + [END] * end)
    return sequences


@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("start", "end"),
    [(True, True), (True, False), (False, True)],
    ids=["start and end", "no end", "no start"],
)
def test_equals_reference_implementation(order, start, end):
    """Whole sentences, sentences cut before </s>, and ones whose first word is only context."""
    sequences = random_sequences(order, start=start, end=end)
    model = fitted(sequences, order=order, size=14)  # 12 and 13 never occur
    lookup = BackoffModel(model.tables)
    generator = np.random.default_rng(1)
    for sequence in sequences[:6] + random_sequences(99, start=True, end=True, count=4):
        position = int(generator.integers(1, len(sequence))) if len(sequence) > 1 else 0
        context = tuple(sequence[max(0, position - order + 1) : position])
        word = int(generator.choice([UNKNOWN, END, 6, 7, 8, 9, 12, sequence[position]]))
        if word == START:
            continue
        padded = [*[NOTHING] * (order - 1 - len(context)), *context]
        prediction = lookup.predict(np.array([padded]).reshape(1, order - 1), np.array([word]))
        expected = reference_probability(sequences, model, context, word)
        assert np.exp(prediction.log_probs[0]) == pytest.approx(expected, rel=1e-12)


def test_equals_reference_on_one_contiguous_stream():
    lines = random_sequences(3, start=False, end=True)
    stream = [END, *(token for line in lines for token in line)]
    model = fitted([stream], order=3, size=12)
    lookup = BackoffModel(model.tables).read(np.array(stream))
    for position in range(2, 40):
        expected = reference_probability(
            [stream], model, tuple(stream[position - 2 : position]), stream[position]
        )
        assert np.exp(lookup.log_probs[position]) == pytest.approx(expected, rel=1e-12)


def test_start_token_within_a_stream_begins_a_new_sequence():
    separate = fitted(HAND, order=3, size=7)
    joined = fitted([[token for sequence in HAND for token in sequence]], order=3, size=7)
    assert np.array_equal(separate.tables.keys, joined.tables.keys)
    assert np.array_equal(separate.tables.log_probs, joined.tables.log_probs)


def test_vocabulary_without_start_uses_the_first_token():
    """`</s> a b </s>` is to a vocabulary without <s> what `<s> a b </s>` is to one with it."""
    ends_first = [[END, *sequence[1:]] for sequence in HAND]
    without = fit_kneser_ney(
        *flatten(ends_first), order=3, vocabulary=Vocabulary(size=7, start=None)
    )
    # <s> is an ordinary token there, so the other side gets one more word that never occurs.
    with_start = fitted(HAND, order=3, size=8)
    targets = np.array([A, B, END, UNKNOWN])
    mine = BackoffModel(without.tables).predict(np.array([[NOTHING, END]] * 4), targets)
    other = BackoffModel(with_start.tables).predict(np.array([[NOTHING, START]] * 4), targets)
    assert mine.orders.tolist() == other.orders.tolist() == [2, 2, 1, 1]
    assert mine.log_probs == pytest.approx(other.log_probs, abs=1e-14)


TINY = {
    "nothing": [],
    "empty sequences": [[], [], []],
    "start symbols only": [[START], [START]],
    "empty sentence": [[START, END]],
    "one word": [[START, A, END]],
    "one cut word": [[START, A]],
    "one word a hundred times": [[START, *[A] * 100, END]],
    "one sentence a hundred times": [[START, A, B, END]] * 100,
    "shorter than the order": [[START, A, END], [START, B, END], []],
    "no start, no end": [[A, B, A, C]],
}


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("name", TINY)
def test_tiny_corpora_give_distributions(name, order):
    model = fitted(TINY[name], order=order, size=9)
    assert model.fallback_orders == tuple(range(1, order + 1))
    generator = np.random.default_rng(0)
    contexts = generator.integers(-1, 9, size=(50, order - 1))
    whole = np.exp(BackoffModel(model.tables).distribution(contexts))
    assert whole.sum(1) == pytest.approx(np.ones(50), abs=1e-12)
    possible = np.ones(9, dtype=bool)
    possible[[PAD, START, MASK]] = False
    assert (whole[:, possible] > 0).all() and (whole[:, ~possible] == 0).all()


def test_empty_corpus_gives_the_uniform_distribution():
    model = fitted([], order=3, size=9)
    assert [probabilities(model, A, B)[i] for i in (UNKNOWN, END, A, B, C, 8)] == pytest.approx(
        [1 / 6] * 6
    )


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_sums_to_one_after_seen_and_unseen_contexts(order):
    sequences = random_sequences(5, start=True, end=True, count=300)
    model = fitted(sequences, order=order, size=13)
    generator = np.random.default_rng(2)
    unseen = generator.integers(0, 13, size=(100, order - 1))
    seen = np.array([s[: order - 1] for s in sequences if len(s) >= order], dtype=int)
    for contexts in (unseen, seen):
        whole = np.exp(BackoffModel(model.tables).distribution(contexts))
        assert whole.sum(1) == pytest.approx(np.ones(len(contexts)), abs=1e-12)


def test_refitting_gives_identical_tables():
    sequences = random_sequences(7, start=True, end=True, count=200)
    first, second = (fitted(sequences, order=4, size=12).tables for _ in range(2))
    for name in ("level_ends", "keys", "log_probs", "log_backoffs"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_stored_integer_types_do_not_matter():
    tokens, offsets = flatten(HAND)
    narrow = fit_kneser_ney(
        tokens.astype(np.uint16), offsets, order=3, vocabulary=Vocabulary(size=7)
    )
    assert np.array_equal(narrow.tables.keys, fitted(HAND, order=3, size=7).tables.keys)


def test_grams_are_the_ngrams_of_the_corpus():
    tables = fitted(HAND, order=3, size=7).tables
    trigrams = {tuple(s[i : i + 3]) for s in HAND for i in range(len(s) - 2)}
    assert {tuple(gram) for gram in tables.grams(3).tolist()} == trigrams
    assert len(tables.grams(3)) == len(trigrams)
    assert tables.grams(1)[:, 0].tolist() == list(range(7))


@pytest.mark.parametrize(
    ("sequences", "order", "message"),
    [
        ([[START, 99, END]], 2, "ids must be from 0 to 8"),
        ([[START, -3, END]], 2, "ids must be from 0 to 8"),
        ([[START, PAD, END]], 2, "padding or mask"),
        ([[START, A, END]], 0, "at least 1"),
    ],
)
def test_invalid_tokens_and_orders_are_refused(sequences, order, message):
    with pytest.raises(UserError, match=message):
        fitted(sequences, order=order, size=9)
