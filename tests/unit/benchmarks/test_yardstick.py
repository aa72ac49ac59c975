"""The yardstick: every system has a row or a reason, figures by hand, resuming, the page."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmlab.core.registry import catalogue, find_system

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def systems(load) -> ModuleType:
    return load("yardstick_systems")


def test_every_system_has_a_row_on_each_corpus_or_a_reason(load, systems) -> None:
    measured = [card.name for card in systems.measured_systems()]
    reasons = systems.systems_left_out()
    own = {name for name, card in catalogue().items() if not card.package}
    assert {*measured, *reasons} == own and len(measured) + len(reasons) == len(own)
    assert all(reasons.values()) and {"glove", "vit", "rag-token", "fae"} <= set(reasons)
    experiments = load("yardstick").experiments()
    names = [item.name for item in experiments]
    assert names == [f"yardstick.{c}.{s}" for c in ("multi30k", "wordnet") for s in measured]
    assert {need for item in experiments for need in item.needs} < set(names)
    by_name = {item.name: item for item in experiments}
    assert by_name["yardstick.multi30k.residual-ebm"].needs == ("yardstick.multi30k.lstm",)
    assert by_name["yardstick.wordnet.gpt"].needs == ("yardstick.multi30k.gpt",)
    assert by_name["yardstick.wordnet.ngram"].needs == ()


def test_reasons_follow_from_the_card(systems) -> None:
    card = find_system("lstm")
    assert systems.reason_left_out(card) is None
    changed = {
        "gives no score": {"protocols": ("Vectors",)},
        "entities and facts": {"needs": ("knowledge",)},
        "documents to retrieve from": {"needs": ("base", "documents")},
        "no words": {"conditional": True, "exempt": {"source": "it has no words"}},
    }
    for part, fields in changed.items():
        assert part in systems.reason_left_out(replace(card, **fields))
    assert systems.reason_left_out(replace(card, conditional=True)) is None


@pytest.mark.parametrize("name", ["ngram", "independent", "bert", "linear-autoencoder"])
def test_systems_train_on_bytes(load, tmp_path: Path, name: str) -> None:
    """One for each way of fitting and of giving a length; `--check` tries them all."""
    checks = load("yardstick_check")
    corpus = checks.tiny_corpus(tmp_path)
    outcome = checks.check_system(find_system(name), corpus, tmp_path, "tiny")
    assert outcome.startswith(find_system(name).kind) and "bits per byte" in outcome


def test_trials_search_the_learning_rate_and_the_orders(systems) -> None:
    def rates(name: str, *losses: float | None) -> list[dict[str, Any]]:
        """Settings of all trials that have these losses one after the other."""
        trials: list[Any] = []
        for loss in losses:
            settings = systems.next_trial(find_system(name), trials)
            trials.append(systems.Trial(settings=settings, loss=loss))
        assert systems.next_trial(find_system(name), trials) is None
        return [trial.settings for trial in trials]

    assert rates("lstm", 2.0, 1.5, 1.6)[2] == {"learning_rate": pytest.approx(0.018)}
    assert rates("lstm", 1.5, 2.0, 1.6)[2] == {"learning_rate": pytest.approx(0.002 / 3)}
    assert rates("lstm", 1.5, None, 1.6)[2] == {"learning_rate": pytest.approx(0.002 / 3)}
    assert rates("gpt", 2.0, 1.5, 1.6)[2] == {"learning_rate": 0.006, "width": 128}
    assert [one["order"] for one in rates("ngram", *[1.0] * 11)] == list(range(2, 13))
    assert rates("independent") == []
    trials = [systems.Trial(settings={"x": n}, loss=loss) for n, loss in enumerate((3, None, 2))]
    assert systems.chosen_settings(trials) == {"x": 2} and systems.chosen_settings([]) == {}


# The corpora ------------------------------------------------------------------------------------


def write_captions(folder: Path) -> Path:
    """Multi30k's files with 12 lines each, the last of 121 bytes and the one before of 120."""
    lines = [
        f"a {adjective} dog number {n} runs ." for n in range(5) for adjective in ("red", "big")
    ]
    lines += ["é" * 60, "x" * 121]
    for name in ("train.en", "val.en", "test_2016_flickr.en"):
        path = folder / "multi30k" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_corpora_hold_short_lines_and_are_written_once(load, tmp_path: Path) -> None:
    corpora = load("yardstick_corpora")
    corpus = corpora.prepare("multi30k", write_captions(tmp_path), tmp_path / "out")
    assert corpus.lines == {"train": 11, "validation": 11, "test": 11}
    assert corpus.dropped == {"train": 1, "validation": 1, "test": 1}
    assert "é" * 60 in corpus.texts("train") and "x" * 121 not in corpus.texts("train")
    # By hand: 5 × 2 lines "a red dog number 0 runs ." of 25 bytes, and 60 letters of two.
    assert corpus.bytes["test"] == 10 * 25 + 120
    again = corpora.prepare("multi30k", tmp_path / "nowhere", tmp_path / "out")
    assert again == corpus and corpora.evenly_spaced(range(10), 4) == [0, 2, 5, 7]


