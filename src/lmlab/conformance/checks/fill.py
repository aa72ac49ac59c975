"""Checks of masked prediction (`Fill`) and of infilling (`Infill`)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from lmlab.conformance.assertions import (
    assert_close,
    assert_equal,
    assert_that,
    assert_total_mass,
    lacks,
)
from lmlab.conformance.check import Failure, check
from lmlab.conformance.system_under_test import SystemUnderTest, masked_each, with_replaced_token
from lmlab.core.protocols import Fill, Infill
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.infill_search import generated_log_probs


def _fill(tested: SystemUnderTest) -> Fill:
    if isinstance(tested.system, Fill):
        return tested.system
    raise lacks(tested.system, "Fill")


def _infill(tested: SystemUnderTest) -> Infill:
    if isinstance(tested.system, Infill):
        return tested.system
    raise lacks(tested.system, "Infill")


@check(
    "fill-normalisation",
    "The probabilities of a masked token sum to one; where log_prob is exact, they are its own "
    "conditionals: p(text with the token) over all tokens.",
    law="is a distribution",
    protocol="Fill",
    relaxed_by=("fill",),
)
@torch.no_grad()
def fill_is_the_conditional_distribution(tested: SystemUnderTest) -> None:
    """Except for a system that fills with another attention mask than it scores with (exempt from
    `fill`): its fills need only be distributions."""
    sentence, size = tested.sentences[2], tested.vocabulary.size
    batch, masked = masked_each(tested, sentence)
    generator = torch.Generator().manual_seed(0)
    filled = _fill(tested).fill(batch, masked, generator=generator).log_probs
    shape = (len(batch), size)
    assert_that(
        filled.shape == shape, f"fill gives {tuple(filled.shape)} log-probabilities, not {shape}"
    )
    assert_close(
        filled.exp().sum(-1),
        torch.ones(len(batch)),
        "the probabilities of a masked token do not sum to 1",
        atol=1e-5,
        first=1,
    )
    if tested.card.kind != "exact" or "fill" in tested.card.exempt:
        return
    for row, position in enumerate(range(1, len(sentence))):
        each = [[*sentence[:position], token, *sentence[position + 1 :]] for token in range(size)]
        assert_close(
            filled[row].exp().double(),
            torch.softmax(tested.totals(tested.batch(each)), 0),
            f"what fills position {position} is not the model's own conditional",
            atol=1e-5,
            axes=("token",),
            position=position,
        )


@check(
    "fill-masked-inputs",
    "What is filled in at a masked position does not depend on the tokens under the masks, and "
    "depends on the others.",
    law="does not use masked inputs",
    protocol="Fill",
)
@torch.no_grad()
def fill_ignores_masked_tokens(tested: SystemUnderTest) -> None:
    fill = _fill(tested).fill
    batch = tested.batch([tested.sentences[2]])
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, [2, 4]] = True
    before = fill(batch, masked).log_probs
    for position in (2, 4):
        other = replace(batch, tokens=with_replaced_token(batch.tokens, position))
        assert_equal(
            fill(other, masked).log_probs,
            before,
            f"what is filled in depends on the token under the mask at position {position}",
            axes=("masked position", "token"),
            position=position,
        )
    moved = replace(batch, tokens=with_replaced_token(batch.tokens, 3))
    assert_that(
        not torch.equal(fill(moved, masked).log_probs, before),
        "another token at position 3, which is not masked, changes nothing that is filled in",
        position=3,
    )


def _with_blanks(tested: SystemUnderTest, *positions: int) -> list[int]:
    """A sentence with the mask token at some positions."""
    mask = tested.vocabulary.mask
    assert mask is not None
    sentence = tested.sentences[2]
    return [mask if position in positions else token for position, token in enumerate(sentence)]


@check(
    "infill-normalisation",
    "Answers to a blank are parsed back, their probabilities sum to at most one, and the best of "
    "them is what a search as wide as the space finds.",
    law="is a distribution",
    protocol="Infill",
)
@torch.no_grad()
def infill_is_a_distribution(tested: SystemUnderTest) -> None:
    """Over all answers of at most three tokens."""
    vocabulary, system = tested.vocabulary, _infill(tested)
    never = (*vocabulary.unpredictable, vocabulary.end)
    inner = [i for i in range(vocabulary.size) if i not in never]
    answers = [each for size in range(4) for each in itertools.product(inner, repeat=size)]
    batch = tested.batch([_with_blanks(tested, 3)] * len(answers))
    decoder = system.infill_decoder(batch)
    rows = [decoder.linearise_fillings(row, [answer]) for row, answer in enumerate(answers)]
    log_probs = torch.tensor(generated_log_probs(decoder, rows), dtype=torch.float64)
    result = beam_search(
        system.infill_decoder(batch.select([0])),
        BeamConfig(width=len(answers), max_length=len(rows[-1]) + 1),
    )
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        again = decoder.answers(i, row)
        assert_that(
            again == [answer],
            f"the answer {answer} was written as {row} and read back as {again}",
            tokens=str(answer),
        )
    mass = log_probs.exp().sum().item()
    assert_that(mass > 0, f"all {len(answers):,} answers have probability {mass}")
    assert_total_mass(mass, len(answers), exact=False, of="answers")
    [(best, *_), *_], likeliest = result, int(log_probs.argmax())
    highest = log_probs.max().item()
    assert best.log_prob is not None
    if abs(best.log_prob - highest) > 1e-4 or best.tokens != tuple(rows[likeliest]):
        raise Failure(
            f"a search as wide as the space found {best.tokens} with {best.log_prob:.6g}; the best "
            f"is {tuple(rows[likeliest])} with {highest:.6g}",
            where={"tokens": str(best.tokens)},
            expected=highest,
            measured=best.log_prob,
        )


@check(
    "infill-batch-independence",
    "What is written in a blank does not depend on the other texts of the batch, and depends on "
    "the words around it.",
    law="does not depend on the batch",
    protocol="Infill",
)
@torch.no_grad()
def infill_does_not_depend_on_the_batch(tested: SystemUnderTest) -> None:
    system = _infill(tested)
    blanks = ((3,), (1, 6), (2, 4))
    texts = [_with_blanks(tested, *positions) for positions in blanks]
    answers: list[list[tuple[int, ...]]] = [[(5, 6)], [(6,), (5, 5, 6)], [(), (6,)]]

    def log_probs(chosen: list[int], texts: list[list[int]]) -> Tensor:
        decoder = system.infill_decoder(tested.batch([texts[i] for i in chosen]))
        rows = [decoder.linearise_fillings(row, answers[i]) for row, i in enumerate(chosen)]
        return torch.tensor(generated_log_probs(decoder, rows), dtype=torch.float64)

    alone = torch.cat([log_probs([i], texts) for i in range(3)])
    assert_close(
        log_probs([2, 0, 1], texts),
        alone[[2, 0, 1]],
        "what is written in a blank depends on the other texts of the batch",
        atol=1e-5,
        axes=("text",),
    )
    others = [[6 if token == 5 else token for token in text] for text in texts]
    same = (log_probs([0, 1, 2], others) == alone).nonzero().flatten().tolist()
    assert_that(
        not same, f"other words around the blanks of the texts {same} change no log-probability"
    )
