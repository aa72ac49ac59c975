"""Fine-tuning: from rows to a run that predicts; errors are reported in a sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lmlab
from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.data.lines import ReadingReport
from lmlab.data.splitting import split_of_index
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.finetuned import FinetunedGenerator
from lmlab.tasks.classification import Classification, PairClassification
from lmlab.tasks.few_shot import predict_few_shot
from lmlab.tasks.finetune import finetune
from lmlab.tasks.generation import Generation, generate_texts
from lmlab.tasks.loading import load_task
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.tagging import Tagging, first_tokens
from lmlab.tasks.task import encode_texts
from lmlab.tasks.task_rows import read_splits
from lmlab.training.loop import FitResult
from lmlab.training.progress import Progress
from lmlab.training.system_building import build_tiny

LETTERS = "abcdef"


def sample_words(count: int, seed: int = 0) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    return [
        [LETTERS[i] for i in generator.integers(6, size=generator.integers(2, 8))]
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny runs: causal LM, masked LM, encoder-decoder and LSTM."""
    folder = tmp_path_factory.mktemp("runs")
    text = "\n".join(" ".join(words) for words in sample_words(300)) + "\n"
    (folder / "letters.txt").write_text(text, encoding="utf-8")
    made = {}
    for name in ("gpt", "bert", "transformer", "lstm"):
        result = lmlab.train(
            name,
            data=folder / "letters.txt",
            out=folder / name,
            size="tiny",
            steps=20,
            settings={"learning_rate": "0.01"},
            quiet=True,
        )
        made[name] = result.path
    return made


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ROWS = {
    # Is there an a? Do both begin alike? Which letters are vowels? The letter after the e.
    "classify": [{"text": " ".join(w), "label": str("a" in w)} for w in sample_words(240)],
    "pair": [
        {"text": " ".join(a), "other": " ".join(b), "label": str(a[0] == b[0])}
        for a, b in zip(sample_words(240), sample_words(240, seed=1), strict=True)
    ],
    "tag": [
        {"words": w, "tags": ["B-vowel" if c in "ae" else "O" for c in w]}
        for w in sample_words(240)
    ],
    "span": [
        {"text": " ".join([*w, "f"]), "question": "a", "answer": "f"}
        for w in sample_words(240)
        if "f" not in w
    ],
    "generate": [{"source": " ".join(w), "target": w[0]} for w in sample_words(240)],
}
METRIC = {
    "classify": "accuracy",
    "pair": "accuracy",
    "tag": "f1",
    "span": "exact_match",
    "generate": "exact_match",
}


@pytest.mark.parametrize("task", ["classify", "tag", "span"])
@pytest.mark.parametrize("system", ["gpt", "bert", "transformer"])
def test_finetuning_learns_an_easy_task(
    task: str, system: str, runs: dict[str, Path], tmp_path: Path
):
    """An easy one, to well above chance, by every kind of Transformer."""
    data = write_rows(tmp_path / "rows.jsonl", ROWS[task])
    result = finetune(
        runs[system],
        task=task,
        data=data,
        out=tmp_path / "out",
        epochs=25,
        settings={"learning_rate": "0.01", "tokens_per_batch": "512"},
        quiet=True,
    )
    assert result.metrics[METRIC[task]] > 0.85
    model = load_task(result.path)
    rows = [json.loads(line) for line in (result.path / "predictions.jsonl").open()]
    answered = [row.pop("answered") for row in rows]
    assert model.predict(rows) == answered
    with pytest.raises(UserError, match="lmlab predict"):
        lmlab.load(result.path)


@pytest.mark.parametrize("system", ["gpt", "transformer"])
def test_generation_finetuning_gives_a_language_model_run(system: str, runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["generate"])
    result = finetune(
        runs[system],
        task="generate",
        data=data,
        out=tmp_path / "out",
        epochs=30,
        settings={"learning_rate": "0.01", "tokens_per_batch": "512"},
        quiet=True,
    )
    assert result.metrics["exact_match"] > 0.6
    assert load_file(result.path / "model.safetensors").keys() == (
        load_file(runs[system] / "model.safetensors").keys()
    )
    assert lmlab.load(result.path).card.name == system


