"""Checks of the distribution: it sums to one, samples and steps as it scores; energies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from lmlab.conformance.assertions import (
    assert_close,
    assert_equal,
    assert_samples_follow,
    assert_that,
    assert_total_mass,
    chi_square_p_value,
    lacks,
)
from lmlab.conformance.check import DoesNotApply, check
from lmlab.conformance.system_under_test import MAX_LENGTH, SystemUnderTest, masked_each
from lmlab.core.batch import Batch
from lmlab.core.protocols import Encode, Energy, Fill, Given, Step
from lmlab.core.score import NORMALISED_KINDS
from lmlab.core.state import State
from lmlab.sampling.decoding import sample_sequences


def assert_steps_as_scored(
    system: Step, state: State, sentence: Sequence[int], at_once: Tensor
) -> None:
    """Token by token, a sentence has the log-probabilities that it has at once."""
    stepped = []
    for token in sentence[1:]:
        stepped.append(system.peek(state).log_probs[0, token])
        state = system.advance(state, torch.tensor([token]))
    what = "token by token it gives another log-probability than at once"
    assert_close(torch.stack(stepped).to(at_once), at_once, what, atol=1e-5, first=1)


@check(
    "stepping",
    "Token by token, a text has the log-probabilities that it has at once.",
    law="steps as it scores",
    protocol="Step",
)
@torch.no_grad()
def stepping_equals_scoring(tested: SystemUnderTest) -> None:
    stepper, sentence = tested.stepper, tested.sentences[2]
    at_once = tested.scorer.log_prob(tested.batch([sentence])).per_token[0]
    assert_steps_as_scored(stepper, stepper.start(1), sentence, at_once)


@check(
    "conditional-stepping",
    "Given a source, a text has the same log-probabilities token by token, at once and in a batch, "
    "and another source changes them.",
    law="steps as it scores",
    protocol="Step",
    conditional=True,
    exemptions=("source",),
)
@torch.no_grad()
def conditional_stepping_equals_scoring(tested: SystemUnderTest) -> None:
    stepper, (first, second, text, other) = tested.stepper, tested.sentences

    def log_probs(sources: list[list[int]], texts: list[list[int]]) -> Tensor:
        return tested.scorer.log_prob(tested.pairs(sources, texts)).per_token

    at_once = log_probs([first], [text])[0]
    state = stepper.start(1, condition=tested.batch([first]))
    assert_steps_as_scored(stepper, state, text, at_once)
    assert_close(
        log_probs([second, first], [other, text])[1][: len(at_once)],
        at_once,
        "with another pair in the batch, a text has another log-probability",
        atol=1e-5,
        first=1,
    )
    assert_that(
        not torch.equal(log_probs([second], [text])[0], at_once),
        "another source changes no log-probability of the text",
    )


@check(
    "state-selection",
    "Selected rows of a state predict what the rows did, and peeking changes no state.",
    law="steps as it scores",
    protocol="Step",
)
@torch.no_grad()
def selecting_rows_forks_the_state(tested: SystemUnderTest) -> None:
    stepper = tested.stepper
    state = stepper.advance(stepper.start(2), torch.tensor([5, 6]))
    before = stepper.peek(state).log_probs
    swapped = stepper.peek(state.select(torch.tensor([1, 0, 1]))).log_probs
    again = stepper.peek(state).log_probs
    assert_close(
        swapped,
        before[[1, 0, 1]],
        "selected rows of a state predict otherwise than the rows did",
        atol=1e-5,
        rtol=1.3e-6,
        axes=("row", "token"),
    )
    assert_equal(again, before, "peek changed the state", axes=("row", "token"))


def _assert_normalised_kind(kind: str) -> None:
    assert_that(
        kind in NORMALISED_KINDS,
        f"a {kind} score has no distribution to sum; exempt it from `distribution` on the card",
    )


@check(
    "normalisation",
    "The probabilities of all complete texts of at most five tokens and of all unfinished ones sum "
    "to one (a bound: to at most one).",
    law="is a distribution",
    protocol="LogProb",
    exemptions=("distribution",),
)
def probabilities_sum_to_one(tested: SystemUnderTest) -> None:
    kind = tested.card.kind
    _assert_normalised_kind(kind)
    complete, unfinished = tested.enumerate_space()
    mass = tested.totals(complete).exp().sum() + tested.totals(unfinished).exp().sum()
    assert_total_mass(mass.item(), len(complete) + len(unfinished), exact=kind == "exact")


@check(
    "conditional-normalisation",
    "Given a source, and given an empty one, the probabilities of all texts sum to one.",
    law="is a distribution",
    protocol="LogProb",
    conditional=True,
    exemptions=("source", "distribution"),
)
def conditional_probabilities_sum_to_one(tested: SystemUnderTest) -> None:
    kind = tested.card.kind
    _assert_normalised_kind(kind)
    for source in (tested.sentences[0], [tested.vocabulary.bos, tested.end]):
        result = tested.probabilities(source)
        assert_total_mass(sum(result.values()), len(result), exact=kind == "exact")


@check(
    "latent-decoder",
    "Given a latent vector, the decoder's probabilities sum to one, and it steps as it scores.",
    law="is a distribution",
    protocol="Given",
)
@torch.no_grad()
def latent_decoder_is_a_distribution(tested: SystemUnderTest) -> None:
    """A latent-variable model and an autoencoder: given z, both properties hold exactly."""
    system, sentence = tested.system, tested.sentences[2]
    if not isinstance(system, Given):
        raise lacks(system, "Given")
    if not isinstance(system, Encode):
        raise lacks(system, "Encode")
    batch = tested.batch([sentence])
    given = system.given(system.encode(batch))
    assert_steps_as_scored(given, given.start(1), sentence, given.log_prob(batch).per_token[0])
    space = torch.cat([given.log_prob(b).totals.double() for b in tested.enumerate_space()])
    assert_total_mass(space.exp().sum().item(), len(space), exact=True)


def _check_samples(tested: SystemUnderTest, count: int, source: list[int] | None = None) -> None:
    expected = dict[Hashable, float](tested.probabilities(source).items())
    samples = sample_sequences(
        tested.system,
        count,
        max_length=MAX_LENGTH,
        generator=torch.Generator().manual_seed(0),
        condition=None if source is None else tested.batch([source] * count),
    )
    counts = dict.fromkeys(expected, 0)
    for one in samples:
        counts[(*one.tokens, tested.end) if one.finished else one.tokens] += 1
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), count * np.array(list(expected.values()))
    )
    assert_samples_follow(counts, expected, p_value, tested.show)


@check(
    "sampling",
    "Sampled texts follow the scored probabilities (chi-square test of 4,000 samples).",
    law="samples what it scores",
    protocol="LogProb",
    exemptions=("sample",),
)
def samples_follow_the_scored_distribution(tested: SystemUnderTest) -> None:
    _check_samples(tested, 4000)


@check(
    "conditional-sampling",
    "Given a source, sampled texts follow the scored probabilities (2,000 samples).",
    law="samples what it scores",
    protocol="LogProb",
    conditional=True,
    exemptions=("source", "sample"),
)
def conditional_samples_follow_the_distribution(tested: SystemUnderTest) -> None:
    _check_samples(tested, 2000, tested.sentences[0])


EQUAL_UP_TO_A_CONSTANT = ("exact", "estimate", "unnormalised")
"""Kinds of log_prob that must be minus the energy, but for a constant of each length."""


@torch.no_grad()
def _energies(tested: SystemUnderTest, batch: Batch) -> Tensor:
    if not isinstance(tested.system, Energy):
        raise lacks(tested.system, "Energy")
    return tested.system.energy(batch).double()


@check(
    "energy-normalisation",
    "Over all texts of one length Z is finite, and log_prob is -E less a constant of the length.",
    law="is a distribution",
    protocol="Energy",
)
def energies_normalise_over_texts_of_one_length(tested: SystemUnderTest) -> None:
    complete, _ = tested.enumerate_space()
    energy, scored = _energies(tested, complete), tested.totals(complete)
    infinite = int((~energy.isfinite()).sum())
    assert_that(not infinite, f"the energy of {infinite} of {len(energy)} texts is not finite")
    for length in complete.lengths.unique().tolist():
        here = complete.lengths == length
        log_z = torch.logsumexp(-energy[here], 0)
        what = f"log Z over texts of {length} tokens is {log_z.item()}"
        assert_that(log_z.isfinite(), what, length=length)
        log_p = -energy[here] - log_z
        assert_total_mass(log_p.exp().sum().item(), int(here.sum()), exact=True, tolerance=1e-9)
        if tested.card.kind in EQUAL_UP_TO_A_CONSTANT:
            again = scored[here] - torch.logsumexp(scored[here], 0)
            what = f"among texts of {length} tokens log_prob is not minus the energy"
            assert_close(again, log_p, what, atol=1e-4, axes=("text",), length=length)
        if here.sum() > 1:
            what = f"all texts of {length} tokens have the same energy"
            assert_that(log_p.std() > 1e-3, what, length=length)


@check(
    "energy-conditional",
    "Where nothing but an energy defines the system, what fills a masked position is the energy's "
    "conditional: p(x_t | rest) ∝ exp(-E), token by token.",
    law="is a distribution",
    protocol="Energy",
)
@torch.no_grad()
def energy_fill_is_its_conditional(tested: SystemUnderTest) -> None:
    system = tested.system
    if tested.card.kind != "unnormalised" or not isinstance(system, Fill):
        raise DoesNotApply("it fills in by other means than its energy, or not at all")
    sentence = tested.sentences[2]
    batch, masked = masked_each(tested, sentence)
    filled = system.fill(batch, masked).log_probs.double()
    for row, position in enumerate(range(1, len(sentence))):
        tokens = filled[row].isfinite().nonzero()[:, 0].tolist()
        what = f"only {len(tokens)} tokens can fill position {position}"
        assert_that(len(tokens) >= 3, what, position=position)
        each = [[*sentence[:position], token, *sentence[position + 1 :]] for token in tokens]
        expected = torch.log_softmax(-_energies(tested, tested.batch(each)), 0)
        what = f"what fills position {position} is not the conditional of the energy"
        assert_close(
            filled[row, tokens], expected, what, atol=1e-4, axes=("token",), position=position
        )


@check(
    "energy-batch-independence",
    "A text has the same energy alone and in a batch with others.",
    law="does not depend on the batch",
    protocol="Energy",
)
def energy_does_not_depend_on_the_batch(tested: SystemUnderTest) -> None:
    sentences = tested.sentences
    alone = torch.cat([_energies(tested, tested.batch([s])) for s in sentences])
    together = _energies(tested, tested.batch(sentences[::-1])).flip(0)
    what = "in a batch with others, a text has another energy than alone"
    assert_close(together, alone, what, atol=1e-5, axes=("text",))
