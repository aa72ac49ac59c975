"""Checks of what a prediction must not depend on: masked inputs, its own target, other texts of the
batch, padding."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from lmlab.conformance.assertions import assert_close, assert_that, assert_unchanged
from lmlab.conformance.check import DoesNotApply, Failure, check
from lmlab.conformance.system_under_test import SystemUnderTest, with_replaced_token
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import View


@check(
    "masked-inputs",
    "Changing an input that the attention mask hides from a position changes no prediction there; "
    "changing some input changes some prediction.",
    law="does not use masked inputs",
    protocol="LogProb",
    exemptions=("masked-inputs",),
    relaxed_by=("input-dependence",),
)
def predictions_ignore_masked_inputs(tested: SystemUnderTest) -> None:
    _check_masked_inputs(tested, tested.batch([tested.sentences[2]]))


@check(
    "conditional-masked-inputs",
    "Given a source, no prediction depends on an input that the attention mask hides from it, and "
    "no score of a token on later tokens, which only a pseudo-log-likelihood may use.",
    law="does not use masked inputs",
    protocol="LogProb",
    conditional=True,
    exemptions=("source", "masked-inputs"),
    relaxed_by=("input-dependence",),
)
def conditional_predictions_ignore_masked_inputs(tested: SystemUnderTest) -> None:
    source, _, text, _ = tested.sentences
    _check_masked_inputs(tested, tested.pairs([source], [text]))
    if tested.system.scorer_kind != "masked":
        _check_no_future_leak(tested, tested.pairs([source], [text]))


@torch.no_grad()
def _check_masked_inputs(tested: SystemUnderTest, batch: Batch) -> None:
    """For the one text of a batch, which may have a source."""
    system = tested.system
    if not isinstance(system, Assembly):
        _check_no_future_leak(tested, batch)
        return
    view = _sample_view(system, batch)
    prediction_view = view.prediction_view
    attention_mask = prediction_view.query_attention_mask or prediction_view.attention_mask
    allowed = attention_mask.mask(prediction_view.lengths, prediction_view.inputs.shape[1])[0]
    reached = 0
    before = system.target_log_probs(view).to_dense()[0]
    for changed in range(prediction_view.inputs.shape[1]):
        inputs = with_replaced_token(prediction_view.inputs, changed)
        other = replace(prediction_view, inputs=inputs)
        after = _log_probs(system, other if view.decoder is None else replace(view, decoder=other))
        assert_unchanged(after[0], before, ~allowed[:, changed], changed)
        reached += int((after[0] != before).sum())
    if view.decoder is not None:
        for changed in range(view.inputs.shape[1]):
            other = replace(view, inputs=with_replaced_token(view.inputs, changed))
            reached += int((_log_probs(system, other)[0] != before).sum())
    if "input-dependence" not in tested.card.exempt:
        assert_that(reached, "no input changes any prediction: the check would pass on anything")


@torch.no_grad()
def _check_no_future_leak(tested: SystemUnderTest, batch: Batch) -> None:
    """Later tokens of the one text of a batch change no token's log-probability."""
    reached = 0
    before = tested.scorer.log_prob(batch).per_token[0]
    for changed in range(1, batch.tokens.shape[1]):
        tokens = with_replaced_token(batch.tokens, changed)
        after = tested.scorer.log_prob(replace(batch, tokens=tokens)).per_token[0]
        earlier = torch.arange(len(before)) < changed - 1
        # The first number is the log-probability of the token at position 1.
        assert_unchanged(after, before, earlier, changed, first=1)
        reached += int((after[changed:] != before[changed:]).sum())
    if "input-dependence" not in tested.card.exempt:
        assert_that(
            reached, "no token changes any later prediction: the check would pass on anything"
        )


@check(
    "own-target",
    "Changing a token of the clean text does not change its own prediction, unless the objective "
    "shows it on purpose.",
    law="does not use masked inputs",
    exemptions=("masked-inputs",),
)
@torch.no_grad()
def prediction_ignores_its_own_target(tested: SystemUnderTest) -> None:
    """Where it is shown on purpose (BERT keeps one target in ten), it is the input at that
    position; a query stream does not see that input."""
    system = tested.system
    if not isinstance(system, Assembly):
        raise DoesNotApply("it shows no view")
    if tested.card.kind == "reconstruction":
        raise DoesNotApply("it is shown its own target, through a vector: its kind says so")
    batch = tested.batch([tested.sentences[2]] * 8)
    view = _sample_view(system, batch)
    compared = 0
    for origin in range(1, int(batch.lengths[0]) - 1):
        tokens = batch.tokens.clone()
        tokens[:, origin] = torch.where(tokens[:, origin] == 5, 6, 5)
        other = _sample_view(system, replace(batch, tokens=tokens))
        if other.prediction_view.inputs.shape != view.prediction_view.inputs.shape:
            continue  # what is masked depends on the text
        here = _comparable_predictions(view, other, origin)
        after = _log_probs(system, _with_targets_of(view, other))
        assert_close(
            after[here],
            _log_probs(system, view)[here],
            f"the prediction of position {origin} depends on the token that stands there",
            atol=1e-6,
            axes=("prediction",),
            position=origin,
        )
        compared += int(here.sum())
    assert_that(compared, "no prediction could be compared: the check would pass on anything")


