"""Texts longer than the window: cut, slid over, pooled."""

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
    """A tiny BERT on letters, which is not even trained: only its tokens matter."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "letters.txt").write_text(f"{LETTERS} .\n" * 20, encoding="utf-8")
    made = lmlab.train(
        "bert", data=folder / "letters.txt", out=folder / "run", size="tiny", steps=1, quiet=True
    )
    return lmlab.load(made.path)


def reading(
    model: TrainedModel, way: str, task: Task, longest: int, **settings: object
) -> InputPipeline:
    found = make_pipeline(
        way,
        judge=relevance_supervision_of(way, None, [{}]),
        task=task,
        tokenizer=model.tokenizer,
        system=model.system,
        settings=LongTextConfig(**settings),  # type: ignore[arg-type]
    )
    return replace(found, max_length=longest)


def shown(model: TrainedModel, read: EncodedExample) -> str:
    return " ".join(model.tokenizer.token(token) for token in read.tokens)


@pytest.mark.parametrize(
    ("way", "text", "labels"),
    [
        ("head", "<s> j </s> a b c d e f </s>", [ANSWER_TRUNCATED_LABEL, ANSWER_TRUNCATED_LABEL]),
        ("tail", "<s> j </s> e f g h i j </s>", [5, 6]),
        ("head-tail", "<s> j </s> a </s> g h i j </s>", [5, 6]),
    ],
)
def test_a_text_is_cut(way: str, text: str, labels: list[int], model: TrainedModel):
    """Ten tokens in all: six of the text, or a quarter and the rest with a symbol between."""
    row = {"text": LETTERS, "question": "j", "answer": "g h"}
    made = reading(model, way, SpanExtraction(), 10)
    # An answer that was cut away teaches nothing, but it is asked for.
    prepared = made.prepare([row], training=False)
    assert shown(model, prepared.encoded[0]) == text
    assert prepared.encoded[0].labels == labels
    assert prepared.truncated == 1
    assert made.prepare([row], training=True).dropped == int(way == "head")


@pytest.mark.parametrize("way", ["head", "windows", "memrecall"])
def test_questions_that_are_cut_are_counted(way: str, model: TrainedModel):
    """Five of ten tokens may be asked with; six are one too many."""
    made = reading(model, way, SpanExtraction(), 10)
    five, six = {"question": "a b c d e"}, {"question": "a b c d e f"}
    assert made.count_truncated_questions([five, six, six]) == 2
    for row in (five, six):
        query = made.query(row)
        assert query is not None and len(query.tokens) == 5
    # As the task itself reads, the longer text is cut, which is counted as such.
    plain = InputPipeline(
        task=made.task, tokenizer=made.tokenizer, vocabulary=made.vocabulary, max_length=10
    )
    assert plain.count_truncated_questions([six]) == 0


def test_the_command_line_tells_how_many_questions_were_cut(model: TrainedModel, tmp_path: Path):
    """A hundred words in a window of 64: 4 of the 20 rows, and the one that is predicted."""
    rows = [
        {"text": LETTERS, "question": "j " * (100 if number % 5 == 0 else 3), "answer": "g h"}
        for number in range(20)
    ]
    file, out = tmp_path / "rows.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = ["--task", "span", "--data", str(file), "--out", str(out), "--long", "head"]
    done = CliRunner().invoke(app, ["finetune", str(model.path), *asked, "--steps", "1"])
    assert done.exit_code == 0, done.output
    assert "4 questions were truncated to half of the model's window" in done.stderr
    assert json.loads((out / "evaluation.json").read_text())["truncated_questions"] == 4
    file.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["predict", str(out), str(file), "--json"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("1 question was truncated to half of the model's window")


def test_a_text_that_fits_is_not_cut(model: TrainedModel):
    row = {"text": "a b c", "label": "x"}
    for way in ("head", "tail", "head-tail", "windows"):
        [read] = (
            reading(model, way, Classification(["x"]), 10).prepare([row], training=True).encoded
        )
        assert shown(model, read) == "<s> a b c </s>"


def test_a_lost_answer_costs_a_guess(model: TrainedModel):
    """log 10 for each end of the span, over ten places."""
    made = reading(model, "head", SpanExtraction(), 10)
    system = made.build(model.system, frozen=False)
    row = {"text": LETTERS, "question": "j", "answer": "g h"}
    [read] = made.prepare([row], training=False).encoded
    loss, _ = system.loss(collate_examples([read], model.system.vocabulary.pad))
    assert loss.mean.item() == pytest.approx(2.302585, abs=1e-5)


def test_windows_slide_and_overlap(model: TrainedModel):
    """Six tokens of the text fit, the next window begins three later, the last ends with it."""
    row = {"text": LETTERS, "question": "j", "answer": "g h"}
    prepared = reading(model, "windows", SpanExtraction(), 10).prepare([row], training=True)
    assert [shown(model, read) for read in prepared.encoded] == [
        "<s> j </s> a b c d e f </s>",
        "<s> j </s> d e f g h i </s>",
        "<s> j </s> e f g h i j </s>",
    ]
    # The answer is places 6 and 7 of the second window; the first points at <s>.
    assert [read.labels for read in prepared.encoded] == [[0, 0], [6, 7], [5, 6]]
    assert prepared.row_of_input == [0, 0, 0]
    assert spans_read(prepared.encoded) == ((0, len(LETTERS)),)


def test_the_best_window_answers():
    """The second window's span is 3 + 2 above its <s>, the first's 4 + 4 only 8 - 5 = 3 above."""
    read = [
        EncodedExample(tokens=[1, 5, 6], labels=[], spans=[(0, 0), (0, 1), (2, 3)]),
        EncodedExample(tokens=[1, 7, 8], labels=[], spans=[(0, 0), (4, 5), (6, 7)]),
    ]
    first = torch.tensor([[2.0, 3.0], [4.0, 0.0], [0.0, 4.0]])
    second = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 2.0]])
    assert best_span_of_windows("a b c d", read, [first, second]) == "d"


def test_a_word_is_told_by_the_window_that_has_most_around_it():
    """Of a b c d, the windows <s> a b c </s> and <s> b c d </s>: b is deeper in the first, at place
    2 against 1, and c in the second."""
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
    found = tags_of_windows(list("abcd"), windows, [says_x, says_y], ["B-x", "B-y"])
    assert found == ["B-x", "B-x", "B-y", "B-y"]


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_is_of_the_windows_own_vectors(pool: str, model: TrainedModel):
    made = reading(model, "pooling", Classification(["x", "y"]), 10, pool=pool)
    system = made.build(model.system, frozen=False).eval()
    assert isinstance(system, WindowPoolingClassifier)
    rows = [{"text": LETTERS, "label": "x"}, {"text": "a b", "label": "y"}]
    prepared = made.prepare(rows, training=True)
    # Eight tokens of the text fit, and the last window reaches back to be full.
    assert shown(model, prepared.encoded[0]) == "<s> a b c d e f g h </s> <s> c d e f g h i j </s>"
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


def test_what_can_not_be_read_long_is_told(model: TrainedModel):
    with pytest.raises(UserError, match="did you mean 'memrecall'"):
        reading(model, "memrecal", SpanExtraction(), 10)
    # A word of everyday gets what each way is; pooling looks a little like it, and is not meant.
    with pytest.raises(UserError, match=r"'sliding'; choose .*, windows \(all, in sliding .*\),"):
        reading(model, "sliding", SpanExtraction(), 10)
    assert all(kind.description for kind in LONG_TEXT_STRATEGIES.values())
    with pytest.raises(UserError, match="does not apply to the task pair"):
        reading(model, "head", PairClassification(), 10)
    with pytest.raises(UserError, match="try --long windows"):
        reading(model, "pooling", SpanExtraction(), 10).build(model.system, frozen=False)
    with pytest.raises(UserError, match="--judge applies to --long memrecall only"):
        relevance_supervision_of("head", "labels", [])
    with pytest.raises(UserError, match="did you mean 'labels'"):
        relevance_supervision_of("memrecall", "label", [])
    assert relevance_supervision_of("memrecall", None, [{"relevant": []}]) == "labels"
    assert relevance_supervision_of("memrecall", None, [{"relevant": []}, {}]) == "interventions"
    assert encoder_width(model.system, per_token=True, needed_by="a test") == 12
