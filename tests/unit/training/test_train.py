from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.manifests import relist

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.training.config import TrainingConfig
from lmlab.training.progress import CLOCKS
from lmlab.training.run_folder import load_run
from lmlab.training.train import TrainingResult, train
from lmlab.training.validation import held_out_loss

Losses = Callable[[Path], list[dict[str, Any]]]
QUICK: dict[str, Any] = {"size": "tiny", "quiet": True}
SMALL_BATCHES = {"tokens_per_batch": "128", "log_every": "3"}


def lstm(corpus: Path | str, out: Path, **options: Any) -> TrainingResult:
    settings = {**SMALL_BATCHES, "dropout": "0.2", **options.pop("settings", {})}
    return train("lstm", data=corpus, out=out, settings=settings, **{**QUICK, **options})


def test_run_folder_contents(corpus: Path, tmp_path: Path, read_losses: Losses) -> None:
    result = lstm(corpus, tmp_path / "run", epochs=2, seed=3)
    names = {path.name for path in result.path.iterdir()}
    assert names >= {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "trainer",
        "metrics.jsonl",
        "environment.json",
    }
    config = json.loads((result.path / "config.json").read_text())
    assert config["format"] == 1
    assert (config["system"], config["size"], config["seed"]) == ("lstm", "tiny", 3)
    assert config["system_config"]["dropout"] == 0.2
    assert config["training"]["tokens_per_batch"] == 128
    assert config["corpus"]["spec"] == str(corpus)
    assert (result.reason, result.epochs, result.steps) == ("budget", 2, result.steps)
    validations = [
        line["loss"] for line in read_losses(result.path) if line["event"] == "validation"
    ]
    assert result.best == min(validations)
    assert result.loss == validations[-1]
    environment = json.loads((result.path / "environment.json").read_text())
    assert environment["threads"] == torch.get_num_threads()
    assert environment["instructions"] == torch.backends.cpu.get_cpu_capability()


def test_loaded_run_reproduces_validation_loss(corpus: Path, tmp_path: Path) -> None:
    result = lstm(corpus, tmp_path / "run", epochs=2)
    model = load_run(result.path)
    assert not model.system.training
    start, end = model.tokenizer.vocabulary.start, model.tokenizer.vocabulary.end
    assert start is not None
    assert end is not None
    lines = (corpus / "valid.txt").read_text().splitlines()
    batch = Batch.collate([[start, *model.tokenizer.encode(t), end] for t in lines], 0)
    with torch.no_grad():
        total = model.system.log_prob(batch).totals.sum().item()  # type: ignore[operator]
    # Every word and one end token per line; the best of both epochs was saved.
    assert batch.count == sum(len(line.split()) + 1 for line in lines)
    assert result.best == pytest.approx(-total / batch.count, rel=1e-6)
    assert (model.name, model.card.name, model.layout.kind) == ("run", "lstm", "sentences")


