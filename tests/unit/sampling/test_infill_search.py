"""Infilling blanks of unknown length, against enumeration of all fillings."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.sampling.infill_search import InfillSearch, generated_log_probs
from lmlab.sampling.mask_filling import MaskFiller
from lmlab.zoo import bart

WORDS = "a b c d e"
LONGEST = 3


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer("word", [WORDS])


@pytest.fixture(scope="module")
def system(words):
    """A system with peaked next-word distributions, as in a trained one."""
    torch.manual_seed(3)
    made = bart.build(replace(bart.SIZES["tiny"], width=8, layers=1), words.vocabulary).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made


def enumerate_texts(words: Tokenizer, text: str, system) -> list[tuple[str, float]]:
    """All texts with at most LONGEST words in the blanks and log p(text | text with blanks)."""
    vocabulary = words.vocabulary
    # The unknown word counts as a word.
    known = [*WORDS.split(), "<unk>"]
    pieces, texts = text.split("<mask>"), {}
    for lengths in itertools.product(range(LONGEST + 1), repeat=len(pieces) - 1):
        if sum(lengths) > LONGEST:
            continue
        for chosen in itertools.product(known, repeat=sum(lengths)):
            words_left, parts = iter(chosen), [pieces[0].split()]
            for length, piece in zip(lengths, pieces[1:], strict=True):
                parts += [list(itertools.islice(words_left, length)), piece.split()]
            texts[tuple(word for part in parts for word in part)] = None
    masked = [
        vocabulary.start,
        *(vocabulary.mask if word == "<mask>" else words.encode(word)[0] for word in text.split()),
        vocabulary.end,
    ]
    rows = [[vocabulary.start, *map(words.id, answer), vocabulary.end] for answer in texts]
    source = Batch.collate([masked] * len(rows), pad=vocabulary.pad)
    batch = Batch.collate(rows, pad=vocabulary.pad, condition=source)
    with torch.no_grad():
        totals = system.log_prob(batch).totals.tolist()
    return sorted(
        zip([" ".join(answer) for answer in texts], totals, strict=True),
        key=lambda answer: -answer[1],
    )


@pytest.mark.parametrize(
    "text",
    ["a <mask> b c", "<mask> d", "c <mask>", "<mask>", "a <mask> b <mask>", "b <mask> <mask>"],
)
def test_infill_candidates_are_the_likeliest_texts(system, words, text: str):
    filler = MaskFiller(system=system, tokenizer=words, layout=Layout(), top=8, max_length=LONGEST)
    [filled] = filler.infill([text])
    expected = enumerate_texts(words, text, system)[:8]
    assert [" ".join(candidate.text.split()) for candidate in filled.candidates] == [
        t for t, _ in expected
    ]
    assert [candidate.log_prob for candidate in filled.candidates] == pytest.approx(
        [log_prob for _, log_prob in expected], abs=1e-4
    )
    assert all(candidate.finished for candidate in filled.candidates)


def test_infill_search_as_wide_as_the_space_is_exhaustive(system, words):
    expected = enumerate_texts(words, "a <mask> b <mask>", system)
    vocabulary = words.vocabulary
    row = [vocabulary.start, *words.encode("a"), vocabulary.mask, *words.encode("b")]
    row += [vocabulary.mask, vocabulary.end]
    decoder = system.infill_decoder(Batch.collate([row], pad=vocabulary.pad))
    count = len(expected)
    search = InfillSearch(decoder=decoder, blanks=2, width=count, best=count, max_tokens=LONGEST)
    assert search.fixed_segments() == [tuple(words.encode("a")), tuple(words.encode("b")), ()]
    with torch.no_grad():
        hypotheses = search()
    assert [words.decode(hypothesis.tokens) for hypothesis in hypotheses] == [
        text for text, _ in expected
    ]


@pytest.mark.parametrize("name", ["glm", "t5"])
@pytest.mark.parametrize("text", ["a <mask> b c", "<mask>", "a <mask> b <mask>"])
def test_sequential_infill_answers_are_the_likeliest(words, name: str, text: str):
    """Also where closing a blank is unlikely and likely tokens continue without end."""
    module = system_module(name)
    torch.manual_seed(3)
    config = replace(module.SIZES["tiny"], layers=1)
    system = module.build(config, words.vocabulary).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    filler = MaskFiller(system=system, tokenizer=words, layout=Layout(), top=6, max_length=LONGEST)
    [filled] = filler.infill([text])
    blanks, known = text.count("<mask>"), [words.id(word) for word in [*WORDS.split(), "<unk>"]]
    all_answers = []
    for lengths in itertools.product(range(LONGEST + 1), repeat=blanks):
        if sum(lengths) <= LONGEST:
            for chosen in itertools.product(known, repeat=sum(lengths)):
                words_left = iter(chosen)
                all_answers.append(
                    [tuple(itertools.islice(words_left, length)) for length in lengths]
                )
    ids = {"<mask>": words.vocabulary.mask} | {word: words.id(word) for word in WORDS.split()}
    row = [words.vocabulary.start, *(ids[word] for word in text.split()), words.vocabulary.end]
    decoder = system.infill_decoder(
        Batch.collate([row] * len(all_answers), pad=words.vocabulary.pad)
    )
    with torch.no_grad():
        rows = [
            decoder.linearise_fillings(position, item) for position, item in enumerate(all_answers)
        ]
        log_probs = generated_log_probs(decoder, rows)
    best = sorted(zip(log_probs, all_answers, strict=True), key=lambda item: -item[0])[:6]
    assert [item.log_prob for item in filled.candidates] == pytest.approx(
        [log_prob for log_prob, _ in best], abs=1e-4
    )
    assert [item.answers for item in filled.candidates] == [
        tuple(map(words.decode, answers)) for _, answers in best
    ]
    assert all(item.finished for item in filled.candidates)
