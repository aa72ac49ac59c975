"""Broken systems: each check finds what it is for, and its message says where.

A mutant is a trained system of the zoo in which one thing is changed: the check must fail on it,
with the position where it was broken.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lmlab.conformance.checks import declarations
from lmlab.conformance.suite import CHECKS, run_check
from lmlab.conformance.system_under_test import SystemUnderTest, Workspace
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.training.system_building import build_tiny

Mutate = Callable[[SystemUnderTest, pytest.MonkeyPatch], SystemUnderTest]
PEEKED = 3
"""The position whose prediction a peeking mutant lets depend on its own token."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A broken system, the check that must find it, and what its failure must say."""

    system: str
    check: str
    mutate: Mutate
    message: str
    where: dict[str, Any] = field(default_factory=dict)


MUTANTS: dict[str, Mutant] = {}


def mutant(system: str, check: str, message: str, **where: Any) -> Callable[[Mutate], Mutate]:
    def decorate(mutate: Mutate) -> Mutate:
        name = mutate.__name__.replace("_", "-")
        MUTANTS[f"{check}: {name}"] = Mutant(
            system=system, check=check, mutate=mutate, message=message, where=where
        )
        return mutate

    return decorate


def with_system(tested: SystemUnderTest, system: Any) -> SystemUnderTest:
    return replace(tested, model=replace(tested.model, system=system))


