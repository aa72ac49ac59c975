"""Benchmark suites on a unigram model, whose scores are sums that can be made by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.system import System
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.alternatives import Alternatives
from lmlab.scoring.babylm_predictions import babylm_predictions, write_babylm_predictions
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.suite import Suite
from lmlab.scoring.suite_evaluation import evaluate_models, evaluate_suite, suite_differences
from lmlab.scoring.suite_records import GroupResult, SuiteResult
from lmlab.scoring.suite_registry import all_suites, find_suites

WORDS = {"good": -1.0, "fair": -2.0, "bad": -3.0, "also": -2.0, "</s>": -1.0, "<unk>": -9.0}


class Unigram(System):
    """log p of each word whatever the context; `factor` -1 makes the worst the best."""

    scorer_kind = "left-to-right"

    def __init__(self, tokenizer, factor: float) -> None:
        super().__init__()
        self.vocabulary = tokenizer.vocabulary
        self.log_probs = torch.zeros(self.vocabulary.size)
        for word, value in WORDS.items():
            self.log_probs[tokenizer.id(word)] = factor * value

    def log_prob(self, batch, *, state=None, generator=None):
        per_token = self.log_probs[batch.tokens[:, 1:]] * batch.targets_mask()[:, 1:]
        return LogProbs(per_token=per_token, kind="exact")


def unigram(factor: float = 1.0) -> Scorer:
    tokenizer = train_tokenizer("word", ["good fair bad also"])
    return Scorer(Unigram(tokenizer, factor), tokenizer, Layout())


def evaluate(name: str, data: Path, factor: float = 1.0) -> SuiteResult:
    [found] = find_suites(name, data)
    items = found.suite.read(found.path)
    return evaluate_suite(found.suite, items, unigram(factor), f"unigram{factor:+g}")


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def pair(good: str, bad: str, uid: str, term: str = "order") -> dict[str, str]:
    return {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": term}


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    rows = [pair("good", "bad", "one")] * 3 + [pair("bad", "good", "one")]
    write(tmp_path / "blimp_filtered" / "one.jsonl", *rows)
    ties = [pair("fair", "also", "two"), pair("good odd", "good even", "two")]
    write(tmp_path / "blimp_filtered" / "two.jsonl", *ties)
    return tmp_path


def group(result: SuiteResult, name: str) -> GroupResult:
    [found] = [each for each in result.groups if each.name == name]
    return found


def test_blimp_averages_paradigms_and_shares_ties(blimp: Path) -> None:
    result = evaluate("blimp", blimp)
    one, two = group(result, "one"), group(result, "two")
    assert (one.value, one.ties_to_first, one.n, one.ties) == (0.75, 0.75, 4, 0)
    assert (two.value, two.ties_to_first, two.n, two.ties, two.with_unknown) == (0.5, 1, 2, 2, 1)
    # The mean over the two paradigms, not over the six pairs.
    assert result.average.value == pytest.approx((0.75 + 0.5) / 2)
    assert result.average.ties_to_first == pytest.approx((0.75 + 1) / 2)
    assert result.average.low <= result.average.value <= result.average.high
    assert (result.kind, result.paradigms, result.all_paradigms) == ("exact", 2, 67)
    assert (two.low, two.high) == (0.5, 0.5)


def test_a_supplement_without_uids_is_named_by_its_files(tmp_path: Path) -> None:
    rows = [{"sentence_good": "good", "sentence_bad": "fair"}]
    write(tmp_path / "turn_taking.jsonl", *rows)
    result = evaluate("supplement", tmp_path)
    assert [each.name for each in result.level("paradigm")] == ["turn_taking"]
    assert result.average.value == 1


def test_entity_tracking_averages_operations_within_files(tmp_path: Path) -> None:
    def item(right: str, operations: int) -> dict[str, object]:
        options = [right, "fair", "also"]
        return {"input_prefix": "bad bad ", "options": options, "numops": operations}

    # regular: (1 + 1/3) / 2; ambiref: 0.
    regular = [item("good", 0), item("fair bad", 1), item("bad fair", 1), item("fair", 1)]
    write(tmp_path / "regular.jsonl", *regular[:1], regular[3])
    write(tmp_path / "ambiref.jsonl", regular[1], regular[2])
    result = evaluate("entity-tracking", tmp_path)
    assert group(result, "regular").value == pytest.approx((1 + 1 / 3) / 2)
    assert group(result, "regular_1_ops").value == pytest.approx(1 / 3)
    assert group(result, "ambiref_1_ops").value == 0
    assert result.average.value == pytest.approx((1 + 1 / 3) / 4)
    assert result.average.ties_to_first == pytest.approx(0.5)


def test_wug_is_a_rank_correlation_with_people(tmp_path: Path) -> None:
    # Differences of log-probabilities: +2, +1, 0, -2.
    texts = ["good\tbad", "good\tfair", "fair\talso", "bad\tgood"]
    for factor, ratios, expected in (
        (1.0, [0.9, 0.6, 0.5, 0.1], 1.0),
        (-1.0, [0.9, 0.6, 0.5, 0.1], -1.0),
        (1.0, [0.6, 0.9, 0.5, 0.1], 0.8),  # 1 - 6 Σ d² / (n (n² - 1)) with Σ d² = 2
    ):
        rows = [{"sentences": t, "ratio": r} for t, r in zip(texts, ratios, strict=True)]
        write(tmp_path / "wug.jsonl", *rows)
        result = evaluate("wug", tmp_path / "wug.jsonl", factor)
        assert result.average.value == pytest.approx(expected)
    [first, *_] = result.items
    assert first.preference == pytest.approx(1 / (1 + math.exp(-2)))
    nearly = Alternatives(phenomenon="", paradigm="", texts=("good", "fair"))
    [score] = unigram().score(["good"])
    scores = [score, replace(score, total=score.total + 1e-7)]
    assert nearly.result(scores).preference == 0.5  # rounding is no preference
    same = [{"sentences": "good\tgood", "ratio": ratio} for ratio in (0.1, 0.7)]
    indifferent = evaluate("wug", write(tmp_path / "wug.jsonl", *same))
    assert math.isnan(indifferent.average.value)
    assert indifferent.average.as_dict()["value"] is None


def region(number: int, content: str) -> dict[str, object]:
    return {"region_number": number, "content": content}


def syntaxgym(path: Path, *formulas: str, metric: str = "sum") -> Path:
    conditions = [
        {"condition_name": "x", "regions": [region(1, "good"), region(2, ""), region(3, " fair")]},
        {"condition_name": "y-z", "regions": [region(1, "bad good"), region(3, "also")]},
    ]
    suite = {
        "meta": {"name": "npi_test", "metric": metric},
        "predictions": [{"type": "formula", "formula": formula} for formula in formulas],
        "items": [{"item_number": 1, "conditions": conditions}],
    }
    return write(path, suite)


@pytest.mark.parametrize(
    ("formula", "value", "ties"),
    [
        ("(1;%x%) < (1;%y-z%)", 1, 0),  # 1 and 4 nats
        ("(3;%x%) < (3;%y-z%)", 0, 1),  # 2 nats each
        ("(3;%x%) = (3;%y-z%)", 1, 0),
        ("(2;%x%) < (1;%x%)", 1, 0),  # an empty region has 0
        # bits: whole sentences with their ends are 4 and 7 nats
        ("[(*;%y-z%) - (*;%x%) > 4.3] & [(*;%y-z%) - (*;%x%) < 4.4]", 1, 0),
    ],
)
def test_syntaxgym_sums_the_surprisal_of_regions(
    tmp_path: Path, formula: str, value: float, ties: int
) -> None:
    result = evaluate("syntaxgym", syntaxgym(tmp_path / "test.json", formula))
    assert (result.average.value, result.average.ties, result.average.n) == (value, ties, 1)
    assert [each.name for each in result.level("phenomenon")] == ["licensing"]
    assert result.average.ties_to_first is None


def test_differences_are_of_the_averages(blimp: Path) -> None:
    results = [evaluate("blimp", blimp, factor) for factor in (1.0, -1.0)]
    [difference] = suite_differences(results)
    assert difference.interval.value == pytest.approx(results[0].average.value - (0.25 + 0.5) / 2)
    assert difference.interval.low <= difference.interval.value <= difference.interval.high


def test_predictions_have_babylms_layout(blimp: Path, tmp_path: Path) -> None:
    result = evaluate("blimp", blimp)
    document = babylm_predictions(result)
    assert list(document) == ["one", "two"]
    assert document["one"]["predictions"][2:] == [
        {"id": "one_2", "pred": "good"},
        {"id": "one_3", "pred": "good"},
    ]
    assert document["two"]["predictions"][0] == {"id": "two_0", "pred": "fair"}
    [data] = find_suites("blimp", blimp)
    write_babylm_predictions(tmp_path / "out", data, [result])
    place = "unigram+1/main/zero_shot/causal/blimp/blimp_filtered/predictions.json"
    assert json.loads((tmp_path / "out" / place).read_text("utf-8")) == document


def test_a_collection_takes_the_folders_that_there_are(blimp: Path, tmp_path: Path) -> None:
    wug = tmp_path / "wug_adj_nominalization" / "wug.jsonl"
    write(wug, {"sentences": "good\tbad", "ratio": 0.5})
    assert [found.suite.name for found in find_suites("babylm", tmp_path)] == ["blimp", "wug"]
    [alone] = find_suites("wug", tmp_path)
    assert alone.path == wug.parent
    with pytest.raises(UserError, match="has none of the folders"):
        find_suites("babylm", wug.parent)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("blimp", {"sentence_good": "a"}, "line 1: expected a sentence under 'sentence_bad'"),
        ("wug", {"sentences": "a b", "ratio": 1}, "two sentences separated by a tab"),
        ("wug", {"sentences": "a\tb", "ratio": "x"}, "a number under 'ratio'"),
        ("entity-tracking", {"input_prefix": "a", "options": ["b"]}, "two or more texts"),
        ("entity-tracking", {"input_prefix": "a", "options": ["b", "c"]}, "whole number under"),
        ("syntaxgym", {"items": []}, "is not a suite of SyntaxGym"),
    ],
)
def test_invalid_data_are_refused(tmp_path: Path, name: str, row: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(name, write(tmp_path / "data.json", row))


def test_a_formula_must_mention_regions_there_are(tmp_path: Path) -> None:
    for formula, message in (("(9;%x%) > 0", "region 9 of 'x'"), ("(1;%x% > 0", "can't be read")):
        with pytest.raises(UserError, match=message):
            evaluate("syntaxgym", syntaxgym(tmp_path / "test.json", formula))
    file = syntaxgym(tmp_path / "test.json", "(1;%x%) > 0", metric="mean")
    with pytest.raises(UserError, match="the metric of regions must be sum, got 'mean'"):
        evaluate("syntaxgym", file)


def test_models_that_cannot_do_a_suite_are_listed(tmp_path: Path) -> None:
    [data] = find_suites("syntaxgym", syntaxgym(tmp_path / "test.json", "(1;%x%) > 0"))
    whole = unigram()
    whole.system.scorer_kind = "energy"
    results, [failure] = evaluate_models(data, {"tokens": unigram(), "whole": whole})
    assert [result.model for result in results] == ["tokens"]
    assert (failure.suite, failure.model) == ("syntaxgym", "whole")
    assert failure.reason.endswith("this model scores texts as a whole.")


def test_every_suite_has_a_title_and_a_source() -> None:
    suites = all_suites()
    assert {"blimp", "babylm", "syntaxgym", "entity-tracking", "wug"} <= suites.keys()
    assert all(suite.title and suite.source for suite in suites.values())
    with pytest.raises(UserError, match="there is no suite 'blump'; did you mean blimp"):
        find_suites("blump", Path())
    assert sum(isinstance(suite, Suite) for suite in suites.values()) == len(suites) - 1
