"""Whole word masking: word boundaries from the tokenizer, words masked whole."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.objectives.masking.span_masking import SpanMasking
from lmlab.objectives.masking.token_masking import maskable_positions
from lmlab.objectives.masking.whole_word_masking import WholeWordMasking, WordUnits

VOCABULARY = Vocabulary(size=30)
SIZES = {"word": None, "char": None, "bpe": 290, "wordpiece": 55}
"""Small enough for words to be of several pieces."""
TEXTS = [
    "the unbelievable hippopotamus swallowed hydrogen",
    "a hippopotamus is unbelievably large",
    "hydrogen is the lightest element , and helium the next",
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def encoded(tokenizer: Tokenizer, texts: list[str]) -> Batch:
    vocabulary = tokenizer.vocabulary
    rows = [[vocabulary.start, *tokenizer.encode(text), vocabulary.end] for text in texts]
    return Batch.collate(rows, pad=vocabulary.pad)


def bytes_as_characters() -> dict[int, str]:
    """How byte-level BPE spells bytes: printable ones as they are, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    return characters | {byte: chr(256 + number) for number, byte in enumerate(others)}


def words_of(tokenizer: Tokenizer, text: str) -> list[list[str]]:
    """The tokens of a text, grouped into words."""
    words = WordUnits(tokenizer.vocabulary)
    words.setup_tokenizer(tokenizer)
    batch = encoded(tokenizer, [text])
    starts = words.starts(batch, maskable_positions(batch, tokenizer.vocabulary))[0]
    grouped: list[list[str]] = []
    for position, token in enumerate(batch.tokens[0, 1:-1].tolist(), start=1):
        if starts[position]:
            grouped.append([])
        grouped[-1].append(tokenizer.token(token))
    return grouped


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_word_starts_are_found_from_the_tokenizer(kind: str):
    """Their pieces joined are the words of the text again; spaces are words of characters."""
    tokenizer = train_tokenizer(kind, TEXTS * 3, size=SIZES[kind])
    words_found = words_of(tokenizer, TEXTS[0])
    joined = ["".join(word).replace("##", "").lstrip("Ġ") for word in words_found]
    assert [word for word in joined if word.strip()] == TEXTS[0].split()
    if kind != "word":
        assert max(len(word) for word in words_found) > 1
    if kind == "char":
        assert joined.count(" ") == 4


@pytest.mark.parametrize("kind", ["char", "wordpiece", "bpe"])
def test_each_ideograph_is_a_word(kind: str):
    """So that a text without spaces is not one word; BPE may have joined some of them."""
    texts = ["中国的首都是北京", "法国的首都是巴黎"] * 3
    tokenizer = train_tokenizer(kind, texts, size=285 if kind == "bpe" else None)
    words_found = words_of(tokenizer, texts[0])
    if kind == "bpe":
        # A word begins with the first byte of an ideograph: none of them is taken apart.
        byte_of = {character: byte for byte, character in bytes_as_characters().items()}
        joined = [bytes(byte_of[c] for c in "".join(word)) for word in words_found]
        whole = [word.decode() for word in joined]
        assert "".join(whole).strip() == texts[0]
        assert len(whole) > 3
    else:
        assert ["".join(word) for word in words_found] == list(texts[0])


def test_punctuation_and_unknown_tokens_are_single_words():
    tokenizer = train_tokenizer("char", ["ab, c1!"])
    assert ["".join(word) for word in words_of(tokenizer, "ab,c1 z!")] == [
        *("ab", ",", "c1", " ", "<unk>", "!")
    ]


@pytest.mark.parametrize("kind", ["char", "bpe", "wordpiece"])
@pytest.mark.parametrize("choice", ["words", "spans"])
def test_words_are_masked_whole_or_not_at_all(kind: str, choice: str):
    tokenizer = train_tokenizer(kind, TEXTS * 3, size=SIZES[kind])
    words = WordUnits(tokenizer.vocabulary)
    words.setup_tokenizer(tokenizer)
    batch = encoded(tokenizer, TEXTS * 30)
    allowed = maskable_positions(batch, tokenizer.vocabulary)
    chosen = (
        WholeWordMasking(words, 0.15) if choice == "words" else SpanMasking(units=words, rate=0.15)
    )
    masked = chosen(batch, allowed, generator=seeded())
    number = words.starts(batch, allowed).cumsum(1).masked_fill(~allowed, 0)
    pieces = 0
    for row in range(len(batch)):
        for word in range(1, int(number[row].max()) + 1):
            inside = masked[row][number[row] == word]
            assert inside.all() or not inside.any()
            pieces += int(inside.sum() > 1)
    assert pieces > 20


def test_whole_word_masking_masks_fifteen_percent():
    """Words of one to four pieces: the variance of n tokens masked together is n² times one's."""
    sizes = torch.randint(1, 5, (400, 60), generator=seeded(3)).tolist()
    rows = [[2, *(t for n in row for t in (5, *[6] * (n - 1))), 3] for row in sizes]
    batch = Batch.collate(rows, pad=0)

    class Marked(WordUnits):
        def starts(self, batch, allowed):
            return allowed & (batch.tokens == 5)

    allowed = maskable_positions(batch, VOCABULARY)
    masked = WholeWordMasking(Marked(VOCABULARY), 0.15)(batch, allowed, generator=seeded())
    count = int(allowed.sum())
    error = math.sqrt(0.15 * 0.85 * sum(n * n for row in sizes for n in row))
    assert abs(int(masked.sum()) - 0.15 * count) < 5 * error