class LengthTokenizer:
    """Stands for a tokenizer: decodes ids to their number."""

    def decode(self, ids: list[int]) -> str:
        return str(len(ids))


@pytest.mark.parametrize(
    ("system", "room"),
    [
        ("mass", {2: 62, 9: 62}),  # 64 of the text's own: <s>, and one for an empty blank
        ("unilm", {2: 62, 9: 55}),  # 64 positions for both
        ("gpt", {2: 63, 9: 56}),  # the source is the prefix of the text: 64 after <s>
    ],
)
def test_generation_stops_at_the_maximum_length(system: str, room: dict[int, int], runs):
    tokenizer = Tokenizer.load(runs["gpt"] / "tokenizer.json")
    base = build_tiny(system, tokenizer.vocabulary).eval()
    generator = FinetunedGenerator(base, conditional=system != "gpt")
    tokens, lengths = tokenizer.encode("a b c d e f a"), (2, 9, 4)
    start, end = tokenizer.vocabulary.bos, tokenizer.vocabulary.end
    sources = [[start, *tokens[: length - 2], end] for length in lengths]
    batched = generate_texts(generator, tokenizer, sources)
    assert batched == [generate_texts(generator, tokenizer, [each])[0] for each in sources]
    generator.vocabulary = replace(generator.vocabulary, end=None)
    for length, longest in room.items():
        [text] = generate_texts(generator, LengthTokenizer(), [sources[lengths.index(length)]])  # type: ignore[arg-type]
        assert int(text) == longest


def test_file_is_split_alike_as_rows_and_as_corpus(tmp_path: Path):
    """The training rows of one command are never the test rows of another."""
    rows = [{"source": f"s{i}\u2028", "target": f"t{i}", "note": i} for i in range(100)]
    rows[7]["target"], rows[30]["source"] = " ", ""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines, encoding="utf-8")
    for seed in (0, 5):
        report = ReadingReport()
        splits = read_splits(path, Generation, seed=seed, report=report)
        corpus = open_corpus(path, seed=seed)
        assert {name: len(split_rows) for name, split_rows in splits.items()} == (
            {"train": 88, "validation": 5, "test": 5}
        )
        for name, split_rows in splits.items():
            assert [row["target"] for row in split_rows] == [
                each.text for each in corpus.split(name)
            ]
        assert (report.empty_rows, corpus.splits["train"].report.empty_rows) == (2, 2)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(lines + "{\n", encoding="utf-8")
    splits = read_splits(bad, Generation, errors="replace")
    corpus = open_corpus(bad, errors="replace")
    assert [row["target"] for row in splits["test"]] == [each.text for each in corpus.split("test")]


def test_folder_splits_are_read_by_filename_prefix(tmp_path: Path):
    """All files that begin with a split's name."""
    for name in ("train-1", "train-2", "val", "test"):
        write_rows(tmp_path / f"{name}.jsonl", [{"text": name, "label": "x"}])
    splits = read_splits(tmp_path, Classification)
    assert {name: [row["text"] for row in rows] for name, rows in splits.items()} == {
        "train": ["train-1", "train-2"],
        "validation": ["val"],
        "test": ["test"],
    }


def test_generation_selects_by_bleu_and_filters_length_ratio(runs, tmp_path: Path):
    """Targets repeat their sources, and in one pair of ten much too often."""
    rows = [
        {"source": "a b c d", "target": " ".join(["a b c d"] * (9 if i % 10 == 0 else 1))}
        for i in range(100)
    ]
    long_rows = {i for i, row in enumerate(rows) if len(row["target"]) > 7}
    data = write_rows(tmp_path / "rows.jsonl", rows)
    options = {"task": "generate", "data": data, "steps": 4, "quiet": True}
    settings = {"select_by": "bleu", "max_length_ratio": "2", "evaluate_every": "2"}
    result = finetune(runs["transformer"], out=tmp_path / "out", settings=settings, **options)
    assert (
        result.dropped_by_length_ratio
        == sum(split_of_index(i, 0) == "train" for i in long_rows)
        > 0
    )
    assert result.rows["train"] == 90 - result.dropped_by_length_ratio
    assert 0 <= result.metrics["bleu"] <= 100
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").open()]
    bleu_scores = [line["bleu"] for line in lines if line["event"] == "validation"]
    assert len(bleu_scores) == 2
    for name, value in (("select_by", "bleu"), ("max_length_ratio", "2"), ("min_count", "3")):
        with pytest.raises(UserError, match=f"{name} does not apply to"):
            finetune(
                runs["bert"], out=tmp_path / "no", **{**options, "task": "classify"},
                settings={name: value},
            )  # fmt: skip
    assert not (tmp_path / "no").exists()


