"""Blanks of unknown length in a text that is written whole, against all that could stand there."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.sampling.infill_search import InfillSearch
from lmlab.sampling.mask_filling import MaskFiller, generated_log_probs
from lmlab.zoo import bart

WORDS = "a b c d e"
LONGEST = 3


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer("word", [WORDS])


@pytest.fixture(scope="module")
def system(words):
    """One whose next words differ much in probability, as a trained one's do."""
    torch.manual_seed(3)
    made = bart.build(replace(bart.SIZES["tiny"], width=8, layers=1), words.vocabulary).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made


def every_text(words: Tokenizer, text: str, system) -> list[tuple[str, float]]:
    """All texts with at most LONGEST words in the blanks and log p(text | text with blanks)."""
    vocabulary = words.vocabulary
    # The unknown word is a word like others.
    known = [*WORDS.split(), "<unk>"]
    pieces, found = text.split("<mask>"), {}
    for lengths in itertools.product(range(LONGEST + 1), repeat=len(pieces) - 1):
        if sum(lengths) > LONGEST:
            continue
        for chosen in itertools.product(known, repeat=sum(lengths)):
            given, parts = iter(chosen), [pieces[0].split()]
            for length, piece in zip(lengths, pieces[1:], strict=True):
                parts += [list(itertools.islice(given, length)), piece.split()]
            found[tuple(word for part in parts for word in part)] = None
    masked = [
        vocabulary.start,
        *(vocabulary.mask if word == "<mask>" else words.encode(word)[0] for word in text.split()),
        vocabulary.end,
    ]
    rows = [[vocabulary.start, *map(words.id, each), vocabulary.end] for each in found]
    source = Batch.collate([masked] * len(rows), pad=vocabulary.pad)
    batch = Batch.collate(rows, pad=vocabulary.pad, condition=source)
    with torch.no_grad():
        totals = system.log_prob(batch).totals.tolist()
    return sorted(
        zip([" ".join(each) for each in found], totals, strict=True), key=lambda each: -each[1]
    )


@pytest.mark.parametrize(
    "text",
    ["a <mask> b c", "<mask> d", "c <mask>", "<mask>", "a <mask> b <mask>", "b <mask> <mask>"],
)
def test_the_fillings_listed_are_the_likeliest_of_all(system, words, text: str):
    filler = MaskFiller(system=system, tokenizer=words, layout=Layout(), top=8, max_length=LONGEST)
    [filled] = filler.infill([text])
    expected = every_text(words, text, system)[:8]
    assert [" ".join(each.text.split()) for each in filled.candidates] == [t for t, _ in expected]
    assert [each.log_prob for each in filled.candidates] == pytest.approx(
        [log_prob for _, log_prob in expected], abs=1e-4
    )
    assert all(each.finished for each in filled.candidates)


def test_a_search_as_wide_as_the_answers_finds_every_text(system, words):
    expected = every_text(words, "a <mask> b <mask>", system)
    vocabulary = words.vocabulary
    row = [vocabulary.start, *words.encode("a"), vocabulary.mask, *words.encode("b")]
    row += [vocabulary.mask, vocabulary.end]
    writer = system.infill_decoder(Batch.collate([row], pad=vocabulary.pad))
    count = len(expected)
    search = InfillSearch(decoder=writer, blanks=2, width=count, best=count, max_tokens=LONGEST)
    assert search.fixed_segments() == [tuple(words.encode("a")), tuple(words.encode("b")), ()]
    with torch.no_grad():
        found = search()
    assert [words.decode(each.tokens) for each in found] == [text for text, _ in expected]


@pytest.mark.parametrize("name", ["glm", "t5"])
@pytest.mark.parametrize("text", ["a <mask> b c", "<mask>", "a <mask> b <mask>"])
def test_answers_one_after_another_are_the_likeliest_of_all(words, name: str, text: str):
    """Where closing a blank is unlikely too, and likely tokens go on without end."""
    module = system_module(name)
    torch.manual_seed(3)
    config = replace(module.SIZES["tiny"], layers=1)
    system = module.build(config, words.vocabulary).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    filler = MaskFiller(system=system, tokenizer=words, layout=Layout(), top=6, max_length=LONGEST)
    [filled] = filler.infill([text])
    blanks, known = text.count("<mask>"), [words.id(word) for word in [*WORDS.split(), "<unk>"]]
    every = []
    for lengths in itertools.product(range(LONGEST + 1), repeat=blanks):
        if sum(lengths) <= LONGEST:
            for chosen in itertools.product(known, repeat=sum(lengths)):
                given = iter(chosen)
                every.append([tuple(itertools.islice(given, length)) for length in lengths])
    ids = {"<mask>": words.vocabulary.mask} | {word: words.id(word) for word in WORDS.split()}
    row = [words.vocabulary.start, *(ids[word] for word in text.split()), words.vocabulary.end]
    writer = system.infill_decoder(Batch.collate([row] * len(every), pad=words.vocabulary.pad))
    with torch.no_grad():
        rows = [writer.linearise_fillings(place, each) for place, each in enumerate(every)]
        log_probs = generated_log_probs(writer, rows)
    best = sorted(zip(log_probs, every, strict=True), key=lambda each: -each[0])[:6]
    assert [each.log_prob for each in filled.candidates] == pytest.approx(
        [log_prob for log_prob, _ in best], abs=1e-4
    )
    assert [each.answers for each in filled.candidates] == [
        tuple(map(words.decode, answers)) for _, answers in best
    ]
    assert all(each.finished for each in filled.candidates)
