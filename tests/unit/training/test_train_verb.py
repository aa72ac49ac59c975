from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.training.config import TrainingConfig
from lmlab.training.run_folder import load_run
from lmlab.training.train import TrainingResult, train
from lmlab.training.validation import held_out_loss

Losses = Callable[[Path], list[dict[str, Any]]]
QUICK: dict[str, Any] = {"size": "tiny", "quiet": True}
SMALL_BATCHES = {"tokens_per_batch": "128", "log_every": "3"}


def lstm(corpus: Path | str, out: Path, **words: Any) -> TrainingResult:
    settings = {**SMALL_BATCHES, "dropout": "0.2", **words.pop("settings", {})}
    return train("lstm", data=corpus, out=out, settings=settings, **{**QUICK, **words})


def test_a_run_folder_holds_all_that_is_needed_to_load_and_repeat_it(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
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


def test_a_loaded_run_scores_as_it_was_validated(corpus: Path, tmp_path: Path) -> None:
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
    # Every word and one end a line; the best of both epochs is what was saved.
    assert batch.count == sum(len(line.split()) + 1 for line in lines)
    assert result.best == pytest.approx(-total / batch.count, rel=1e-6)
    assert (model.name, model.card.name, model.layout.kind) == ("run", "lstm", "sentences")


@pytest.mark.parametrize("layout", ["sentences", "contiguous"])
def test_resumed_after_fewer_epochs_it_equals_an_uninterrupted_run(
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


def test_one_seed_one_result(corpus: Path, tmp_path: Path, read_losses: Losses) -> None:
    runs = [
        lstm(corpus, tmp_path / name, steps=4, seed=seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, second, other = (read_losses(run.path) for run in runs)
    assert first == second
    assert first != other


def test_the_caller_keeps_the_state_of_torchs_generator(corpus: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    lstm(corpus, tmp_path / "run", steps=2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_is_overwritten_without_being_asked(corpus: Path, tmp_path: Path) -> None:
    lstm(corpus, tmp_path / "run", steps=1)
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match=r"already holds a run.*--resume"):
        lstm(corpus, tmp_path / "run", steps=2)
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    whole = lstm(corpus, tmp_path / "whole", steps=3)
    lstm(corpus, tmp_path / "run", steps=3)
    for path in (tmp_path / "run" / "trainer").iterdir():
        path.rename(path.with_name(f".writing-{path.name}"))
    resumed = train("lstm", data=corpus, out=tmp_path / "run", resume=True, quiet=True)
    assert read_losses(resumed.path) == read_losses(whole.path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"seed": 4}, "was started with seed=0, got 4"),
        ({"settings": {"width": "32"}}, "was started with width=16, got 32"),
        ({"settings": {"learning_rate": "1"}}, "learning_rate=0.002"),
        ({"size": "small"}, "size=tiny"),
        ({"tokenizer": "char"}, "tokeniser word, got char"),
    ],
)
def test_resuming_another_training_is_refused(
    corpus: Path, tmp_path: Path, words: dict[str, Any], sentence: str
) -> None:
    lstm(corpus, tmp_path / "run", steps=1)
    with pytest.raises(UserError, match=sentence):
        train("lstm", data=corpus, out=tmp_path / "run", resume=True, quiet=True, **words)


def test_resuming_on_other_text_or_with_another_system_is_refused(
    corpus: Path, tmp_path: Path
) -> None:
    lstm(corpus, tmp_path / "run", steps=1)
    with pytest.raises(UserError, match=r"the system of this run is lstm, got gru"):
        train("gru", data=corpus, out=tmp_path / "run", resume=True, quiet=True)
    with (corpus / "train.txt").open("a") as file:
        file.write("w1 w2\n")
    with pytest.raises(UserError, match="was started on other text"):
        train("lstm", data=corpus, out=tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"size": "smal"}, "no size of lstm called 'smal'; did you mean 'small'"),
        ({"recipe": "note"}, "no recipe called 'note'; did you mean 'notes'"),
        ({"objective": "masked"}, "can't be trained with the objective 'masked'.*next-token"),
        ({"base": "x"}, "--base does not apply to lstm"),
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
def test_wrong_options_are_told_and_leave_no_folder(
    corpus: Path, tmp_path: Path, words: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train("lstm", data=corpus, out=tmp_path / "run", quiet=True, **words)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_told(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file is in its way"):
        lstm(corpus, tmp_path / "file", steps=1)
    with pytest.raises(UserError, match="a file is in its way"):
        lstm(corpus, tmp_path / "file" / "run", steps=1)


def test_what_needs_validation_is_refused_without_it(tmp_path: Path, corpus: Path) -> None:
    (corpus / "valid.txt").unlink()
    for settings in ({"patience": "2"}, {"schedule": "plateau"}):
        with pytest.raises(UserError, match="needs a validation split"):
            lstm(corpus, tmp_path / "run", steps=1, settings=settings)
    # The folder is not a run yet, so the corrected command works.
    result = lstm(corpus, tmp_path / "run", steps=1)
    assert (result.steps, result.best) == (1, None)


def test_a_single_file_is_divided_alike_for_all_seeds_and_when_resumed(
    corpus: Path, tmp_path: Path
) -> None:
    def fingerprint(name: str, **words: Any) -> str:
        run = lstm(corpus / "train.txt", tmp_path / name, steps=1, **words).path
        return str(json.loads((run / "config.json").read_text())["corpus"]["fingerprint"])

    first, second = fingerprint("a", seed=1), fingerprint("b", seed=2)
    other = fingerprint("c", seed=1, data_seed=5)
    assert first == second != other
    words: dict[str, Any] = {"data": corpus / "train.txt", "quiet": True, "steps": 2}
    assert train("lstm", out=tmp_path / "c", resume=True, **words).steps == 2


def test_a_damaged_newest_checkpoint_falls_back_and_ends_at_the_same_weights(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    whole = lstm(corpus, tmp_path / "whole", steps=9)
    lstm(corpus, tmp_path / "run", steps=6, settings={"checkpoint_steps": "4"})
    newest = tmp_path / "run" / "trainer" / "step-6" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    resumed = train("lstm", data=corpus, out=tmp_path / "run", resume=True, steps=9, quiet=True)
    assert read_losses(resumed.path) == read_losses(whole.path)


@pytest.mark.parametrize("system", ["lstm", "ngram", "independent"])
def test_damaged_weights_of_a_finished_run_are_mended_by_resuming(
    corpus: Path, tmp_path: Path, system: str
) -> None:
    path = train(system, data=corpus, out=tmp_path / "run", epochs=2, **QUICK).path
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-20])
    with pytest.raises(UserError, match=r"is damaged.*--resume"):
        load_run(path)
    train(system, data=corpus, out=path, resume=True, quiet=True)
    assert (path / "model.safetensors").read_bytes() == whole


def test_lost_weights_are_replaced_by_the_next_validated_though_the_lost_were_better(
    corpus: Path, tmp_path: Path
) -> None:
    # A rate so high that the loss jumps about, and the last epoch is not the best.
    path = lstm(corpus, tmp_path / "run", epochs=8, settings={"learning_rate": "2"}).path
    (path / "model.safetensors").unlink()
    result = train("lstm", data=corpus, out=path, resume=True, epochs=9, quiet=True)
    lines = (json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines())
    *earlier, last = (line["loss"] for line in lines if line["event"] == "validation")
    assert min(earlier) < last == result.best


def test_recipes_and_settings_override_in_turn(corpus: Path, tmp_path: Path) -> None:
    result = lstm(
        corpus, tmp_path / "run", recipe="notes", steps=1, settings={"eps": "0.5", "grad_clip": "2"}
    )
    training = json.loads((result.path / "config.json").read_text())["training"]
    assert training["optimizer"] == "rmsprop"
    assert (training["eps"], training["grad_clip"]) == (0.5, 2.0)
    assert (training["steps"], training["epochs"]) == (1, None)


def test_a_budget_by_set_takes_the_place_of_the_default(corpus: Path, tmp_path: Path) -> None:
    assert lstm(corpus, tmp_path / "run", settings={"steps": "2"}).steps == 2


def test_tied_weights_stay_tied_when_loaded(corpus: Path, tmp_path: Path) -> None:
    result = lstm(corpus, tmp_path / "run", steps=2, settings={"tied": "true"})
    system = load_run(result.path).system
    assert result.parameters == system.parameter_count
    names = [n for n, p in system.named_parameters() if p.shape[0] == system.vocabulary.size]
    assert len([name for name in names if "weight" in name]) == 1


def test_what_reading_skipped_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = b"x y\ty\nx\t\n" * 3 + b"x\ty \xff\n"
    (tmp_path / "pairs.tsv").write_bytes(rows)
    train(
        "seq2seq", data=tmp_path / "pairs.tsv", out=tmp_path / "run", size="tiny", steps=1,
        errors="replace",
    )  # fmt: skip
    said = "reading the training split: 3 rows with an empty text or side skipped, 1 bad bytes"
    assert said in capfd.readouterr().err


def test_a_source_that_is_too_long_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "train.a").write_text("x y\n" + "x " * 90 + "\n", encoding="utf-8")
    (tmp_path / "train.b").write_text("y\ny y\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a sequence must have at most .* got 92"):
        train("transformer", data=f"parallel:a-b:{tmp_path}", out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.fixture
def held_out_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each held-out batch that a training looks at, context included."""
    found: list[int] = []

    def note(system: Any, source: Any, *rest: Any, **words: Any) -> Any:
        found.extend(batch.tokens.shape[1] for batch in source.epoch(0))
        return held_out_loss(system, source, *rest, **words)

    monkeypatch.setattr("lmlab.training.loop.held_out_loss", note)
    return found


@pytest.mark.parametrize(
    ("name", "longest"),
    [("gpt", 9 + 1), ("bert", 9 + 1), ("gru-vae", 9 + 1), ("ebm", 9 + 1), ("lstm", 150 + 1)],
)
def test_held_out_text_is_read_in_stretches_as_long_as_were_taught(
    tmp_path: Path, held_out_lengths: list[int], name: str, longest: int
) -> None:
    """A state that is carried goes through all 150 tokens at once; else it is the span."""
    for split, lines in {"train": 40, "valid": 30}.items():
        (tmp_path / f"{split}.txt").write_text("a b c d\n" * lines)  # five tokens with the end
    settings = {"stream_batch_size": "4", "bptt": "9"}
    spec = f"contiguous:{tmp_path}"
    result = train(name, data=spec, out=tmp_path / "run", steps=1, settings=settings, **QUICK)
    assert result.loss is not None
    assert max(held_out_lengths) == longest
    assert sum(length - 1 for length in held_out_lengths) == 150  # each predicted once


def test_a_transformer_of_its_default_length_trains_on_contiguous_text(
    corpus: Path, tmp_path: Path, held_out_lengths: list[int]
) -> None:
    """Its window of 64 is less than the stretches that are read with a state."""
    train("gpt", data=f"contiguous:{corpus}", out=tmp_path / "run", steps=2, **QUICK)
    assert max(held_out_lengths) == TrainingConfig().bptt + 1