def test_source_is_encoded_by_the_source_tokenizer(tmp_path: Path):
    pairs = "".join(f"{row['source']}\t{row['target']}\n" for row in ROWS["generate"])
    (tmp_path / "pairs.tsv").write_text(pairs, encoding="utf-8")
    options = {"data": tmp_path / "pairs.tsv", "steps": 1, "quiet": True}
    base = lmlab.train(
        "seq2seq", out=tmp_path / "base", size="tiny", source_tokenizer="char", **options
    ).path
    result = finetune(base, task="generate", out=tmp_path / "out", **options)
    model = lmlab.load(result.path).model
    source = "a b c"
    [encoded] = load_task(result.path).reading.prepare([{"source": source}], training=False).encoded
    vocabulary = model.effective_source_tokenizer.vocabulary
    assert encoded.given == [
        vocabulary.start,
        *model.effective_source_tokenizer.encode(source),
        vocabulary.end,
    ]
    assert len(encoded.given) == len(source) + 2


def test_generation_accepts_a_parallel_corpus(runs, tmp_path: Path):
    pairs = "".join(f"{row['source']}\t{row['target']}\n" for row in ROWS["generate"])
    (tmp_path / "pairs.tsv").write_text(f"{pairs}a b\t\n", encoding="utf-8")
    result = finetune(
        runs["transformer"],
        task="generate",
        data=tmp_path / "pairs.tsv",
        out=tmp_path / "out",
        steps=2,
        quiet=True,
    )
    assert result.rows == {"train": 216, "validation": 12, "test": 12}
    assert result.skipped == 1
    assert "bleu" not in result.metrics, "of texts with one word BLEU says nothing"
    (tmp_path / "one.tsv").write_text("only one side\n" * 40, encoding="utf-8")
    with pytest.raises(UserError):
        finetune(
            runs["transformer"], task="generate", data=tmp_path / "one.tsv", out=tmp_path / "no"
        )


