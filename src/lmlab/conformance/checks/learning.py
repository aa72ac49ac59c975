"""Checks of training: it beats a baseline, every parameter gets a gradient, and it survives saving
and resuming."""

from __future__ import annotations

import copy
import itertools
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from lmlab.conformance.assertions import assert_equal, assert_that, lacks
from lmlab.conformance.check import DoesNotApply, Failure, check
from lmlab.conformance.system_under_test import SystemUnderTest
from lmlab.core.batch import Batch
from lmlab.core.protocols import LogProb, LogProbs, Vectors
from lmlab.core.score import NORMALISED_KINDS
from lmlab.core.system import System, TrainableSystem
from lmlab.data.corpus import open_corpus
from lmlab.scoring.scorer import Scorer
from lmlab.training.run_folder import RunFolder, load_run

MARGIN = 0.05
"""Nats per token below the baseline."""
MIN_RANKED_ABOVE = 0.6
"""Share of corruptions that texts must rank above; by chance it is half."""


@check(
    "baseline",
    "After the tiny training it beats the baseline that its card names by 0.05 nats per token "
    "(chance: texts rank above 60 % of their corruptions).",
    law="learns",
    protocol="LogProb",
)
def training_beats_the_baseline(tested: SystemUnderTest) -> None:
    card, model = tested.card, tested.model
    if card.baseline == "chance":
        assert_that(
            card.kind not in NORMALISED_KINDS, f"a {card.kind} score must beat unigram or uniform"
        )
        share = _share_ranked_above_corruptions(tested)
        if not share > MIN_RANKED_ABOVE:
            raise Failure(
                f"texts rank above {share:.1%} of their corruptions, expected over 60%",
                expected=MIN_RANKED_ABOVE,
                measured=share,
            )
        return
    corpus = open_corpus(str(tested.workspace.corpus))
    texts = [example.text for example in corpus.splits["test"]]
    scores = list(Scorer(model.system, model.tokenizer, model.layout).score(texts))
    reached = -sum(s.total for s in scores) / sum(s.tokens for s in scores)
    needed = _baseline_entropy(tested) - MARGIN
    if not reached < needed:
        raise Failure(
            f"after training it has {reached:.4f} nats per token, expected under {needed:.4f}: the "
            f"{card.baseline} baseline less {MARGIN}",
            expected=needed,
            measured=reached,
        )


def _baseline_entropy(tested: SystemUnderTest) -> float:
    """Nats per token of the trivial model on the test split, fitted on the training split."""
    tokenizer = tested.model.tokenizer
    vocabulary = tokenizer.vocabulary
    corpus = open_corpus(str(tested.workspace.corpus))
    # Where the length of a text is given, as to a masked model, its end costs nothing.
    ends = [] if tested.card.kind == "pseudo" else [tested.end]

    def tokens(split: str) -> list[int]:
        lines = (tokenizer.encode(example.text) for example in corpus.splits[split])
        return [token for ids in lines for token in (*ids, *ends)]

    if tested.card.baseline == "uniform":
        return math.log(vocabulary.size - len(vocabulary.unpredictable))
    counts = np.bincount(tokens("train"), minlength=vocabulary.size)
    return float(-np.log(counts[tokens("test")] / counts.sum()).mean())


def _share_ranked_above_corruptions(tested: SystemUnderTest) -> float:
    """How often a test text scores above one of its one-token corruptions that is not in the data.

    Half of the time, by chance. All corruptions by tokens of the language count, at every position.
    """
    tokenizer, start, end = tested.model.tokenizer, tested.vocabulary.bos, tested.end
    splits = open_corpus(str(tested.workspace.corpus)).splits
    texts = {name: [tokenizer.encode(e.text) for e in splits[name]] for name in ("train", "test")}
    held = {tuple(ids) for name in texts for ids in texts[name]}
    inner = sorted({token for ids in texts["train"] for token in ids})
    pairs = [
        (ids, other)
        for ids in texts["test"]
        for position, token in itertools.product(range(len(ids)), inner)
        if tuple(other := [*ids[:position], token, *ids[position + 1 :]]) not in held
    ]
    assert_that(len(pairs) > 100, f"only {len(pairs)} corruptions to compare with, too few")
    data, corrupted = (
        tested.totals(tested.batch([[start, *ids, end] for ids in side]))
        for side in zip(*pairs, strict=True)
    )
    return (data > corrupted).double().mean().item()


@check("gradients", "Every trainable parameter gets a gradient from the loss.", law="learns")
def every_parameter_gets_a_gradient(tested: SystemUnderTest) -> None:
    system = tested.system
    if not any(parameter.requires_grad for parameter in system.parameters()):
        assert_that(
            tested.card.fitting != "gradient",
            "it is fitted by gradient and has no trainable parameter",
        )
        raise DoesNotApply("it has tables and no trainable parameter")
    if tested.card.fitting == "cooccurrence":
        raise DoesNotApply("it is fitted to counts, and texts have no loss")
    batch = tested.batch(tested.sentences)
    if "knowledge" in tested.card.needs:
        batch = _with_mentions(batch)
    without_gradient = _parameters_without_gradient(system, batch)
    if without_gradient:
        # What is trained in stages may have parameters of the first stage alone (PALM's head).
        beginning = copy.deepcopy(system).train()
        beginning.begin_step(0)
        without_gradient &= _parameters_without_gradient(beginning, batch)
    assert_that(
        not without_gradient,
        f"parameters that get no gradient from the loss: {sorted(without_gradient)}",
        parameter=", ".join(sorted(without_gradient)),
    )


