"""Evaluation of benchmark suites: items scored as a stream; averages and intervals of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.score import Convention, ScoreKind, ScorerKind
from lmlab.scoring.bootstrap import interval, mean_interval, paired_bootstrap
from lmlab.scoring.conditional import conditional_scores
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.suite import AnyScore, Average, ItemResult, Suite, SuiteItem
from lmlab.scoring.suite_records import GroupResult, SuiteDifference, SuiteFailure, SuiteResult
from lmlab.scoring.suite_registry import SuiteData
from lmlab.scoring.word_vectors import spearman

Values = NDArray[np.float64]
Level = Literal["average", "phenomenon", "paradigm"]
RESAMPLES = 2000
WHOLE_TEXT_SCORERS: frozenset[ScorerKind] = frozenset({"energy", "whole-text"})
"""Kinds of scorers whose tokens have no log-probability."""


def evaluate_suite(
    suite: Suite, items: Sequence[SuiteItem], scorer: Scorer, model: str, *, seed: int = 0
) -> SuiteResult:
    """Score all items of a suite by one model, and average the results."""
    if suite.by_token and scorer.system.scorer_kind in WHOLE_TEXT_SCORERS:
        raise UserError(
            f"{suite.name} needs the scores of tokens, and this model scores texts as a whole."
        )
    scores = _scores(suite, items, scorer)
    results: list[ItemResult] = []
    first: AnyScore | None = None
    for item in items:
        item_scores = [next(scores) for _ in item.requests()]
        first = first or item_scores[0]
        results.append(item.result(item_scores))
    if first is None:
        raise UserError(f"the data of {suite.name} hold no item.")
    kind: ScoreKind = first.kind
    convention: Convention = first.convention
    return SuiteResult(
        model=model,
        suite=suite.name,
        measure=suite.measure,
        average_over=suite.average,
        paradigms=len({item.paradigm for item in results}),
        all_paradigms=suite.paradigms,
        kind=kind,
        convention=convention,
        groups=tuple(_groups(suite, results, seed)),
        items=tuple(results),
    )


def evaluate_models(
    data: SuiteData, scorers: Mapping[str, Scorer], *, seed: int = 0
) -> tuple[list[SuiteResult], list[SuiteFailure]]:
    """Evaluate models, by name, on one suite; those that can't do it are failures."""
    suite, items = data.suite, data.suite.read(data.path)
    results, failures = [], []
    for name, scorer in scorers.items():
        try:
            results.append(evaluate_suite(suite, items, scorer, name, seed=seed))
        except UserError as error:
            failures.append(SuiteFailure(suite=suite.name, model=name, reason=str(error)))
    return results, failures


def _scores(suite: Suite, items: Sequence[SuiteItem], scorer: Scorer) -> Iterator[AnyScore]:
    requests = (request for item in items for request in item.requests())
    if suite.conditional:
        return conditional_scores(scorer, ((r.prefix, r.continuation) for r in requests))
    texts = (request.continuation for request in requests)
    return scorer.with_method().score(texts, per_token=suite.by_token)


def _groups(suite: Suite, results: Sequence[ItemResult], seed: int) -> Iterator[GroupResult]:
    """The average, then each phenomenon, then each paradigm."""
    levels: dict[Level, Callable[[ItemResult], str]] = {
        "average": lambda item: suite.name,
        "phenomenon": lambda item: item.phenomenon,
        "paradigm": lambda item: item.paradigm,
    }
    for level, name_of in levels.items():
        average = suite.average if level == "average" else "paradigm"
        for name in dict.fromkeys(map(name_of, results)):
            members = [item for item in results if name_of(item) == name]
            yield _group(suite, level, name, members, average, seed)


def _group(
    suite: Suite, level: Level, name: str, items: Sequence[ItemResult], average: Average, seed: int
) -> GroupResult:
    if suite.measure == "spearman":
        value, (low, high), first = *_correlation(items, seed), None
    else:
        weights = item_weights(items, average)
        credits = np.array([item.credit for item in items])
        value = float((weights * credits).sum() / weights.sum())
        low, high = mean_interval(credits, weights, seed=seed)
        first = _first_rule(items, weights)
    return GroupResult(
        by=level,
        name=name,
        n=len(items),
        value=value,
        low=low,
        high=high,
        ties_to_first=first,
        ties=sum(item.tie for item in items),
        with_unknown=sum(item.unknown for item in items),
    )


def _first_rule(items: Sequence[ItemResult], weights: Values) -> float | None:
    credits = [item.first_credit for item in items if item.first_credit is not None]
    if len(credits) < len(items):
        return None
    return float((weights * np.array(credits)).sum() / weights.sum())


def item_weights(items: Sequence[ItemResult], average: Average) -> Values:
    """Weights (N,) with sum N by which Σ w credit / Σ w is a mean over paradigms or phenomena.

    Each paradigm counts alike whatever its number of items; with `phenomenon` each phenomenon
    counts alike, and within one each paradigm.
    """
    sizes = Counter((item.phenomenon, item.paradigm) for item in items)
    within = Counter(phenomenon for phenomenon, _ in sizes)
    weights = np.array(
        [
            1
            / sizes[item.phenomenon, item.paradigm]
            / (within[item.phenomenon] if average == "phenomenon" else 1)
            for item in items
        ]
    )
    scaled: Values = weights * (len(items) / weights.sum())
    return scaled


def _correlation(items: Sequence[ItemResult], seed: int) -> tuple[float, tuple[float, float]]:
    """Spearman's ρ of the model's preferences with people's, with a 95 % bootstrap interval.

    NaN where all preferences are equal: an indifferent model has no ranking.
    """
    model = np.array([item.preference for item in items], dtype=np.float64)
    human = np.array([item.human_preference for item in items], dtype=np.float64)
    value = _rank_correlation(model, human)
    if np.isnan(value):
        return value, (value, value)
    generator = np.random.default_rng(seed)
    draws = (generator.integers(0, len(items), len(items)) for _ in range(RESAMPLES))
    values = [_rank_correlation(model[draw], human[draw]) for draw in draws]
    low, high = np.nanquantile(values, [0.025, 0.975])
    return value, (float(low), float(high))


def _rank_correlation(model: Values, human: Values) -> float:
    if len(np.unique(model)) < 2 or len(np.unique(human)) < 2:
        return float("nan")
    return spearman(model.tolist(), human.tolist())


def suite_differences(
    results: Sequence[SuiteResult], *, seed: int = 0
) -> Iterator[SuiteDifference]:
    """Differences of the averages of every two models on one suite, by a paired bootstrap."""
    if len(results) < 2 or results[0].measure != "accuracy":
        return
    weights = item_weights(results[0].items, results[0].average_over)[:, None]
    credits = np.array([[item.credit for item in result.items] for result in results]).T
    ratios = paired_bootstrap(weights * credits, np.repeat(weights, len(results), 1), seed=seed)
    for first, second in combinations(range(len(results)), 2):
        value = results[first].average.value - results[second].average.value
        yield SuiteDifference(
            suite=results[0].suite,
            first=results[first].model,
            second=results[second].model,
            interval=interval(ratios, value, first, second),
        )