def test_interrupted_finetuning_is_not_evaluated(runs, tmp_path: Path, monkeypatch):
    stopped = FitResult(progress=Progress(step=7), reason="interrupted")
    monkeypatch.setattr("lmlab.tasks.finetune_job.fit_by_gradient", lambda job: stopped)
    data = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    with pytest.raises(UserError, match="stopped at step 7 of out; continue with --resume"):
        finetune(runs["bert"], task="classify", data=data, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out" / "evaluation.json").exists()


def test_frozen_encoder_keeps_its_weights(runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    result = finetune(
        runs["bert"], task="classify", data=data, out=tmp_path / "out", frozen=True, epochs=2,
        quiet=True,
    )  # fmt: skip
    before = load_file(runs["bert"] / "model.safetensors")
    after = load_file(result.path / "model.safetensors")
    assert {name for name in after if not name.startswith("base.")} == {"head.weight", "head.bias"}
    for name, value in before.items():
        assert torch.equal(after[f"base.{name}"], value)


def test_same_seed_gives_the_same_predictions(runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["pair"])
    texts = []
    for name in ("first", "second"):
        finetune(runs["bert"], task="pair", data=data, out=tmp_path / name, epochs=1, quiet=True)
        texts.append((tmp_path / name / "predictions.jsonl").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]


def test_examples_option_limits_training_rows(runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    result = finetune(
        runs["gpt"], task="classify", data=data, out=tmp_path / "out", examples=10, epochs=1,
        quiet=True,
    )  # fmt: skip
    assert result.rows["train"] == 10
    with pytest.raises(UserError, match="from 1 to 216"):
        finetune(
            runs["gpt"], task="classify", data=data, out=tmp_path / "more", examples=1000,
            quiet=True,
        )  # fmt: skip


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_label_set_comes_from_all_rows_with_few_examples(runs, tmp_path: Path, task: str):
    """Rows of one label come first, so that the examples have only that one."""
    ordered = {
        "classify": sorted(ROWS["classify"], key=lambda row: row["label"]),
        "tag": sorted(ROWS["tag"], key=lambda row: "B-vowel" in row["tags"]),
    }
    data = write_rows(tmp_path / "rows.jsonl", ordered[task])
    result = finetune(
        runs["bert"], task=task, data=data, out=tmp_path / "out", examples=3, epochs=1, quiet=True
    )
    assert result.rows["train"] == 3
    assert result.labels == {"classify": ("False", "True"), "tag": ("B-vowel", "O")}[task]


def test_text_pair_is_joined_and_the_longer_truncated(runs):
    model = lmlab.load(runs["bert"])
    vocabulary = model.system.vocabulary
    a, b = model.tokenizer.encode("a"), model.tokenizer.encode("b")
    encoded = encode_texts(["a a", "b b b b"], model.tokenizer, vocabulary, 8)
    start, end = vocabulary.start, vocabulary.end
    assert encoded.tokens == [start, *a, *a, end, *b, *b, *b, end]
    assert encoded.truncated
    assert encoded.spans == [(0, 0)] * 4 + [(0, 1), (2, 3), (4, 5), (0, 0)]


def test_tag_labels_are_on_the_first_token_of_each_word(runs):
    tokenizer = lmlab.load(runs["bert"]).tokenizer
    task = Tagging(["B-x", "O"])
    row = {"words": ["a", "b", "c"], "tags": ["O", "B-x", "O"]}
    encoded = task.encode(row, tokenizer, tokenizer.vocabulary, 10)
    assert encoded.labels == [-100, 1, 0, 1, -100]
    short = task.encode(row, tokenizer, tokenizer.vocabulary, 4)
    assert first_tokens(row["words"], short) == [1, 2, None]


def test_span_labels_are_token_positions_of_the_answer(runs):
    tokenizer = lmlab.load(runs["bert"]).tokenizer
    row = {"text": "a b c d", "question": "e", "answer": "c d"}
    encoded = SpanExtraction().encode(row, tokenizer, tokenizer.vocabulary, 20)
    # <s> e </s> a b c d </s>: the answer is the tokens 5 and 6.
    assert encoded.labels == [5, 6]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 1: a row of classify is an object"),
        ('{"text": "a"}', "line 1: .*label is missing"),
        ("{", "line 1: not a JSON object"),
        ('{"text": 5, "label": "x"}', "line 1: text must be a text, got 5"),
        ('{"text": "a", "label": null}', "line 1: label must be a text, got null"),
        ("\xff", "not UTF-8"),
    ],
)
def test_malformed_row_error_names_the_line(line: str, message: str, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        read_splits(path, Classification)


def test_invalid_data_and_runs_are_reported(runs, tmp_path: Path):
    few = write_rows(tmp_path / "few.jsonl", ROWS["classify"][:3])
    with pytest.raises(UserError, match="too few"):
        read_splits(few, Classification)
    with pytest.raises(UserError, match="made for the task classify"):
        read_splits("gloss-part-of-speech", PairClassification)
    with pytest.raises(UserError, match="gloss-hypernym"):
        read_splits("gloss-hypernim", PairClassification)
    rows = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    with pytest.raises(UserError, match="Encode"):
        finetune(runs["lstm"], task="classify", data=rows, out=tmp_path / "x", quiet=True)
    with pytest.raises(UserError, match="already holds a run"):
        finetune(runs["gpt"], task="classify", data=few, out=runs["bert"], quiet=True)
    with pytest.raises(UserError, match="is not in its text"):
        SpanExtraction.check_row({"text": "a b", "question": "?", "answer": "c"})
    for start in (math.inf, -1, 3, "0", [0], True):
        with pytest.raises(UserError, match="start must be a character of the text"):
            SpanExtraction.check_row(
                {"text": "a b", "question": "?", "answer": "b", "start": start}
            )
    with pytest.raises(UserError, match="texts, got 7"):
        Tagging.check_row({"words": ["a", 7], "tags": ["O", "O"]})
    with pytest.raises(UserError, match="not fine-tuned"):
        load_task(runs["gpt"])
    alike = write_rows(tmp_path / "alike.jsonl", [{"text": "a", "label": "x"}] * 20)
    with pytest.raises(UserError, match="all 18 training rows have the label 'x'"):
        finetune(runs["gpt"], task="classify", data=alike, out=tmp_path / "x", quiet=True)


def test_image_models_are_rejected_for_text_tasks(tmp_path: Path):
    images = [
        f"{' '.join(str((7 * i + j) % 16) for j in range(64))}\t{'xy'[i % 2]}" for i in range(8)
    ]
    (tmp_path / "images.tsv").write_text("\n".join(images) + "\n", encoding="utf-8")
    run = lmlab.train(
        "vit", data=tmp_path / "images.tsv", out=tmp_path / "vit", size="tiny", steps=1, quiet=True
    ).path
    rows = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    with pytest.raises(UserError, match="vit takes images, and a row of classify has none"):
        finetune(run, task="classify", data=rows, out=tmp_path / "x", quiet=True)


def test_label_unseen_in_training_is_reported(runs, tmp_path: Path):
    folder = tmp_path / "splits"
    folder.mkdir()
    write_rows(folder / "train.jsonl", [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    write_rows(folder / "test.jsonl", [{"text": "a", "label": "z"}])
    with pytest.raises(UserError, match="'z' does not occur in the training rows, which have x, y"):
        finetune(runs["gpt"], task="classify", data=folder, out=tmp_path / "out", quiet=True)


def test_few_shot_prediction_is_the_most_probable_label(runs):
    """The answers are those of the largest conditional score, computed here one by one."""
    scorer = lmlab.load(runs["gpt"]).scorer()
    train = [{"text": "a b", "label": "a"}, {"text": "c d", "label": "c"}]
    rows = [{"text": "e f", "label": "a"}, {"text": "b b", "label": "c"}]
    result = predict_few_shot(scorer, Classification, train, rows, shots=0)
    expected = []
    for row in rows:
        totals = {label: scorer.score_one(f"{row['text']} : {label}") for label in ("a", "c")}
        last = {label: score.per_token[-2].log_prob for label, score in totals.items()}
        expected.append(max(last, key=last.get))
    assert list(result.answers) == expected
    assert (
        result.metrics["accuracy"]
        == sum(a == r["label"] for a, r in zip(expected, rows, strict=True)) / 2
    )
    assert result.note is None


def test_few_shot_notes_examples_beyond_the_window(runs):
    """<s>, eleven examples of five words, the question's two, sign and answer: 60 of 64."""
    scorer = lmlab.load(runs["gpt"]).scorer()
    assert scorer.window == 64
    train = [{"text": "a b", "label": "ac"[i % 2]} for i in range(30)]
    rows = [{"text": "e f", "label": "a"}] * 2
    assert predict_few_shot(scorer, Classification, train, rows, shots=11).note is None
    result = predict_few_shot(scorer, Classification, train, rows, shots=12)
    assert result.note is not None and "window of 64 tokens holds 11 of the 12" in result.note


def test_few_shot_without_rows_or_labels_is_reported(runs):
    scorer = lmlab.load(runs["gpt"]).scorer()
    train = [{"text": "a b", "label": "a"}, {"text": "c d", "label": "c"}]
    with pytest.raises(UserError, match="no rows to evaluate"):
        predict_few_shot(scorer, Classification, train, [], shots=0)
    with pytest.raises(UserError, match="all example rows have the answer 'a'"):
        predict_few_shot(scorer, Classification, train[:1], train, shots=0)