def _parameters_without_gradient(system: System, batch: Batch) -> set[str]:
    """The trainable parameters that the loss of a batch does not depend on."""
    if not isinstance(system, TrainableSystem):
        raise Failure(f"{type(system).__name__} has trainable parameters and no loss")
    system.zero_grad()
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    without_gradient = {
        name
        for name, parameter in system.named_parameters()
        if parameter.requires_grad
        and (parameter.grad is None or not parameter.grad.abs().sum() > 0)
    }
    system.zero_grad()
    return without_gradient


def _with_mentions(batch: Batch) -> Batch:
    """The batch with two annotated entities in its longer rows: a memory learns from mentions."""
    entities = torch.full_like(batch.tokens, -1)
    entities[batch.lengths > 4, 1] = 2
    entities[batch.lengths > 4, 3] = 0
    return replace(batch, entities=entities)


CHANGED = "loaded from its folder, a text has another log-probability"


@torch.no_grad()
def _log_probs_after_loading(tested: SystemUnderTest, batch: Batch) -> LogProbs:
    again = load_run(tested.run).system
    if not isinstance(again, LogProb):
        raise lacks(again, "LogProb")
    return again.log_prob(batch)


@check(
    "saving",
    "Loaded from its folder, a text has the same log-probabilities, to the bit; without scores, "
    "tokens have the same vectors.",
    law="survives saving and resuming",
)
@torch.no_grad()
def loaded_model_scores_the_same(tested: SystemUnderTest) -> None:
    if "LogProb" not in tested.card.protocols and isinstance(tested.system, Vectors):
        again = load_run(tested.run).system
        assert isinstance(again, Vectors), "the same class"
        assert_equal(again.vectors(), tested.system.vectors(), CHANGED, axes=("token", "number"))
        return
    batch = tested.batch(tested.sentences)
    before = tested.scorer.log_prob(batch)
    after = _log_probs_after_loading(tested, batch)
    assert_equal(after.per_token, before.per_token, CHANGED, axes=("text", "prediction"))


@check(
    "conditional-saving",
    "Loaded from its folder, a text has the same log-probabilities given a source, to the bit.",
    law="survives saving and resuming",
    protocol="LogProb",
    conditional=True,
    exemptions=("source",),
)
@torch.no_grad()
def loaded_model_scores_the_same_given_a_source(tested: SystemUnderTest) -> None:
    source, _, text, _ = tested.sentences
    batch = tested.pairs([source], [text])
    before = tested.scorer.log_prob(batch)
    after = _log_probs_after_loading(tested, batch)
    assert_equal(after.per_token, before.per_token, CHANGED, axes=("text", "prediction"))
    assert_equal(after.totals, before.totals, CHANGED, axes=("text",))


@check(
    "resuming",
    "A training that was stopped and resumed has the losses and the weights of one that was not, "
    "to the bit; counting twice gives the same tables.",
    law="survives saving and resuming",
)
def resumed_training_is_bit_identical(tested: SystemUnderTest) -> None:
    with tempfile.TemporaryDirectory(dir=tested.workspace.folder) as folder:
        whole, halves = Path(folder, "whole"), Path(folder, "halves")
        tested.train_again(whole, steps=8)
        if tested.card.fitted_at_once:
            tested.train_again(halves)
        else:
            tested.train_again(halves, steps=4)
            tested.train_again(halves, steps=8, resume=True)
            _assert_equal_losses(_losses(whole), _losses(halves))
        _assert_equal_weights(_last_weights(whole), _last_weights(halves))


def _losses(run: Path) -> list[tuple[int, float]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines if line["event"] == "train"]


def _assert_equal_losses(whole: list[tuple[int, float]], resumed: list[tuple[int, float]]) -> None:
    assert_that(whole, "the training wrote no losses to compare")
    for one, two in itertools.zip_longest(whole, resumed):
        if one != two:
            step, expected = one or (two[0], None)
            raise Failure(
                "resumed, the losses (step, loss) differ; never stopped and resumed: "
                f"{[(one, two)]}",
                where={"step": step},
                expected=expected,
                measured=None if two is None else two[1],
            )


def _last_weights(run: Path) -> dict[str, Tensor]:
    """The last weights: the best ones by validation depend on when it was evaluated."""
    checkpoint = RunFolder(run).load_checkpoint(print)
    return load_file(run / "model.safetensors") if checkpoint is None else checkpoint.model


def _assert_equal_weights(whole: dict[str, Tensor], resumed: dict[str, Tensor]) -> None:
    unmatched = sorted(whole.keys() ^ resumed.keys())
    assert_that(not unmatched, f"weights that only one of the two trainings has: {unmatched}")
    for name, weights in whole.items():
        what = f"resumed, {name} differs"
        assert_equal(resumed[name], weights, what, axes=("index",), parameter=name)