def test_pairs_have_as_many_bytes_and_one_change(load) -> None:
    corpora = load("yardstick_corpora")
    train = ["the cat sat", "the dog sat", "a cat ran", "a dog ran"]
    pairs = corpora.minimal_pairs(train, train, count=3, seed=0)
    assert pairs == corpora.minimal_pairs(train, train, count=3, seed=0) and len(pairs) == 6
    for pair in pairs:
        good, bad = (pair[f"sentence_{which}"].split(" ") for which in ("good", "bad"))
        changed = [index for index, word in enumerate(good) if word != bad[index]]
        if pair["phenomenon"] == "word order":
            assert Counter(good) == Counter(bad) and changed[1] - changed[0] == 1
        else:
            [index] = changed
            assert len(good[index]) == len(bad[index]) and bad[index] in " ".join(train).split()
    assert corpora.minimal_pairs(train, ["cat cat", "cat"], count=2, seed=0)[0]["phenomenon"] == (
        "word choice"
    )
    # `the` occurs nine times, `dog` once: too rare a replacement, unlike `cat`.
    words = corpora.WordsByLength(["the the the the the the the the the dog", "cat cat"])
    assert words.similar("the") == [] and words.similar("dog") == ["cat"]


# Measurement ------------------------------------------------------------------------------------


def test_figures_by_hand(load) -> None:
    training = load("yardstick_training")
    line = {"seconds": 9.0, "loss": math.log(2), "count": 30}
    # 30 predictions of one bit each over 20 bytes.
    assert training.validation_curve([line, line | {"loss": math.nan}], 20) == [[9.0, 1.5]]
    steps = [
        {"event": "train", "count": 100, "tokens_per_second": 50.0, "epochs": 0.5, "epoch": 0},
        {"event": "validation", "epoch": 0},
        {"event": "train", "count": 60, "tokens_per_second": 20.0, "epochs": 1.0, "epoch": 1},
    ]
    # 1,000 bytes in 2 + 3 seconds, whatever share of them is predicted.
    assert training.training_speed(steps, 1000) == pytest.approx(200)
    assert training.training_speed([{"event": "train", "epoch": 2, "seconds": 4.0}], 10) == 5
    # Ratio 2: residuals 0 and ±2 of three texts of 4 bytes: √(8 · 3/2) / 12.
    assert training.standard_error([8, 10, 6], [4, 4, 4]) == pytest.approx(math.sqrt(12) / 12)