def with_method(
    tested: SystemUnderTest, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> SystemUnderTest:
    """A copy of the system, one of whose methods is another."""
    system = copy.deepcopy(tested.system)
    setattr(system, name, wrap(getattr(system, name)))
    return with_system(tested, system)


def changed_log_probs(
    tested: SystemUnderTest, change: Callable[[torch.Tensor, Any], torch.Tensor]
) -> SystemUnderTest:
    """The log-probability of each token changed, given the batch."""

    def wrap(log_prob: Callable[..., Any]) -> Callable[..., Any]:
        def changed(batch: Any, **options: Any) -> Any:
            scored = log_prob(batch, **options)
            return replace(scored, per_token=change(scored.per_token, batch))

        return changed

    return with_method(tested, "log_prob", wrap)


def add_at(values: torch.Tensor, index: int, amount: torch.Tensor | float) -> torch.Tensor:
    """The values (B, T) with a number added at an index."""
    values = values.clone()
    if index < values.shape[1]:
        values[:, index] += amount
    return values


class Delegate:
    """An object that answers for another, but for the attributes given."""

    def __init__(self, other: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_other"] = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


# The card ------------------------------------------------------------------------------------


@mutant("lstm", "card", "the card says that log_prob is exact, and it is bound")
def another_kind_of_score(tested, patch):
    def wrap(log_prob):
        return lambda batch, **options: replace(log_prob(batch, **options), kind="bound")

    return with_method(tested, "log_prob", wrap)


@mutant("lstm", "card", r"\['Vectors'\]", protocol="Vectors")
def a_protocol_that_the_card_does_not_name(tested, patch):
    patch.setattr(AutoregressiveLM, "vectors", lambda self: torch.ones(7, 2), raising=False)
    return tested


@mutant("lstm", "scorer-kind", "scorer_kind is energy, and the system has Step")
def another_kind_of_scorer(tested, patch):
    patch.setattr(AutoregressiveLM, "scorer_kind", "energy")
    return tested


@mutant("lstm", "scorer-kind", "changes the score of one before it: at position 3", position=3)
def a_score_that_depends_on_a_later_token(tested, patch):
    def change(per_token, batch):
        return add_at(per_token, 2, 0.1 * (batch.tokens[0, 5] == 5))

    return changed_log_probs(tested, change)


@mutant("bert", "scorer-kind", "not its log-probability given all the others", position=2)
def a_masked_score_that_is_too_high(tested, patch):
    return changed_log_probs(tested, lambda per_token, batch: add_at(per_token, 1, 0.1))


@mutant("gru-autoencoder", "scorer-kind", "no token before position 5 depends on the one there")
def a_reconstruction_without_encoding(tested, patch):
    return changed_log_probs(tested, lambda per_token, batch: torch.zeros_like(per_token))


@mutant("gru-vae", "scorer-kind", "all of a text's score is divided among its tokens")
def a_bound_without_the_term_of_the_text(tested, patch):
    def wrap(log_prob):
        return lambda batch, **options: replace(log_prob(batch, **options), per_sequence=None)

    return with_method(tested, "log_prob", wrap)


@dataclass(frozen=True, kw_only=True)
class NoRange:
    width: int = 8
    depth: int = field(default=2, metadata={"at_least": 1})


@mutant(
    "lstm", "setting-ranges", r"without a range in their metadata: \['width'\]", setting="width"
)
def a_setting_without_a_range(tested, patch):
    module = SimpleNamespace(Config=NoRange, SIZES={"base": NoRange()})
    patch.setattr(declarations, "system_module", lambda name: module)
    return tested


@mutant("gpt", "card-corpus", r"must have at most \d+ tokens, <s> included, got 302")
def texts_longer_than_the_window(tested, patch):
    corpus = tested.workspace.folder / "long.txt"
    corpus.write_text("a " * 300 + "\n", encoding="utf-8")
    return replace(tested, card=replace(tested.card, corpus=str(corpus)))


@mutant("lstm", "exemptions", "without that sampling passes; remove", exemption="sample")
def an_exemption_from_what_it_has(tested, patch):
    return replace(tested, card=replace(tested.card, exempt={"sample": "it cannot"}))


@mutant(
    "lstm", "exemptions", "the card names the exemption 'samples', expected", exemption="samples"
)
def an_exemption_from_nothing(tested, patch):
    return replace(tested, card=replace(tested.card, exempt={"samples": "it cannot"}))


# It is a distribution ------------------------------------------------------------------------


def too_probable(tested, patch):
    """The first token of each text is e^0.1 = 1.105 times as probable as it should be."""
    return changed_log_probs(tested, lambda values, batch: add_at(values, 0, 0.1))


SUM = r"probabilities sum to 1\.105\d+ over \d+ sequences, expected 1\."
mutant("lstm", "normalisation", SUM)(too_probable)
mutant("seq2seq", "conditional-normalisation", SUM)(too_probable)


@mutant("gru-vae", "latent-decoder", "at position 1 expected", position=1)
def decoder_that_scores_the_first_token_too_high(tested, patch):
    def wrap(given):
        def changed(latents):
            decoder = given(latents)

            def log_prob(batch, **options):
                scored = decoder.log_prob(batch, **options)
                return replace(scored, per_token=add_at(scored.per_token, 0, 0.1))

            return Delegate(decoder, log_prob=log_prob)

        return changed

    return with_method(tested, "given", wrap)


@mutant(
    "bert", "fill-normalisation", "do not sum to 1: at position 3 expected 1, got 1.1", position=3
)
def fill_too_probable_at_one_position(tested, patch):
    def wrap(fill):
        def changed(batch, masked, **options):
            log_probs = fill(batch, masked, **options).log_probs.clone()
            log_probs[2] += 0.1
            return Categorical(log_probs)

        return changed

    return with_method(tested, "fill", wrap)


@mutant("hmm", "fill-normalisation", "what fills position 2 is not the model's own", position=2)
def fill_of_another_distribution(tested, patch):
    def wrap(fill):
        def changed(batch, masked, **options):
            log_probs = fill(batch, masked, **options).log_probs.clone()
            log_probs[1] = (2 * log_probs[1]).log_softmax(0)
            return Categorical(log_probs)

        return changed

    return with_method(tested, "fill", wrap)


def with_decoder(tested, **attributes):
    """The decoder of blanks, some of whose methods are others, made from it."""

    def wrap(infill_decoder):
        def changed(batch):
            decoder = infill_decoder(batch)
            return Delegate(decoder, **{n: make(decoder) for n, make in attributes.items()})

        return changed

    return with_method(tested, "infill_decoder", wrap)


@mutant("t5", "infill-normalisation", r"the answer \(1,\) was written as .* read back as \[\(\)\]")
def answers_that_lose_their_last_token(tested, patch):
    def answers(decoder):
        return lambda row, tokens: [answer[:-1] for answer in decoder.answers(row, tokens)]

    return with_decoder(tested, answers=answers)


def with_joint_fill(tested, **attributes):
    def wrap(joint_fill):
        def changed(batch, masked):
            joint = joint_fill(batch, masked)
            made = {name: make(joint, batch) for name, make in attributes.items()}
            return Delegate(joint, **made)

        return changed

    return with_method(tested, "joint_fill", wrap)


@mutant("span-joint", "joint-fill-normalisation", "sum to 1.105.* fillings, expected 1.")
def joint_fill_too_probable(tested, patch):
    return with_joint_fill(
        tested, log_prob=lambda joint, batch: lambda tokens: joint.log_prob(tokens) + 0.1
    )


@mutant("ebm", "energy-normalisation", "among texts of 3 tokens log_prob is not minus the energy")
def energy_twice_as_high(tested, patch):
    return with_method(tested, "energy", lambda energy: lambda batch: 2 * energy(batch))


@mutant("ebm", "energy-conditional", "what fills position 1 is not the conditional", position=1)
def fill_by_half_the_energy(tested, patch):
    def wrap(fill):
        def changed(batch, masked, **options):
            return Categorical((fill(batch, masked, **options).log_probs / 2).log_softmax(-1))

        return changed

    return with_method(tested, "fill", wrap)


# It does not use masked inputs ---------------------------------------------------------------


def peeking(tested, patch):
    """What is predicted of the token at PEEKED depends on that token."""

    def wrap(target_log_probs):
        def changed(view):
            values = target_log_probs(view).to_dense()
            inputs = view.prediction_view.inputs[:, PEEKED].to(values)
            values = add_at(values, PEEKED - 1, 0.001 * inputs)
            return SimpleNamespace(to_dense=lambda: values)

        return changed

    return with_method(tested, "target_log_probs", wrap)


LEAK = rf"position {PEEKED - 1} depends on position {PEEKED}, which it must not see"
LEAKED = {"position": PEEKED - 1, "changed position": PEEKED}
mutant("lstm", "masked-inputs", LEAK, **LEAKED)(peeking)
mutant("seq2seq", "conditional-masked-inputs", LEAK, **LEAKED)(peeking)
OWN = f"the prediction of position {PEEKED} depends on the token that stands there"
mutant("lstm", "own-target", OWN, position=PEEKED)(peeking)


@mutant(
    "pcfg",
    "masked-inputs",
    "position 3 depends on position 4",
    **{"position": 3, "changed position": 4},
)
def score_that_peeks(tested, patch):
    """A system without views is tested by its scores."""

    def change(values, batch):
        return add_at(values, 2, 0.001 * batch.tokens[:, 4].to(values))

    return changed_log_probs(tested, change)


@mutant("lstm", "masked-inputs", "no input changes any prediction")
def predictions_that_see_nothing(tested, patch):
    def wrap(target_log_probs):
        def changed(view):
            values = torch.zeros_like(target_log_probs(view).to_dense())
            return SimpleNamespace(to_dense=lambda: values)

        return changed

    return with_method(tested, "target_log_probs", wrap)


@mutant(
    "bert", "fill-masked-inputs", "under the mask at position 4: at masked position 1", position=4
)
def fill_that_peeks_under_the_mask(tested, patch):
    def wrap(fill):
        def changed(batch, masked, **options):
            log_probs = fill(batch, masked, **options).log_probs.clone()
            log_probs[1] += 0.001 * batch.tokens[0, 4]
            return Categorical(log_probs)

        return changed

    return with_method(tested, "fill", wrap)


@mutant(
    "span-joint", "joint-fill-masked-inputs", "the token under the mask at position 3", position=3
)
def joint_fill_that_peeks_under_the_mask(tested, patch):
    def log_prob(joint, batch):
        return lambda tokens: joint.log_prob(tokens) + 0.001 * batch.tokens[:, 3]

    return with_joint_fill(tested, log_prob=log_prob)


# It does not depend on the batch -------------------------------------------------------------


def padded(tested, patch):
    """The score depends on how far the batch is padded."""

    def change(values, batch):
        return add_at(values, 0, 0.001 * batch.tokens.shape[1])

    return changed_log_probs(tested, change)


TOGETHER = "scored together, a text has another log-probability than alone"
mutant("lstm", "batch-independence", f"{TOGETHER}: at text 0", text=0, scored="together")(padded)
mutant("seq2seq", "conditional-batch-independence", f"{TOGETHER}: at pair 0", pair=0)(padded)


@mutant("ebm", "energy-batch-independence", "another energy than alone: at text 0", text=0)
def energy_of_the_whole_batch(tested, patch):
    return with_method(
        tested, "energy", lambda energy: lambda batch: energy(batch) + 0.001 * len(batch)
    )


@mutant("t5", "infill-batch-independence", "the other texts of the batch: at text 0", text=0)
def decoder_that_counts_the_rows(tested, patch):
    def peek(decoder):
        def changed(state):
            log_probs = decoder.peek(state).log_probs
            return Categorical(log_probs + 0.001 * len(log_probs))

        return changed

    return with_decoder(tested, peek=peek)


@mutant("span-joint", "joint-fill-batch-independence", "with the other text in the batch", text=0)
def joint_fill_that_knows_pairs(tested, patch):
    def log_prob(joint, batch):
        return lambda tokens: joint.log_prob(tokens) + 0.001 * (len(batch) == 2)

    return with_joint_fill(tested, log_prob=log_prob)


@mutant("lstm", "text-vectors", "the vector of 'a a a b' with others and alone differ")
def vectors_of_the_whole_batch(tested, patch):
    def wrap(hidden):
        def changed(view, state=None):
            result = hidden(view, state)
            return replace(result, values=result.values + 0.1 * len(view.inputs))

        return changed

    return with_method(tested, "hidden", wrap)


# It learns -----------------------------------------------------------------------------------


@mutant("lstm", "baseline", r"it has 1\.\d+ nats per token, expected under \d\.\d+: the unigram")
def never_trained(tested, patch):
    return with_system(tested, build_tiny("lstm", Vocabulary(size=tested.vocabulary.size)).eval())


@mutant("lstm", "gradients", r"get no gradient from the loss: \['unused'\]", parameter="unused")
def a_parameter_that_nothing_uses(tested, patch):
    system = copy.deepcopy(tested.system)
    system.unused = nn.Parameter(torch.ones(2))
    return with_system(tested, system)


@mutant("skipgram", "word-vectors", "a and b have the same vector")
def words_with_one_vector(tested, patch):
    return with_method(tested, "vectors", lambda vectors: lambda: torch.ones_like(vectors()))


# It survives saving and resuming -------------------------------------------------------------


def bias_that_was_not_saved(tested, patch):
    system = copy.deepcopy(tested.system)
    with torch.no_grad():
        next(system.emission.parameters()).mul_(1.5)
    return with_system(tested, system)


mutant("lstm", "saving", "loaded from its folder.*at text 0, prediction 0", text=0)(
    bias_that_was_not_saved
)
mutant("seq2seq", "conditional-saving", "loaded from its folder.*at text 0", text=0)(
    bias_that_was_not_saved
)


@mutant("lstm", "resuming", r"the losses \(step, loss\) differ.*\[\(\(5, ", step=5)
def a_counter_that_is_not_saved(tested, patch):
    loss = AutoregressiveLM.loss

    def counted(self, batch, **options):
        self.calls = getattr(self, "calls", 0) + 1
        result, state = loss(self, batch, **options)
        return replace(result, total=result.total * (1 + 0.1 * self.calls)), state

    patch.setattr(AutoregressiveLM, "loss", counted)
    return tested


# It samples what it scores -------------------------------------------------------------------


def sharper(tested, patch):
    """The next token is sampled at temperature 1/2, and scored at 1."""

    def wrap(peek):
        return lambda state: Categorical((2 * peek(state).log_probs).log_softmax(-1))

    return with_method(tested, "peek", wrap)


SAMPLES = r"samples do not follow the scored probabilities \(chi-square p = \S+\): '"
mutant("lstm", "sampling", f"4,000 {SAMPLES}")(sharper)
mutant("seq2seq", "conditional-sampling", f"2,000 {SAMPLES}")(sharper)


@mutant("span-joint", "joint-fill-sampling", f"4,000 {SAMPLES}")
def the_best_filling_again_and_again(tested, patch):
    return with_joint_fill(tested, sample=lambda joint, batch: lambda generator: joint.best())


# It steps as it scores -----------------------------------------------------------------------


def forgets_which_word_it_was(tested, patch):
    """After the word 6 it goes on as after the word 5: a text 6 5 6 … is wrong from position 2."""
    wrap = lambda advance: lambda state, tokens: advance(state, tokens.clamp(max=5))  # noqa: E731
    return with_method(tested, "advance", wrap)


STEPPED = "token by token it gives another log-probability than at once: at position 2"
mutant("lstm", "stepping", STEPPED, position=2)(forgets_which_word_it_was)
mutant("seq2seq", "conditional-stepping", STEPPED, position=2)(forgets_which_word_it_was)


@mutant("lstm", "state-selection", "selected rows of a state predict otherwise.*at row 0", row=0)
def selection_in_another_order(tested, patch):
    def wrap(advance):
        def changed(state, tokens):
            after = advance(state, tokens)
            return Delegate(after, select=lambda rows: after.select(rows.sort().values))

        return changed

    def unwrapped(peek):
        return lambda state: peek(getattr(state, "_other", state))

    return with_method(with_method(tested, "advance", wrap), "peek", unwrapped)


# It shows what it declares -------------------------------------------------------------------


@mutant("lstm", "captures", r"gate is declared to be within 0.* got \[1\.5\]", capture="gate")
def a_gate_beyond_one(tested, patch):
    capture = Capture(values=torch.tensor([[1.5]]), axes=("batch", "time"), caption="a gate")
    capture = replace(capture, bounds=(0.0, 1.0))
    return with_method(tested, "capture_internals", lambda _: lambda batch: {"gate": capture})


@mutant("lstm", "layer-vectors", "layers 1 and -1, which are one, differ")
def hidden_states_that_change_with_every_call(tested, patch):
    calls = iter(range(1000))

    def wrap(hidden):
        def changed(view, state=None):
            result = hidden(view, state)
            return replace(result, values=result.values + 0.1 * next(calls))

        return changed

    return with_method(tested, "hidden", wrap)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(m.system)) for n, m in MUTANTS.items()]
)
def test_mutant_is_found(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutant = MUTANTS[name]
    tested = workspace.system(mutant.system)
    assert run_check(CHECKS[mutant.check], tested).outcome == "passed", "the sound system passes"
    result = run_check(CHECKS[mutant.check], mutant.mutate(tested, monkeypatch))
    assert result.outcome == "failed"
    assert re.search(mutant.message, result.message), result.message
    assert result.where.items() >= mutant.where.items(), result.where


def test_every_check_has_a_mutant() -> None:
    assert {mutant.check for mutant in MUTANTS.values()} == CHECKS.keys()
