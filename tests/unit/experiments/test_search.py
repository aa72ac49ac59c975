"""Search: the points of a grid, sampled ones by seed, spaces, pruning and importance by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.experiments.importances import explained_share, setting_importances
from lmlab.experiments.pruning import EarlierTraining, PruningOptions, PruningPlan
from lmlab.experiments.search import GridSearch, KnownTrial, SampledSearch
from lmlab.experiments.search_space import Choice, Range, parse_dimension

SPACE = (
    Range(name="rate", low=1e-4, high=1e-1, log=True),
    Choice(name="width", values=(8, 16, 32)),
    Range(name="layers", low=1, high=4, whole=True),
)


def sampled(space=SPACE, *, seed=0, tpe=False, trainable=lambda point: True, **options):
    return SampledSearch(space, seed=seed, tpe=tpe, trainable=trainable, **options)


def drawn(search, count: int, objective=lambda point: 0.0) -> list[dict]:
    known: list[KnownTrial] = []
    for number in range(count):
        point = search.propose(number, known)
        if point is None:
            break
        known.append(KnownTrial(point=point, value=objective(point)))
    return [trial.point for trial in known]


def test_grid_is_the_product():
    space = (
        Choice(name="cell", values=("a", [1, 2], None)),
        Range(name="dropout", low=0.0, high=0.3, step=0.1),
        Range(name="layers", low=1, high=2, whole=True),
    )
    expected = product(("a", [1, 2], None), (0.0, 0.1, 0.2, 0.3), (1, 2))
    names = ("cell", "dropout", "layers")
    assert drawn(GridSearch(space), 100) == [
        dict(zip(names, values, strict=True)) for values in expected
    ]


def test_random_points_depend_on_seed_and_number_alone():
    points = drawn(sampled(), 40)
    assert points == drawn(sampled(), 40)
    assert points != drawn(sampled(seed=1), 40)
    known = [KnownTrial(point=point, value=None, running=True) for point in points[:7]]
    assert sampled().propose(7, known) == points[7]
    assert {point["width"] for point in points} == {8, 16, 32}
    assert {point["layers"] for point in points} == {1, 2, 3, 4}
    # Log-uniform: about half of the rates are below the geometric mean of the ends, 10^-2.5.
    small = sum(point["rate"] < 10**-2.5 for point in points)
    assert 10 <= small <= 30 and all(1e-4 <= point["rate"] <= 1e-1 for point in points)


def test_no_point_is_tried_twice_and_a_small_space_ends():
    space = (Choice(name="a", values=(1, 2)), Choice(name="b", values=("x", "y", "z")))
    for tpe in (False, True):
        points = drawn(sampled(space, tpe=tpe, startup_trials=2), 50)
        assert sorted((p["a"], p["b"]) for p in points) == sorted(product((1, 2), "xyz"))
    odd = drawn(sampled(space, trainable=lambda point: point["b"] != "y"), 50)
    assert len(odd) == 4


def test_tpe_is_deterministic_and_finds_the_valley():
    """The valley is at a rate of 0.01; uniform exponents from -4 to -1 are 5/6 away on average."""

    def distance(point):
        return abs(math.log10(point["rate"]) + 2)

    points = drawn(sampled(SPACE[:1], tpe=True), 40, distance)
    assert points == drawn(sampled(SPACE[:1], tpe=True), 40, distance)
    assert sum(map(distance, points[20:])) / 20 < 5 / 12


def test_tpe_maximises_a_metric_of_which_more_is_better():
    points = drawn(
        sampled(tpe=True, lower_is_better=False), 40, lambda point: math.log10(point["rate"])
    )
    assert sum(math.log10(point["rate"]) for point in points[20:]) / 20 > -2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"low": 2, "high": 1}, "width is impossible: low must be below high, got 2 and 1"),
        ({"low": 0, "high": 1, "log": True}, "needs low above 0, got 0"),
        ({"low": 1, "high": 2, "log": True, "step": 1}, "log and step exclude"),
        ({"low": 1, "high": 2, "step": 5}, "step must be above 0 and at most high - low, got 5"),
        ({"low": 1}, "has no high"),
        ({"lowest": 1, "high": 2}, "called 'lowest'; did you mean 'low'"),
        ({"low": "a", "high": 2}, "low of the range of width must be a number, got 'a'"),
        ([], "is empty"),
        ([3, 3], "has 3 twice"),
        (3, "a single value belongs under settings"),
    ],
)
def test_impossible_dimensions_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        parse_dimension("width", spec)


def test_a_grid_needs_finitely_many_values():
    with pytest.raises(UserError, match="a list of values for rate, or a step"):
        GridSearch(SPACE)


def rule(options: PruningOptions, *earlier: tuple[float, ...], pruned: int = 0):
    trainings = [
        EarlierTraining(losses=losses, pruned=number < pruned)
        for number, losses in enumerate(earlier)
    ]
    return PruningPlan(options=options, earlier=tuple(trainings)).rule()


def test_median_pruning_by_hand():
    """Five finished trainings have medians 3, 2 at the second and third validation; the best loss
    so far counts, the first validation is not judged."""
    earlier = [(9.0, 3 + d, 2 + d) for d in (-0.2, -0.1, 0, 0.1, 0.2)]
    options = PruningOptions(startup_trials=5)
    hopeless = rule(options, *earlier)
    assert [hopeless([99.0]), hopeless([99.0, 2.9]), hopeless([99.0, 2.9, 2.1])] == [
        False,
        False,
        True,
    ]
    assert rule(options, *earlier)([5.0, 3.05])
    assert not rule(options, *earlier)([5.0, 2.9])
    assert not rule(options, *earlier[:4])([5.0, 99.0])  # too few have finished
    assert not rule(options, *earlier, pruned=1)([5.0, 99.0])


def test_resumed_training_is_pruned_as_an_uninterrupted_one():
    earlier = [(9.0 - d, 3.0 - d, 2.0 - d, 1.0 - d) for d in (0.0, 0.1, 0.2, 0.3, 0.4)]
    for options in (PruningOptions(startup_trials=3), PruningOptions(method="halving")):
        for losses in ((9.5, 2.7, 1.9, 0.9), (8.5, 2.5, 1.5, 0.5), (9.0, 9.0, 9.0, 9.0)):
            step_by_step = rule(options, *earlier)
            answers = [step_by_step(losses[: n + 1]) for n in range(4)]
            end = answers.index(True) + 1 if True in answers else 4
            assert rule(options, *earlier)(losses[:end]) == answers[end - 1]


def test_halving_promotes_the_best_third():
    """Rungs are at validations 1, 3, 9. Of four losses at a rung the best third, one, goes on."""
    options = PruningOptions(method="halving", factor=3)
    earlier = [(1.0,) * 9, (2.0, 2.0), (3.0, 3.0)]
    assert not rule(options, *earlier)([0.9])
    assert rule(options, *earlier)([1.5])


def trials(space, objective) -> list[KnownTrial]:
    return [
        KnownTrial(point=point, value=objective(point)) for point in drawn(GridSearch(space), 10**4)
    ]


def test_importances_of_a_grid_are_exact():
    """y = 3a + b with a, b, c each in {0, 1}: variances 9/4, 1/4 and 0, so shares 0.9, 0.1, 0."""
    space = tuple(Choice(name=name, values=(0, 1)) for name in "cba")
    importances = setting_importances(
        space, trials(space, lambda p: 3 * p["a"] + p["b"]), lower_is_better=True
    )
    assert importances.method == "ANOVA" and list(importances.shares) == ["a", "b", "c"]
    assert importances.shares == pytest.approx({"a": 0.9, "b": 0.1, "c": 0.0})
    assert importances.interactions == pytest.approx(0.0, abs=1e-12)
    # y = ab has mean 1/4 and variance 3/16; E[y|a] is 0 or 1/2, with variance 1/16, a third of it.
    product_ = setting_importances(
        space, trials(space, lambda p: p["a"] * p["b"]), lower_is_better=True
    )
    assert product_.shares == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 0.0})
    assert product_.interactions == pytest.approx(1 / 3)


def test_explained_share_by_hand():
    """Groups {0, 2} and {4, 6}: SST = 20 about the mean 3, SSW = 2 + 2, so
    1 - (4 / 2) / (20 / 3) = 0.7."""
    groups = np.array([0, 0, 1, 1])
    assert explained_share(groups, np.array([0.0, 2.0, 4.0, 6.0])) == pytest.approx(0.7)
    assert explained_share(groups, np.array([0.0, 6.0, 2.0, 4.0])) == 0.0
    assert explained_share(np.arange(4), np.arange(4.0)) == 0.0  # each trial a group of its own


def test_importances_of_sampled_trials_are_near_the_true_shares():
    """y = 3a + b of uniform a, b: main effects 0.9 and 0.1, moved a little by ranks and bins."""
    space = tuple(Range(name=name, low=0.0, high=1.0) for name in "abc")
    points = drawn(sampled(space), 300)
    known = [KnownTrial(point=p, value=3 * p["a"] + p["b"]) for p in points]
    importances = setting_importances(space, known, lower_is_better=True)
    assert importances.shares == pytest.approx({"a": 0.9, "b": 0.1, "c": 0.0}, abs=0.06)
    assert setting_importances(space, known[:7], lower_is_better=True) is None


def test_pruned_trials_count_as_the_worst():
    """Half of the trials, those with a = 1, were pruned; it explains nearly all of the ranks."""
    space = (Choice(name="a", values=(0, 1)), Range(name="b", low=0.0, high=1.0))
    known = [
        KnownTrial(
            point={"a": n % 2, "b": n / 10},
            value=None if n % 2 else 1 + n / 100,
            losses=(0.5,) if n % 2 else (),
        )
        for n in range(20)
    ]
    importances = setting_importances(space, known, lower_is_better=True)
    # Ranks 0 to 9, and ten times 14.5: SST = 82.5 + 10 * 10 * 10² / 20 = 582.5, SSW = 82.5.
    assert importances.shares["a"] == pytest.approx(1 - (82.5 / 18) / (582.5 / 19))
    assert importances.shares["b"] < 0.2
