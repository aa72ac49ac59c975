"""MemRecall (CogLTX) in fine-tuning: learned relevance, exact resume, retained blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import lmlab
from lmlab.cli.main import app
from lmlab.core.errors import UserError
from lmlab.models.cogltx import CogLTX
from lmlab.tasks.finetune import finetune
from lmlab.tasks.loading import load_task
from lmlab.tasks.long_context.memrecall_pipeline import EncodedMemRecallSplit, MemRecallPipeline
from lmlab.tasks.tagging import Tagging

SETTINGS = {"learning_rate": 0.01, "tokens_per_batch": 512, "warmup_steps": 5}


def sample_rows(count: int, task: str, seed: int = 0) -> list[dict]:
    """Fourteen sentences `x y .` of which one begins with f; the letter after f is the target.

    tag: the letter after f is tagged in place, which its block alone determines.
    """
    generator, rows = np.random.default_rng(seed), []
    for _ in range(count):
        pairs = generator.integers(4, size=(14, 2))
        sentences = [["abcd"[a], "abcd"[b], "."] for a, b in pairs]
        position = int(generator.integers(14))
        sentences[position][0] = "f"
        words = [word for sentence in sentences for word in sentence]
        low = position * 6
        row: dict = {"relevant": [[low, low + 5]]}
        if task == "tag":
            tags = ["B-x" if i == 3 * position + 1 else "O" for i in range(len(words))]
            rows.append({"words": words, "tags": tags, **row})
            continue
        row["text"] = " ".join(words)
        if task == "span":
            row |= {"question": "e", "answer": sentences[position][1], "start": low + 2}
        else:
            row |= {"label": sentences[position][1]}
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CogLTX whose window holds six of the fourteen sentences."""
    folder = tmp_path_factory.mktemp("cogltx")
    texts = [row["text"] for row in sample_rows(60, "span")]
    lines = [" ".join(text.split()[:18]) for text in texts] + ["e f"]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    made = lmlab.train(
        "cogltx",
        data=folder / "text.txt",
        out=folder / "run",
        size="tiny",
        settings={"length": 32, "block_size": 3, "retained_blocks": "2,2", "width": 16},
        steps=10,
        quiet=True,
    )
    return made.path


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", ["span", "classify"])
def test_relevance_scorer_learns_relevant_blocks(task: str, base: Path, tmp_path: Path):
    """Chance is 2 of 14; a cogltx run uses MemRecall by default, with its own settings."""
    rows = write_rows(tmp_path / "rows.jsonl", sample_rows(240, task))
    result = finetune(
        base, task=task, data=rows, out=tmp_path / "out", steps=60, settings=SETTINGS, quiet=True
    )
    assert result.metrics["relevant_read"] > 0.9
    model = load_task(result.path)
    assert isinstance(model.reading, MemRecallPipeline)
    assert model.reading.settings.block_size == 3 and model.reading.settings.retained_blocks == (
        2,
        2,
    )
    assert model.reading.relevance_supervision == "labels"
    predicted_rows = [json.loads(line) for line in (result.path / "predictions.jsonl").open()]
    again = model.predict_with_details(predicted_rows)
    for row, each in zip(predicted_rows, again, strict=True):
        assert each.answer == row["answered"]
        assert [k.start for k in each.kept or ()] == [k["start"] for k in row["kept"]]
        for kept in row["kept"]:
            assert row["text"][kept["start"] : kept["end"]] == kept["text"]
            assert 0 < kept["score"] < 1


def test_interventions_update_relevance_marks(base: Path, tmp_path: Path):
    """No labels and no question: marks start by chance, one in fourteen right."""
    rows = sample_rows(160, "classify")
    for row in rows:
        row["gold"] = row.pop("relevant")[0][0] // 6
    result = finetune(
        base,
        task="classify",
        data=write_rows(tmp_path / "rows.jsonl", rows),
        out=tmp_path / "out",
        epochs=2,
        settings={**SETTINGS, "first_relevant": 2},
        quiet=True,
    )
    assert "relevant_read" not in result.metrics
    # From the last checkpoint: the selected weights may be those of the first epoch.
    [last] = (result.path / "trainer").glob("step-*")
    marks = load_file(last / "model.safetensors")["marks"]
    assert marks.shape == (144, 14)
    assert set(marks.unique().tolist()) == {0.0, 1.0}
    # After the first epoch marks were changed: initially each text had two.
    assert not torch.equal(marks.sum(1), torch.full((144,), 2.0))
    assert load_task(result.path).reading.relevance_supervision == "interventions"