class FakeProcesses:
    """Results instead of processes; it is asked to stop at the job with number `stop_at`."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.jobs: list[str] = []
        self.stop_at, self.stopped = stop_at, False

    def run(self, command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        job = json.loads(Path(command[-1]).read_text(encoding="utf-8"))
        self.jobs.append(Path(command[-1]).name.removesuffix(".job.json"))
        assert environment["OMP_NUM_THREADS"] == "1"
        cost = {"cpu_seconds": 2.0, "peak_mebibytes": 300 + len(self.jobs)}
        if len(self.jobs) == self.stop_at:
            self.stopped = True
            return 0, json.dumps({"interrupted": True} | cost), ""
        if job["kind"] == "score":
            return 0, json.dumps({"kind": "exact", "bits_per_byte": 1.5} | cost), ""
        folder = Path(job["out"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "environment.json").write_text(
            json.dumps({"python": "3", "instructions": "none", "packages": {}, "machine": "mine"})
        )
        loss = abs(job["settings"].get("learning_rate", 0) - 0.006)
        return 0, json.dumps({"loss": loss, "steps": 600, "curve": []} | cost), ""


def measure(load, folder: Path, corpus: str, processes: FakeProcesses) -> dict[str, Any]:
    rows, checks, experiment = map(load, ("yardstick_rows", "yardstick_check", "experiment"))
    tiny = checks.tiny_corpus(folder) if not (folder / "corpus").exists() else None
    prepared = tiny or checks.PreparedCorpus(
        folder=folder / "corpus", **json.loads((folder / "corpus" / "corpus.json").read_text())
    )
    row = rows.RowMeasurement(
        card=find_system("lstm"),
        corpus=replace(prepared, name=corpus),
        folders=experiment.Folders(runs=folder / "runs", records=folder / "records"),
        processes=processes,
    )
    result: dict[str, Any] = row.measure()
    return result


def test_a_row_that_was_stopped_continues_where_it_was(load, tmp_path: Path) -> None:
    rows = load("yardstick_rows")
    first, second = FakeProcesses(stop_at=2), FakeProcesses()
    with pytest.raises(rows.StoppedError):
        measure(load, tmp_path, "multi30k", first)
    assert not (tmp_path / "records").exists()
    record = measure(load, tmp_path, "multi30k", second)
    assert first.jobs == ["trial-1", "trial-2"]
    assert second.jobs == ["trial-2", "trial-3", "run", "run-score"]
    assert record["recipe"] == {"learning_rate": 0.006}
    # 600 steps in a trial of half a minute: 3,600 in three minutes, validated twelve times.
    job = json.loads((tmp_path / "runs/yardstick/multi30k.lstm/run.job.json").read_text())
    assert job["settings"]["evaluate_every"] == 300 and job["budget"] == {"minutes": 3.0}
    assert job["settings"]["clock"] == "cpu" and job["tokenizer"] == "byte"
    assert job["settings"]["dropout"] == 0 and "attention_dropout" not in job["settings"]
    assert record["test"]["bits_per_byte"] == 1.5 and record["seed"] == 0
    assert "machine" not in record["environment"] and len(record["commits"][0]) >= 7
    trial = json.loads((tmp_path / "runs/yardstick/multi30k.lstm/trial-2.result.json").read_text())
    assert (trial["cpu_seconds"], trial["peak_mebibytes"]) == (4.0, 302)
    assert len(record["trials"]) == 3 and "--measure lstm --corpus multi30k" in record["command"]


def test_results_of_other_settings_are_not_used(load, tmp_path: Path, monkeypatch) -> None:
    measure(load, tmp_path, "multi30k", FakeProcesses())
    monkeypatch.setattr(load("yardstick_rows"), "MINUTES", 6.0)
    again = FakeProcesses()
    assert measure(load, tmp_path, "multi30k", again)["minutes"] == 6.0
    assert again.jobs == ["run", "run-score"]  # the trials are the same


def test_the_second_corpus_takes_the_recipe_of_the_first(load, tmp_path: Path) -> None:
    measure(load, tmp_path, "multi30k", FakeProcesses())
    processes = FakeProcesses()
    record = measure(load, tmp_path, "wordnet", processes)
    assert processes.jobs == ["run", "run-score"]
    assert record["recipe"] == {"learning_rate": 0.006} and record["trials"] == []


# The page ---------------------------------------------------------------------------------------


def row_of(page: ModuleType, name: str, **record: Any) -> Any:
    return page.Row(card=find_system(name), record=record or None)


def test_rows_are_ranked_by_what_compares(load) -> None:
    page = load("yardstick_page")
    rows = [
        row_of(page, name, test={"kind": "exact", "bits_per_byte": bits, "pairs": {"all": pairs}})
        for name, bits, pairs in (("lstm", 2.0, {"accuracy": 0.9}), ("gpt", 1.5, {"accuracy": 0.6}))
    ]
    rows.append(row_of(page, "gru"))
    assert [row.card.name for row in page.ranked(rows, "exact")] == ["gpt", "lstm", "gru"]
    assert [row.card.name for row in page.ranked(rows, "pseudo")] == ["lstm", "gpt", "gru"]
    assert page.section_of(rows[2]) == "exact"
    assert page.section_of(row_of(page, "bert")) == "pseudo"
    assert page.section_of(row_of(page, "gru-vae")) == "exact"  # a bound, marked as one
    assert page.cells(rows[2], None)[3] == "*not there yet*"
    failed = row_of(page, "gru", failed="not finite", training={})
    assert page.cells(failed, None)[3] == "*failed: not finite*"


def test_seconds_to_the_best_ngram(load) -> None:
    page = load("yardstick_page")
    curve = [(15.0, 2.0), (30.0, 1.5), (45.0, 1.6)]
    assert page.seconds_to(curve, 1.5) == 30.0 and page.seconds_to(curve, 1.4) is None
    test = {"kind": "exact", "bits_per_byte": 1.5}
    row = row_of(page, "lstm", training={"curve": curve}, test=test)
    assert page.shown_seconds(row, 1.55) == "30.0" and page.shown_seconds(row, 1.0) == "not in 180"
    pseudo = row_of(page, "bert", training={"curve": curve}, test=test | {"kind": "pseudo"})
    assert page.shown_seconds(pseudo, 1.55) == ""
    ngram = row_of(page, "ngram", training={"curve": [[0.4, 1.25]]}, test=test)
    assert page.best_ngram([row, ngram]) == 1.25 and page.best_ngram([row]) is None


def test_page_is_up_to_date(load) -> None:
    """If not: python benchmarks/yardstick.py --write docs/yardstick.md"""
    page, experiment = load("yardstick_page"), load("experiment")
    written = (ROOT / "docs" / "yardstick.md").read_text(encoding="utf-8")
    assert written == page.page(experiment.Folders(runs=Path("runs")))


def test_labels_are_spread_as_little_as_needed(load, tmp_path: Path) -> None:
    figure = load("yardstick_figure")
    assert figure.spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert figure.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert figure.spread([0.0, 0.02, 0.6], 0.1) == pytest.approx([0.0, 0.1, 0.6])
    assert figure.spread([0.97, 0.99], 0.1) == pytest.approx([0.9, 1.0])
    assert figure.spread([], 0.1) == []


def test_picture_names_every_curve(load, tmp_path: Path) -> None:
    picture, experiment = load("yardstick_figure"), load("experiment")
    folders = experiment.Folders(runs=tmp_path, records=tmp_path)
    (tmp_path / "yardstick").mkdir()
    corpus = {"bytes": {"validation": 90}, "lines": {"validation": 10}}
    trials = [{"settings": {"order": 3}, "loss": 1.8}]
    for name, curve, made in (
        ("ngram", [[0.5, 1.3]], trials),
        ("lstm", [[60, 2.0], [180, 1.5]], []),
    ):
        record = {"corpus": corpus, "trials": made, "training": {"curve": curve}}
        record["test"] = {"kind": "exact", "bits_per_byte": curve[-1][1]}
        (tmp_path / "yardstick" / f"multi30k.{name}.json").write_text(json.dumps(record))
    picture.write_picture(tmp_path / "picture.svg", folders)
    svg = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert "lstm 1.50" in svg and "recurrent" in svg and "glosses" not in svg
    # By hand: 1.8 nats for each of 100 predictions over 90 bytes are 2.89 bits per byte.
    assert load("yardstick_page").order_bits({"corpus": corpus, "trials": trials}) == pytest.approx(
        {3: 1.8 * 100 / 90 / math.log(2)}
    )
