"""`lmlab mix`: weights, the saved run, what is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import lmlab as library
from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder


@pytest.fixture(scope="module")
def mixed(runs, tmp_path_factory: pytest.TempPathFactory):
    """Three runs, mixed on the validation split of their corpus."""
    out = tmp_path_factory.mktemp("mixed") / "mix"
    return library.mix([runs["ngram"], runs["lstm"], runs["lstm-1"]], out=out)


def test_figures_before_and_after(mixed, runs) -> None:
    validation, test = mixed.figures
    assert (validation.split, validation.tuned, test.split, test.tuned) == (
        *("validation", True),
        *("test", False),
    )
    assert mixed.fit is not None and mixed.fit.gap <= 1e-7
    best = min(validation.runs)
    assert validation.mixture <= best + mixed.fit.gap, "tuned on it, so it is not worse"
    rows = {row.name: row for row in library.compare([runs["ngram"], mixed.path]).rows}
    assert test.runs[0] == pytest.approx(rows["ngram"].nats_per_token, abs=1e-6)
    assert test.mixture == pytest.approx(rows["mix"].nats_per_token, abs=1e-5)
    assert "tuned on grammar (validation): report figures on other text" in mixed.notes[0]


def test_the_run_needs_no_other_folder(mixed, runs, tmp_path: Path) -> None:
    copies = {}
    for name in ("ngram", "lstm"):
        copies[name] = shutil.copytree(runs[name], tmp_path / name)
    result = library.mix(list(copies.values()), out=tmp_path / "mix", weights=(0.25, 0.75))
    assert result.fit is None and result.figures == () and result.weights == (0.25, 0.75)
    [text] = ["the dog sees a cat"]
    alone = [library.load(copy).score([text])[0].per_token for copy in copies.values()]
    for copy in copies.values():
        shutil.rmtree(copy)
    model = library.load(tmp_path / "mix")
    for scored, ngram, lstm in zip(model.score([text])[0].per_token, *alone, strict=True):
        expected = math.log(0.25 * math.exp(ngram.log_prob) + 0.75 * math.exp(lstm.log_prob))
        assert scored.log_prob == pytest.approx(expected, abs=1e-5)
    recorded = json.loads((tmp_path / "mix" / "config.json").read_text())["components"]
    assert [part["path"] for part in recorded] == [str(copy) for copy in copies.values()]


def test_the_run_is_used_like_any_other(lmlab, mixed, runs, tmp_path: Path) -> None:
    run = mixed.path
    assert lmlab("sample", run, "-n", "1", "--seed", "1").code == 0
    assert lmlab("sample", run, "-n", "1", "--method", "beam").code == 0
    show = lmlab("runs", "show", run).out
    assert "component" in show and str(runs["ngram"]) in show
    listed = json.loads(lmlab("runs", run, "--json").out)["runs"][0]
    assert listed["best"] == pytest.approx(mixed.figures[0].mixture)
    assert (listed["split"], listed["kind"]) == ("validation", "exact")
    # A mixture is a component too.
    again = lmlab("mix", run, runs["ngram"], "--weights", "0.5,0.5", "--out", tmp_path / "twice")
    assert again.code == 0 and library.load(tmp_path / "twice").score(["a cat"])[0].total < 0


def test_terminal_output_and_a_file_of_its_own(lmlab, runs, tmp_path: Path) -> None:
    text = tmp_path / "held.txt"
    text.write_text("the dog sees a cat\nmary sleeps\n" * 3, encoding="utf-8")
    result = lmlab("mix", runs["ngram"], runs["lstm"], text, "--out", tmp_path / "new" / "mix")
    assert result.code == 0, result.err
    # Six, and three tokens with their ends, three times each: the whole file.
    assert "nats/token, all" in result.out and f"tuned on {text} (all)" in result.out
    tuning = json.loads((tmp_path / "new" / "mix" / "config.json").read_text())["tuning"]
    assert tuning["tokens"] == 27 and tuning["split"] == "all"


def test_same_inputs_give_the_same_run(mixed, runs, tmp_path: Path) -> None:
    order = [runs["ngram"], runs["lstm"], runs["lstm-1"]]
    again = library.mix(order, out=tmp_path / "again")
    assert again.weights == mixed.weights and again.figures == mixed.figures
    weights = [(run / "model.safetensors").read_bytes() for run in (mixed.path, again.path)]
    assert weights[0] == weights[1]


def refused(out: Path, *runs: object, **options: object) -> str:
    """The error of a mixture that is refused; nothing is written."""
    with pytest.raises(UserError) as error:
        library.mix(list(runs), out=out, **options)  # type: ignore[arg-type]
    assert not out.exists()
    return str(error.value)


def test_refused_arguments(runs, tmp_path: Path) -> None:
    ngram, lstm, out = runs["ngram"], runs["lstm"], tmp_path / "out"
    assert "two runs or more" in refused(out, ngram)
    assert "given twice" in refused(out, ngram, ngram)
    assert "sum to 1, got 0.9" in refused(out, ngram, lstm, weights=(0.5, 0.4))
    assert "as many as the models, 2" in refused(out, ngram, lstm, weights=(1.0,))
    assert "there is no split" not in refused(out, ngram, lstm, data=tmp_path / "missing.txt")
    with lock_folder(lstm):
        assert "being written" in refused(out, ngram, lstm)
    out.mkdir()
    with pytest.raises(UserError, match="already exists"):
        library.mix([ngram, lstm], out=out)


def test_refused_models(runs, tmp_path: Path) -> None:
    out, trained = tmp_path / "out", tmp_path / "runs"

    def train(name: str, system: str, **options: object) -> Path:
        given = {"data": "grammar", "size": "tiny", "steps": 1, "quiet": True, **options}
        library.train(system, out=trained / name, **given)  # type: ignore[arg-type]
        return trained / name

    letters = train("letters", "ngram", tokenizer="char", steps=None)
    message = refused(out, runs["ngram"], letters)
    assert "different tokenizers" in message and "tokenizer.json" in message
    assert "no next-token distribution" in refused(out, runs["ngram"], train("bert", "bert"))
    assert "no next-token distribution" in refused(out, runs["ngram"], train("ebm", "ebm"))
    module = torch.nn.Embedding(66, 66)
    wrapped = library.wrap(module, library.load(runs["ngram"]).tokenizer, name="mine")
    assert "mine is no run" in refused(out, runs["ngram"], wrapped)


def test_a_mixture_is_not_trained(lmlab, tmp_path: Path) -> None:
    result = lmlab("train", "mix", "--data", "grammar", "--out", tmp_path / "run")
    assert result.code == 2 and "use lmlab mix RUN RUN" in result.err
    assert not (tmp_path / "run").exists()


def test_a_mixture_is_not_fine_tuned(lmlab, mixed, tmp_path: Path) -> None:
    rows = [{"source": text, "target": "a cat"} for text in ("the dog sleeps", "a cat") * 12]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    given = ("finetune", mixed.path, "--task", "generate", "--data", data)
    result = lmlab(*given, "--out", tmp_path / "tuned")
    assert result.code == 2 and "no parameter to train by gradient" in result.err


def test_wrong_weights_on_the_command_line(lmlab, runs, tmp_path: Path) -> None:
    given = ("mix", runs["ngram"], runs["lstm"], "--out", tmp_path / "run", "--weights")
    assert "must be numbers such as 0.3,0.7" in lmlab(*given, "a,b").err
    assert "sum to 1" in lmlab(*given, "2,1").err