def test_resumed_run_equals_uninterrupted_run(base: Path, tmp_path: Path):
    """Marks and relevance scorer are part of the checkpoint; weights are equal to the bit."""
    rows = [{k: v for k, v in row.items() if k != "relevant"} for row in sample_rows(60, "span")]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    settings = {**SETTINGS, "schedule": "constant", "intervene_after": 0, "evaluate_every": 2}
    options = {"task": "span", "data": data, "settings": settings, "quiet": True}
    finetune(base, out=tmp_path / "whole", steps=6, **options)
    finetune(base, out=tmp_path / "parts", steps=3, **options)
    finetune(base, out=tmp_path / "parts", steps=6, resume=True, **options)
    whole, parts = (
        load_file(next((tmp_path / name / "trainer").glob("step-*6")) / "model.safetensors")
        for name in ("whole", "parts")
    )
    assert whole.keys() == parts.keys() and "marks" in whole
    for name, value in whole.items():
        assert torch.equal(value, parts[name]), name


def test_each_block_of_a_tagging_text_is_a_query(base: Path):
    model = lmlab.load(base)
    task = Tagging(["B-x", "O"])
    pipeline = MemRecallPipeline(
        task=task,
        tokenizer=model.tokenizer,
        vocabulary=model.system.vocabulary,
        max_length=16,
        settings=_settings(block_size=3),
        relevance_supervision="labels",
    )
    row = {"words": list("ab.cf."), "tags": [*"OOOOO", "B-x"], "relevant": [[0, 5]]}
    prepared = pipeline.prepare([row], training=True)
    first, second = prepared.examples
    assert first.query_span == (0, 5) and first.block_spans == ((6, 11),)
    assert (first.relevant, second.relevant) == ((False,), (True,))
    # Only the words of the query have labels, whatever else is in the memory.
    system = pipeline.build(model.system, frozen=False)
    assert isinstance(system, CogLTX)
    [recalled] = pipeline.recall(system, [second])
    encoded = pipeline.read(row, recalled.memory)
    shown = " ".join(model.tokenizer.token(token) for token in encoded.tokens)
    assert shown == "<s> c f . </s> a b . </s>"
    assert encoded.labels == [-100, 1, 1, 0, -100, -100, -100, -100, -100]
    [answered] = pipeline.answer(system, prepared)
    assert len(answered.answer) == 6
    assert [kept.query_span for kept in answered.kept or ()] == [(0, 5), (6, 11)]


def _settings(**given: object):
    from lmlab.tasks.input_pipeline import LongTextConfig

    return LongTextConfig(**given)  # type: ignore[arg-type]


def test_predict_shows_retained_blocks(base: Path, tmp_path: Path):
    rows = sample_rows(40, "span")
    data = write_rows(tmp_path / "rows.jsonl", rows)
    result = finetune(
        base, task="span", data=data, out=tmp_path / "out", steps=1, settings=SETTINGS, quiet=True
    )
    questions = write_rows(tmp_path / "asked.jsonl", [{"text": rows[0]["text"], "question": "e"}])
    completed = CliRunner().invoke(app, ["predict", str(result.path), str(questions), "--json"])
    [answer] = json.loads(completed.stdout)
    assert len(answer["kept"]) == 2
    plain = (
        CliRunner().invoke(app, ["predict", str(result.path), str(questions)]).stdout.splitlines()
    )
    assert plain[0] == answer["answered"]
    assert [line.split("  ")[-1] for line in plain[1:]] == [k["text"] for k in answer["kept"]]


def test_invalid_rows_and_settings_are_reported(base: Path, tmp_path: Path):
    rows = sample_rows(20, "span")
    del rows[0]["relevant"]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=r"row \d+ of the training split has no relevant"):
        finetune(
            base, task="span", data=data, out=tmp_path / "a", judge="labels", seed=1, quiet=True
        )
    with pytest.raises(UserError, match="a block of 30 tokens does not fit"):
        finetune(
            base,
            task="span",
            data=data,
            out=tmp_path / "b",
            settings={"block_size": 30},
            quiet=True,
        )
    pipeline = build_pipeline(base)
    with pytest.raises(UserError, match="row 1 has an empty text"):
        pipeline.prepare([{"text": "", "question": "e"}], training=False)
    # A question longer than the window is truncated to half of it.
    long = {"text": "a b .", "question": "e " * 100}
    prepared = pipeline.prepare([long], training=False)
    assert isinstance(prepared, EncodedMemRecallSplit)
    assert len(prepared.examples[0].text.query.tokens) == pipeline.max_length // 2


def build_pipeline(base: Path) -> MemRecallPipeline:
    from lmlab.tasks.span_extraction import SpanExtraction

    model = lmlab.load(base)
    return MemRecallPipeline(
        task=SpanExtraction(),
        tokenizer=model.tokenizer,
        vocabulary=model.system.vocabulary,
        max_length=30,
        settings=_settings(block_size=3),
    )