def _comparable_predictions(view: View, other: View, origin: int) -> Tensor:
    """(B, T) where both views predict the clean position `origin` and mask its token."""
    one, two = view.prediction_view, other.prediction_view
    assert one.clean_positions is not None and two.clean_positions is not None
    here = (one.clean_positions == origin) & (two.clean_positions == origin)
    if view.decoder is None and view.query_attention_mask is None:
        here &= view.inputs == other.inputs
    if view.decoder is not None and view.clean_positions is not None:
        # An encoder that sees the token itself, as BART's does, masks nothing of it.
        here &= ~(view.clean_positions == origin).any(1, keepdim=True)
    return here


def _with_targets_of(view: View, other: View) -> View:
    """The other view, whose targets are those of the first."""
    first = view.prediction_view
    prediction_view = replace(other.prediction_view, targets=first.targets, weights=first.weights)
    return prediction_view if other.decoder is None else replace(other, decoder=prediction_view)


def _sample_view(system: Assembly, batch: Batch) -> View:
    return system.objective.view(batch, generator=torch.Generator().manual_seed(0))


def _log_probs(system: Assembly, view: View) -> Tensor:
    """(B, T) log-probabilities of a view's targets."""
    return system.target_log_probs(view).to_dense()


def _longest_accepted_text(tested: SystemUnderTest) -> list[int]:
    """A text of 30 tokens after <s>, or of as many as the system has a probability for."""
    for tokens in range(30, 0, -1):
        with suppress(UserError):
            tested.system.check_length(tokens + 1)
            return [2] + [5] * tokens
    raise Failure("check_length refuses every text, even of one token")


@check(
    "batch-independence",
    "A text has the same log-probability alone, with others, in another order and padded.",
    law="does not depend on the batch",
    protocol="LogProb",
    exemptions=("batch",),
)
def score_does_not_depend_on_the_batch(tested: SystemUnderTest) -> None:
    sentences = tested.sentences
    alone = torch.cat([tested.totals(tested.batch([s])) for s in sentences])
    together = tested.totals(tested.batch(sentences))
    backwards = tested.totals(tested.batch(sentences[::-1])).flip(0)
    wider = tested.batch([*sentences, _longest_accepted_text(tested)])
    padded = tested.totals(wider)[: len(sentences)]
    batched_scores = {"together": together, "in reverse order": backwards, "with padding": padded}
    for how, scores in batched_scores.items():
        assert_close(
            scores,
            alone,
            f"scored {how}, a text has another log-probability than alone",
            atol=1e-5,
            axes=("text",),
            scored=how,
        )


@check(
    "conditional-batch-independence",
    "Given its source, a text has the same log-probability whatever other pairs are in the batch, "
    "and another one for each source.",
    law="does not depend on the batch",
    protocol="LogProb",
    conditional=True,
    exemptions=("source", "batch"),
)
def conditional_score_does_not_depend_on_the_batch(tested: SystemUnderTest) -> None:
    """Nor on the order of the pairs, nor on how far the sources or the texts are padded."""
    texts = tested.sentences
    sources = [texts[2], texts[3], texts[1], texts[0]]
    long, start = [2] + [5] * 30, texts[1]

    def scored(sources: list[list[int]], texts: list[list[int]]) -> Tensor:
        return tested.totals(tested.pairs(sources, texts))

    alone = torch.cat([scored([s], [t]) for s, t in zip(sources, texts, strict=True)])
    batched_scores = {
        "together": scored(sources, texts),
        "in reverse order": scored(sources[::-1], texts[::-1]).flip(0),
        "with a longer source": scored([*sources, long], [*texts, start])[: len(texts)],
        "with a longer text": scored([*sources, start], [*texts, long])[: len(texts)],
    }
    for how, scores in batched_scores.items():
        what = f"scored {how}, a text has another log-probability than alone"
        assert_close(scores, alone, what, atol=1e-5, axes=("pair",), scored=how)
    # One text with many sources: equal prefixes must not be shared between sources.
    many = scored(sources, [texts[0]] * len(sources))
    each = torch.cat([scored([source], [texts[0]]) for source in sources])
    what = "with many sources in a batch, a text has another log-probability than with one"
    assert_close(many, each, what, atol=1e-5, axes=("source",))
    different = len(set(each.tolist()))
    assert_that(
        different == len(sources), f"{len(sources)} sources give {different} log-probabilities"
    )