@pytest.mark.parametrize("layout", ["sentences", "contiguous"])
def test_resumed_run_equals_uninterrupted_run(
    corpus: Path, tmp_path: Path, read_losses: Losses, layout: str
) -> None:
    spec = str(corpus) if layout == "sentences" else f"contiguous:{corpus}"
    settings = {"stream_batch_size": "4", "bptt": "9"}
    whole = lstm(spec, tmp_path / "whole", epochs=4, settings=settings)
    lstm(spec, tmp_path / "run", epochs=2, settings=settings)
    torch.manual_seed(5)  # whatever happened in between
    resumed = train("lstm", data=spec, out=tmp_path / "run", epochs=4, resume=True, quiet=True)
    assert read_losses(resumed.path) == read_losses(whole.path)
    ours, theirs = (load_run(run.path).system.state_dict() for run in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = train("lstm", data=spec, out=tmp_path / "run", resume=True, quiet=True)
    assert again.reason == "nothing"


def test_same_seed_gives_the_same_losses(corpus: Path, tmp_path: Path, read_losses: Losses) -> None:
    runs = [
        lstm(corpus, tmp_path / name, steps=4, seed=seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, second, other = (read_losses(run.path) for run in runs)
    assert first == second
    assert first != other


def test_training_preserves_the_callers_rng_state(corpus: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    lstm(corpus, tmp_path / "run", steps=2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_existing_run_is_not_overwritten(corpus: Path, tmp_path: Path) -> None:
    lstm(corpus, tmp_path / "run", steps=1)
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match=r"already holds a run.*--resume"):
        lstm(corpus, tmp_path / "run", steps=2)
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_run_without_checkpoint_restarts_on_resume(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    whole = lstm(corpus, tmp_path / "whole", steps=3)
    lstm(corpus, tmp_path / "run", steps=3)
    for path in (tmp_path / "run" / "trainer").iterdir():
        path.rename(path.with_name(f".writing-{path.name}"))
    resumed = train("lstm", data=corpus, out=tmp_path / "run", resume=True, quiet=True)
    assert read_losses(resumed.path) == read_losses(whole.path)


def test_run_of_an_earlier_version_resumes_with_defaults(corpus: Path, tmp_path: Path) -> None:
    """Its config.json lacks the settings that have been added since."""
    lstm(corpus, tmp_path / "run", steps=2)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    for name in ("hidden_state_layers", "replacing_rate"):
        del config["training"][name]
    path.write_text(json.dumps(config))
    relist(tmp_path / "run")
    resumed = train("lstm", data=corpus, out=tmp_path / "run", resume=True, steps=3, quiet=True)
    assert resumed.steps == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 4}, "was started with seed=0, got 4"),
        ({"settings": {"width": "32"}}, "was started with width=16, got 32"),
        ({"settings": {"learning_rate": "1"}}, "learning_rate=0.002"),
        ({"size": "small"}, "size=tiny"),
        ({"tokenizer": "char"}, "tokenizer word, got char"),
    ],
)
def test_resume_with_changed_options_is_rejected(
    corpus: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    lstm(corpus, tmp_path / "run", steps=1)
    with pytest.raises(UserError, match=message):
        train("lstm", data=corpus, out=tmp_path / "run", resume=True, quiet=True, **options)


def test_resume_with_other_data_or_system_is_rejected(corpus: Path, tmp_path: Path) -> None:
    lstm(corpus, tmp_path / "run", steps=1)
    with pytest.raises(UserError, match=r"the system of this run is lstm, got gru"):
        train("gru", data=corpus, out=tmp_path / "run", resume=True, quiet=True)
    with (corpus / "train.txt").open("a") as file:
        file.write("w1 w2\n")
    with pytest.raises(UserError, match="was started on other text"):
        train("lstm", data=corpus, out=tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "smal"}, "no size of lstm called 'smal'; did you mean 'small'"),
        ({"recipe": "note"}, "no recipe called 'note'; did you mean 'notes'"),
        ({"objective": "masked"}, "can't be trained with the objective 'masked'.*next-token"),
        ({"base": "x"}, "there is no run at x"),
        ({"documents": "x"}, "--documents does not apply to lstm"),
        ({"knowledge": "x"}, "--knowledge does not apply to lstm"),
        ({"settings": {"epochs": "none"}}, "a training needs a budget"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"steps": -1}, "steps must be at least 1"),
        ({"minutes": 0.0}, "minutes must be above 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"settings": {"widht": "3"}}, "no setting called 'widht'; did you mean 'width'"),
        ({"settings": {"learning_rat": "3"}}, "did you mean 'learning_rate'"),
        ({"settings": {"width": "x"}}, "width must be a whole number"),
        ({"settings": {"select_by": "bleu"}}, "only to translation models on a parallel corpus"),
    ],
)
def test_invalid_options_are_reported_and_leave_no_folder(
    corpus: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train("lstm", data=corpus, out=tmp_path / "run", quiet=True, **options)
    assert not (tmp_path / "run").exists()


def test_uncreatable_folder_is_reported(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file is in its way"):
        lstm(corpus, tmp_path / "file", steps=1)
    with pytest.raises(UserError, match="a file is in its way"):
        lstm(corpus, tmp_path / "file" / "run", steps=1)


def test_patience_and_plateau_need_a_validation_split(tmp_path: Path, corpus: Path) -> None:
    (corpus / "valid.txt").unlink()
    for settings in ({"patience": "2"}, {"schedule": "plateau"}):
        with pytest.raises(UserError, match="needs a validation split"):
            lstm(corpus, tmp_path / "run", steps=1, settings=settings)
    # The folder is not a run yet, so the corrected command works.
    result = lstm(corpus, tmp_path / "run", steps=1)
    assert (result.steps, result.best) == (1, None)


def test_data_split_depends_on_data_seed_only(corpus: Path, tmp_path: Path) -> None:
    def fingerprint(name: str, **options: Any) -> str:
        run = lstm(corpus / "train.txt", tmp_path / name, steps=1, **options).path
        return str(json.loads((run / "config.json").read_text())["corpus"]["fingerprint"])

    first, second = fingerprint("a", seed=1), fingerprint("b", seed=2)
    other = fingerprint("c", seed=1, data_seed=5)
    assert first == second != other
    options: dict[str, Any] = {"data": corpus / "train.txt", "quiet": True, "steps": 2}
    assert train("lstm", out=tmp_path / "c", resume=True, **options).steps == 2


def test_damaged_newest_checkpoint_falls_back_to_the_previous(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    whole = lstm(corpus, tmp_path / "whole", steps=9)
    lstm(corpus, tmp_path / "run", steps=6, settings={"checkpoint_steps": "4"})
    newest = tmp_path / "run" / "trainer" / "step-6" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    resumed = train("lstm", data=corpus, out=tmp_path / "run", resume=True, steps=9, quiet=True)
    assert read_losses(resumed.path) == read_losses(whole.path)


@pytest.mark.parametrize("system", ["lstm", "ngram", "independent"])
def test_resume_restores_damaged_final_weights(corpus: Path, tmp_path: Path, system: str) -> None:
    path = train(system, data=corpus, out=tmp_path / "run", epochs=2, **QUICK).path
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-20])
    with pytest.raises(UserError, match=r"is damaged.*--resume"):
        load_run(path)
    train(system, data=corpus, out=path, resume=True, quiet=True)
    assert (path / "model.safetensors").read_bytes() == whole


def test_lost_best_weights_are_replaced_at_next_validation(corpus: Path, tmp_path: Path) -> None:
    # A learning rate so high that the loss oscillates, and the last epoch is not the best.
    path = lstm(corpus, tmp_path / "run", epochs=8, settings={"learning_rate": "2"}).path
    (path / "model.safetensors").unlink()
    result = train("lstm", data=corpus, out=path, resume=True, epochs=9, quiet=True)
    lines = (json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines())
    *earlier, last = (line["loss"] for line in lines if line["event"] == "validation")
    assert min(earlier) < last == result.best


def test_settings_override_recipes(corpus: Path, tmp_path: Path) -> None:
    result = lstm(
        corpus, tmp_path / "run", recipe="notes", steps=1, settings={"eps": "0.5", "grad_clip": "2"}
    )
    training = json.loads((result.path / "config.json").read_text())["training"]
    assert training["optimizer"] == "rmsprop"
    assert (training["eps"], training["grad_clip"]) == (0.5, 2.0)
    assert (training["steps"], training["epochs"]) == (1, None)


def test_budget_in_settings_replaces_the_default(corpus: Path, tmp_path: Path) -> None:
    assert lstm(corpus, tmp_path / "run", settings={"steps": "2"}).steps == 2


@pytest.mark.parametrize("name", ["lstm", "ngram", "independent", "skipgram", "glove"])
def test_cpu_clock_counts_the_process_and_not_the_wait(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A wall clock that jumps an hour at every look changes neither budget nor reported seconds."""
    jumps = itertools.count(0, 3600.0)
    monkeypatch.setitem(CLOCKS, "wall", lambda: next(jumps))
    started = time.process_time()
    settings = {"clock": "cpu", "epochs": "2", "minutes": "60"}
    result = train(
        name, data=corpus, out=tmp_path / "run", size="tiny", settings=settings, quiet=True
    )
    assert result.epochs == (1 if name == "ngram" else 2)
    assert 0 < result.seconds <= time.process_time() - started
    assert load_run(result.path).config.training.clock == "cpu"


def test_loaded_weights_stay_tied(corpus: Path, tmp_path: Path) -> None:
    result = lstm(corpus, tmp_path / "run", steps=2, settings={"tied": "true"})
    system = load_run(result.path).system
    assert result.parameters == system.parameter_count
    names = [n for n, p in system.named_parameters() if p.shape[0] == system.vocabulary.size]
    assert len([name for name in names if "weight" in name]) == 1


def test_skipped_rows_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = b"x y\ty\nx\t\n" * 3 + b"x\ty \xff\n"
    (tmp_path / "pairs.tsv").write_bytes(rows)
    train(
        "seq2seq", data=tmp_path / "pairs.tsv", out=tmp_path / "run", size="tiny", steps=1,
        errors="replace",
    )  # fmt: skip
    message = "reading the training split: 3 rows with an empty text or side skipped, 1 bad bytes"
    assert message in capfd.readouterr().err


def test_overlong_source_is_reported_before_training(tmp_path: Path) -> None:
    (tmp_path / "train.a").write_text("x y\n" + "x " * 90 + "\n", encoding="utf-8")
    (tmp_path / "train.b").write_text("y\ny y\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a sequence must have at most .* got 92"):
        train("transformer", data=f"parallel:a-b:{tmp_path}", out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.fixture
def held_out_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each held-out batch that a training evaluates, context included."""
    lengths: list[int] = []

    def note(system: Any, source: Any, *rest: Any, **kwargs: Any) -> Any:
        lengths.extend(batch.tokens.shape[1] for batch in source.epoch(0))
        return held_out_loss(system, source, *rest, **kwargs)

    monkeypatch.setattr("lmlab.training.loop.held_out_loss", note)
    return lengths


@pytest.mark.parametrize(
    ("name", "longest"),
    [("gpt", 9 + 1), ("bert", 9 + 1), ("gru-vae", 9 + 1), ("ebm", 9 + 1), ("lstm", 150 + 1)],
)
def test_held_out_segments_have_the_bptt_length(
    tmp_path: Path, held_out_lengths: list[int], name: str, longest: int
) -> None:
    """With a carried state all 150 tokens are one segment; else segments have the BPTT length."""
    for split, lines in {"train": 40, "valid": 30}.items():
        (tmp_path / f"{split}.txt").write_text("a b c d\n" * lines)  # five tokens with the end
    settings = {"stream_batch_size": "4", "bptt": "9"}
    spec = f"contiguous:{tmp_path}"
    result = train(name, data=spec, out=tmp_path / "run", steps=1, settings=settings, **QUICK)
    assert result.loss is not None
    assert max(held_out_lengths) == longest
    assert sum(length - 1 for length in held_out_lengths) == 150  # each predicted once


def test_gpt_default_length_trains_on_contiguous_text(
    corpus: Path, tmp_path: Path, held_out_lengths: list[int]
) -> None:
    """Its window of 64 is shorter than the segments used with a carried state."""
    train("gpt", data=f"contiguous:{corpus}", out=tmp_path / "run", steps=2, **QUICK)
    assert max(held_out_lengths) == TrainingConfig().bptt + 1
