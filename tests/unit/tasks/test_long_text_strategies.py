"""Texts longer than the window: truncation, sliding windows, pooling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lmlab
from lmlab.cli.main import app
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.models.finetuned import (
    ANSWER_TRUNCATED_LABEL,
    WindowPoolingClassifier,
    encoder_width,
    split_into_windows,
)
from lmlab.tasks.classification import Classification, PairClassification
from lmlab.tasks.input_pipeline import InputPipeline, LongTextConfig, spans_read
from lmlab.tasks.long_context.long_text_strategies import (
    LONG_TEXT_STRATEGIES,
    make_pipeline,
    relevance_supervision_of,
)
from lmlab.tasks.span_extraction import SpanExtraction, best_span_of_windows
from lmlab.tasks.tagging import tags_of_windows
from lmlab.tasks.task import EncodedExample, Task, collate_examples
from lmlab.training.run_folder import TrainedModel

LETTERS = "a b c d e f g h i j"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A tiny BERT on letters, hardly trained: only its tokens matter."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "letters.txt").write_text(f"{LETTERS} .\n" * 20, encoding="utf-8")
    made = lmlab.train(
        "bert", data=folder / "letters.txt", out=folder / "run", size="tiny", steps=1, quiet=True
    )
    return lmlab.load(made.path)


def build_pipeline(
    model: TrainedModel, strategy: str, task: Task, longest: int, **settings: object
) -> InputPipeline:
    pipeline = make_pipeline(
        strategy,
        judge=relevance_supervision_of(strategy, None, [{}]),
        task=task,
        tokenizer=model.tokenizer,
        system=model.system,
        settings=LongTextConfig(**settings),  # type: ignore[arg-type]
    )
    return replace(pipeline, max_length=longest)


def decode_tokens(model: TrainedModel, encoded: EncodedExample) -> str:
    return " ".join(model.tokenizer.token(token) for token in encoded.tokens)


@pytest.mark.parametrize(
    ("strategy", "text", "labels"),
    [
        ("head", "<s> j </s> a b c d e f </s>", [ANSWER_TRUNCATED_LABEL, ANSWER_TRUNCATED_LABEL]),
        ("tail", "<s> j </s> e f g h i j </s>", [5, 6]),
        ("head-tail", "<s> j </s> a </s> g h i j </s>", [5, 6]),
    ],
)
def test_truncation_strategies(strategy: str, text: str, labels: list[int], model: TrainedModel):
    """Ten tokens in all: six of the text, or its head and tail with a special token between."""
    row = {"text": LETTERS, "question": "j", "answer": "g h"}
    pipeline = build_pipeline(model, strategy, SpanExtraction(), 10)
    # A truncated answer is dropped in training, but still counts in evaluation.
    prepared = pipeline.prepare([row], training=False)
    assert decode_tokens(model, prepared.encoded[0]) == text
    assert prepared.encoded[0].labels == labels
    assert prepared.truncated == 1
    assert pipeline.prepare([row], training=True).dropped == int(strategy == "head")


@pytest.mark.parametrize("strategy", ["head", "windows", "memrecall"])
def test_truncated_questions_are_counted(strategy: str, model: TrainedModel):
    """A question may have five of ten tokens; six are one too many."""
    pipeline = build_pipeline(model, strategy, SpanExtraction(), 10)
    five, six = {"question": "a b c d e"}, {"question": "a b c d e f"}
    assert pipeline.count_truncated_questions([five, six, six]) == 2
    for row in (five, six):
        query = pipeline.query(row)
        assert query is not None and len(query.tokens) == 5
    # In the task's own encoding the longer text is truncated, which is counted as such.
    plain = InputPipeline(
        task=pipeline.task,
        tokenizer=pipeline.tokenizer,
        vocabulary=pipeline.vocabulary,
        max_length=10,
    )
    assert plain.count_truncated_questions([six]) == 0


def test_command_line_reports_truncated_questions(model: TrainedModel, tmp_path: Path):
    """A hundred words in a window of 64: 4 of the 20 rows, and the one that is predicted."""
    rows = [
        {"text": LETTERS, "question": "j " * (100 if number % 5 == 0 else 3), "answer": "g h"}
        for number in range(20)
    ]
    file, out = tmp_path / "rows.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["--task", "span", "--data", str(file), "--out", str(out), "--long", "head"]
    completed = CliRunner().invoke(app, ["finetune", str(model.path), *options, "--steps", "1"])
    assert completed.exit_code == 0, completed.output
    assert "4 questions were truncated to half of the model's window" in completed.stderr
    assert json.loads((out / "evaluation.json").read_text())["truncated_questions"] == 4
    file.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    completed = CliRunner().invoke(app, ["predict", str(out), str(file), "--json"])
    assert completed.exit_code == 0, completed.output
    assert completed.stderr.startswith("1 question was truncated to half of the model's window")


def test_text_within_the_window_is_not_truncated(model: TrainedModel):
    row = {"text": "a b c", "label": "x"}
    for strategy in ("head", "tail", "head-tail", "windows"):
        [encoded] = (
            build_pipeline(model, strategy, Classification(["x"]), 10)
            .prepare([row], training=True)
            .encoded
        )
        assert decode_tokens(model, encoded) == "<s> a b c </s>"


def test_truncated_answer_has_uniform_loss(model: TrainedModel):
    """log 10 for each end of the span, over ten positions."""
    pipeline = build_pipeline(model, "head", SpanExtraction(), 10)
    system = pipeline.build(model.system, frozen=False)
    row = {"text": LETTERS, "question": "j", "answer": "g h"}
    [encoded] = pipeline.prepare([row], training=False).encoded
    loss, _ = system.loss(collate_examples([encoded], model.system.vocabulary.pad))
    assert loss.mean.item() == pytest.approx(2.302585, abs=1e-5)


def test_sliding_windows_overlap(model: TrainedModel):
    """Six tokens fit, the next window starts three later, the last one ends with the text."""
    row = {"text": LETTERS, "question": "j", "answer": "g h"}
    prepared = build_pipeline(model, "windows", SpanExtraction(), 10).prepare([row], training=True)
    assert [decode_tokens(model, encoded) for encoded in prepared.encoded] == [
        "<s> j </s> a b c d e f </s>",
        "<s> j </s> d e f g h i </s>",
        "<s> j </s> e f g h i j </s>",
    ]
    # The answer is at positions 6 and 7 of the second window; the first points at <s>.
    assert [encoded.labels for encoded in prepared.encoded] == [[0, 0], [6, 7], [5, 6]]
    assert prepared.row_of_input == [0, 0, 0]
    assert spans_read(prepared.encoded) == ((0, len(LETTERS)),)


def test_best_span_is_selected_across_windows():
    """The second window's span is 3 + 2 above its <s>, the first's 4 + 4 only 8 - 5 = 3 above."""
    windows = [
        EncodedExample(tokens=[1, 5, 6], labels=[], spans=[(0, 0), (0, 1), (2, 3)]),
        EncodedExample(tokens=[1, 7, 8], labels=[], spans=[(0, 0), (4, 5), (6, 7)]),
    ]
    first = torch.tensor([[2.0, 3.0], [4.0, 0.0], [0.0, 4.0]])
    second = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 2.0]])
    assert best_span_of_windows("a b c d", windows, [first, second]) == "d"


def test_tag_comes_from_the_window_with_most_context():
    """Of a b c d, the windows <s> a b c </s> and <s> b c d </s>: b has more context in the
    first, at position 2 against 1, and c in the second."""
    windows = [
        EncodedExample(
            tokens=[2, 5, 6, 7, 3], labels=[], spans=[(0, 0), (0, 1), (2, 3), (4, 5), (0, 0)]
        ),
        EncodedExample(
            tokens=[2, 6, 7, 8, 3], labels=[], spans=[(0, 0), (2, 3), (4, 5), (6, 7), (0, 0)]
        ),
    ]
    says_x, says_y = (torch.tensor([[0.0, 0.0]] * 5) for _ in range(2))
    says_x[:, 0], says_y[:, 1] = 1.0, 1.0
    tags = tags_of_windows(list("abcd"), windows, [says_x, says_y], ["B-x", "B-y"])
    assert tags == ["B-x", "B-x", "B-y", "B-y"]


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_combines_window_encodings(pool: str, model: TrainedModel):
    pipeline = build_pipeline(model, "pooling", Classification(["x", "y"]), 10, pool=pool)
    system = pipeline.build(model.system, frozen=False).eval()
    assert isinstance(system, WindowPoolingClassifier)
    rows = [{"text": LETTERS, "label": "x"}, {"text": "a b", "label": "y"}]
    prepared = pipeline.prepare(rows, training=True)
    # Eight tokens of the text fit, and the last window starts earlier to be full.
    assert (
        decode_tokens(model, prepared.encoded[0])
        == "<s> a b c d e f g h </s> <s> c d e f g h i j </s>"
    )
    pad = model.system.vocabulary.pad
    batch = collate_examples(prepared.encoded, pad)
    windows, owners = split_into_windows(batch, model.system.vocabulary.bos, pad)
    assert owners.tolist() == [0, 0, 1] and windows.lengths.tolist() == [10, 10, 4]
    one_by_one = [
        model.system.encode(Batch.collate([windows.tokens[i, :n].tolist()], pad))[0]
        for i, n in enumerate(windows.lengths.tolist())
    ]
    both = torch.stack(one_by_one[:2])
    expected = both.mean(0) if pool == "mean" else both.amax(0)
    scores = system.scores(batch)
    torch.testing.assert_close(scores[0], system.head(expected))
    torch.testing.assert_close(scores[1], system.head(one_by_one[2]))


def test_invalid_long_text_options_are_reported(model: TrainedModel):
    with pytest.raises(UserError, match="did you mean 'memrecall'"):
        build_pipeline(model, "memrecal", SpanExtraction(), 10)
    # An unknown strategy lists all with descriptions; pooling is spelled alike, but not meant.
    with pytest.raises(UserError, match=r"'sliding'; choose .*, windows \(all, in sliding .*\),"):
        build_pipeline(model, "sliding", SpanExtraction(), 10)
    assert all(kind.description for kind in LONG_TEXT_STRATEGIES.values())
    with pytest.raises(UserError, match="does not apply to the task pair"):
        build_pipeline(model, "head", PairClassification(), 10)
    with pytest.raises(UserError, match="try --long windows"):
        build_pipeline(model, "pooling", SpanExtraction(), 10).build(model.system, frozen=False)
    with pytest.raises(UserError, match="--judge applies to --long memrecall only"):
        relevance_supervision_of("head", "labels", [])
    with pytest.raises(UserError, match="did you mean 'labels'"):
        relevance_supervision_of("memrecall", "label", [])
    assert relevance_supervision_of("memrecall", None, [{"relevant": []}]) == "labels"
    assert relevance_supervision_of("memrecall", None, [{"relevant": []}, {}]) == "interventions"
    assert encoder_width(model.system, per_token=True, needed_by="a test") == 12
