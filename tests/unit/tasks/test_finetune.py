"""Fine-tuning: rows in, a run out that answers; and what goes wrong said in a sentence."""

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
from lmlab.training.run_folder import build_tiny

LETTERS = "abcdef"


def draw(count: int, seed: int = 0) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    return [
        [LETTERS[i] for i in generator.integers(6, size=generator.integers(2, 8))]
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny runs of a model that writes, one that fills and one with a source."""
    folder = tmp_path_factory.mktemp("runs")
    text = "\n".join(" ".join(words) for words in draw(300)) + "\n"
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
    "classify": [{"text": " ".join(w), "label": str("a" in w)} for w in draw(240)],
    "pair": [
        {"text": " ".join(a), "other": " ".join(b), "label": str(a[0] == b[0])}
        for a, b in zip(draw(240), draw(240, seed=1), strict=True)
    ],
    "tag": [{"words": w, "tags": ["B-vowel" if c in "ae" else "O" for c in w]} for w in draw(240)],
    "span": [
        {"text": " ".join([*w, "f"]), "question": "a", "answer": "f"}
        for w in draw(240)
        if "f" not in w
    ],
    "generate": [{"source": " ".join(w), "target": w[0]} for w in draw(240)],
}
MEASURE = {
    "classify": "accuracy",
    "pair": "accuracy",
    "tag": "f1",
    "span": "exact_match",
    "generate": "exact_match",
}


@pytest.mark.parametrize("task", ["classify", "tag", "span"])
@pytest.mark.parametrize("system", ["gpt", "bert", "transformer"])
def test_a_task_is_learned(task: str, system: str, runs: dict[str, Path], tmp_path: Path):
    """An easy one, to well above what guessing gives, by every sort of Transformer."""
    data = write_rows(tmp_path / "rows.jsonl", ROWS[task])
    found = finetune(
        runs[system],
        task=task,
        data=data,
        out=tmp_path / "out",
        epochs=25,
        settings={"learning_rate": "0.01", "tokens_per_batch": "512"},
        quiet=True,
    )
    assert found.metrics[MEASURE[task]] > 0.85
    model = load_task(found.path)
    rows = [json.loads(line) for line in (found.path / "predictions.jsonl").open()]
    answered = [row.pop("answered") for row in rows]
    assert model.predict(rows) == answered
    with pytest.raises(UserError, match="lmlab predict"):
        lmlab.load(found.path)


@pytest.mark.parametrize("system", ["gpt", "transformer"])
def test_generation_leaves_a_run_like_any_other(system: str, runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["generate"])
    found = finetune(
        runs[system],
        task="generate",
        data=data,
        out=tmp_path / "out",
        epochs=30,
        settings={"learning_rate": "0.01", "tokens_per_batch": "512"},
        quiet=True,
    )
    assert found.metrics["exact_match"] > 0.6
    assert load_file(found.path / "model.safetensors").keys() == (
        load_file(runs[system] / "model.safetensors").keys()
    )
    assert lmlab.load(found.path).card.name == system


class Counted:
    """Instead of a tokeniser: the text of some ids is how many they are."""

    def decode(self, ids: list[int]) -> str:
        return str(len(ids))


@pytest.mark.parametrize(
    ("system", "room"),
    [
        ("mass", {2: 63, 9: 63}),  # 64 positions of the text's own, <s> in the first
        ("unilm", {2: 62, 9: 55}),  # 64 positions for both
        ("gpt", {2: 63, 9: 56}),  # the source is the beginning of the text: 64 after <s>
    ],
)
def test_a_text_that_does_not_end_goes_as_far_as_the_system_can(
    system: str, room: dict[int, int], runs
):
    tokenizer = Tokenizer.load(runs["gpt"] / "tokenizer.json")
    base = build_tiny(system, tokenizer.vocabulary).eval()
    writer = FinetunedGenerator(base, conditional=system != "gpt")
    words, ends = tokenizer.encode("a b c d e f a"), (2, 9, 4)
    opening, end = tokenizer.vocabulary.bos, tokenizer.vocabulary.end
    sources = [[opening, *words[: length - 2], end] for length in ends]
    together = generate_texts(writer, tokenizer, sources)
    assert together == [generate_texts(writer, tokenizer, [each])[0] for each in sources]
    writer.vocabulary = replace(writer.vocabulary, end=None)
    for length, most in room.items():
        [text] = generate_texts(writer, Counted(), [sources[ends.index(length)]])  # type: ignore[arg-type]
        assert int(text) == most


def test_a_file_is_divided_alike_as_rows_and_as_a_corpus(tmp_path: Path):
    """What one verb has trained on is never what another one judges by."""
    rows = [{"source": f"s{i}\u2028", "target": f"t{i}", "note": i} for i in range(100)]
    rows[7]["target"], rows[30]["source"] = " ", ""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines, encoding="utf-8")
    for seed in (0, 5):
        report = ReadingReport()
        splits = read_splits(path, Generation, seed=seed, report=report)
        corpus = open_corpus(path, seed=seed)
        assert {name: len(found) for name, found in splits.items()} == (
            {"train": 88, "validation": 5, "test": 5}
        )
        for name, found in splits.items():
            assert [row["target"] for row in found] == [each.text for each in corpus.split(name)]
        assert (report.empty_rows, corpus.splits["train"].report.empty_rows) == (2, 2)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(lines + "{\n", encoding="utf-8")
    splits = read_splits(bad, Generation, errors="replace")
    corpus = open_corpus(bad, errors="replace")
    assert [row["target"] for row in splits["test"]] == [each.text for each in corpus.split("test")]


def test_a_folder_is_read_as_a_corpus_is(tmp_path: Path):
    """All files that begin with a split's name."""
    for name in ("train-1", "train-2", "val", "test"):
        write_rows(tmp_path / f"{name}.jsonl", [{"text": name, "label": "x"}])
    splits = read_splits(tmp_path, Classification)
    assert {name: [row["text"] for row in rows] for name, rows in splits.items()} == {
        "train": ["train-1", "train-2"],
        "validation": ["val"],
        "test": ["test"],
    }


def test_generation_keeps_by_bleu_and_drops_uneven_pairs(runs, tmp_path: Path):
    """Targets repeat their sources, and in one pair of ten much too often."""
    rows = [
        {"source": "a b c d", "target": " ".join(["a b c d"] * (9 if i % 10 == 0 else 1))}
        for i in range(100)
    ]
    held = {i for i, row in enumerate(rows) if len(row["target"]) > 7}
    data = write_rows(tmp_path / "rows.jsonl", rows)
    words = {"task": "generate", "data": data, "steps": 4, "quiet": True}
    settings = {"select_by": "bleu", "max_length_ratio": "2", "evaluate_every": "2"}
    found = finetune(runs["transformer"], out=tmp_path / "out", settings=settings, **words)
    assert found.dropped_by_length_ratio == sum(split_of_index(i, 0) == "train" for i in held) > 0
    assert found.rows["train"] == 90 - found.dropped_by_length_ratio
    assert 0 <= found.metrics["bleu"] <= 100
    lines = [json.loads(line) for line in (found.path / "metrics.jsonl").open()]
    judged = [line["bleu"] for line in lines if line["event"] == "validation"]
    assert len(judged) == 2
    for name, value in (("select_by", "bleu"), ("max_length_ratio", "2"), ("min_count", "3")):
        with pytest.raises(UserError, match=f"{name} does not apply to"):
            finetune(
                runs["bert"], out=tmp_path / "no", **{**words, "task": "classify"},
                settings={name: value},
            )  # fmt: skip
    assert not (tmp_path / "no").exists()


def test_a_source_is_read_by_its_own_tokeniser(tmp_path: Path):
    pairs = "".join(f"{row['source']}\t{row['target']}\n" for row in ROWS["generate"])
    (tmp_path / "pairs.tsv").write_text(pairs, encoding="utf-8")
    words = {"data": tmp_path / "pairs.tsv", "steps": 1, "quiet": True}
    base = lmlab.train(
        "seq2seq", out=tmp_path / "base", size="tiny", source_tokenizer="char", **words
    ).path
    found = finetune(base, task="generate", out=tmp_path / "out", **words)
    model = lmlab.load(found.path).model
    source = "a b c"
    [read] = load_task(found.path).reading.prepare([{"source": source}], training=False).encoded
    vocabulary = model.effective_source_tokenizer.vocabulary
    assert read.given == [
        vocabulary.start,
        *model.effective_source_tokenizer.encode(source),
        vocabulary.end,
    ]
    assert len(read.given) == len(source) + 2


def test_generation_learns_from_a_corpus_of_pairs(runs, tmp_path: Path):
    pairs = "".join(f"{row['source']}\t{row['target']}\n" for row in ROWS["generate"])
    (tmp_path / "pairs.tsv").write_text(f"{pairs}a b\t\n", encoding="utf-8")
    found = finetune(
        runs["transformer"],
        task="generate",
        data=tmp_path / "pairs.tsv",
        out=tmp_path / "out",
        steps=2,
        quiet=True,
    )
    assert found.rows == {"train": 216, "validation": 12, "test": 12}
    assert found.skipped == 1
    assert "bleu" not in found.metrics, "of texts with one word BLEU says nothing"
    (tmp_path / "one.tsv").write_text("only one side\n" * 40, encoding="utf-8")
    with pytest.raises(UserError):
        finetune(
            runs["transformer"], task="generate", data=tmp_path / "one.tsv", out=tmp_path / "no"
        )


def test_nothing_is_measured_of_one_that_was_stopped(runs, tmp_path: Path, monkeypatch):
    stopped = FitResult(progress=Progress(step=7), reason="interrupted")
    monkeypatch.setattr("lmlab.tasks.finetune_job.fit_by_gradient", lambda job: stopped)
    data = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    with pytest.raises(UserError, match="stopped at step 7 of out; continue with --resume"):
        finetune(runs["bert"], task="classify", data=data, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out" / "evaluation.json").exists()


def test_frozen_features_do_not_change_and_the_head_does(runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    found = finetune(
        runs["bert"], task="classify", data=data, out=tmp_path / "out", frozen=True, epochs=2,
        quiet=True,
    )  # fmt: skip
    before = load_file(runs["bert"] / "model.safetensors")
    after = load_file(found.path / "model.safetensors")
    assert {name for name in after if not name.startswith("base.")} == {"head.weight", "head.bias"}
    for name, value in before.items():
        assert torch.equal(after[f"base.{name}"], value)


def test_the_same_seed_gives_the_same_answers(runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["pair"])
    texts = []
    for name in ("first", "second"):
        finetune(runs["bert"], task="pair", data=data, out=tmp_path / name, epochs=1, quiet=True)
        texts.append((tmp_path / name / "predictions.jsonl").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]


def test_examples_takes_so_many_rows(runs, tmp_path: Path):
    data = write_rows(tmp_path / "rows.jsonl", ROWS["classify"])
    found = finetune(
        runs["gpt"], task="classify", data=data, out=tmp_path / "out", examples=10, epochs=1,
        quiet=True,
    )  # fmt: skip
    assert found.rows["train"] == 10
    with pytest.raises(UserError, match="from 1 to 216"):
        finetune(
            runs["gpt"], task="classify", data=data, out=tmp_path / "more", examples=1000,
            quiet=True,
        )  # fmt: skip


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_few_examples_are_answered_with_the_labels_of_all_rows(runs, tmp_path: Path, task: str):
    """Rows of one label come first, so that the examples have that one alone."""
    ordered = {
        "classify": sorted(ROWS["classify"], key=lambda row: row["label"]),
        "tag": sorted(ROWS["tag"], key=lambda row: "B-vowel" in row["tags"]),
    }
    data = write_rows(tmp_path / "rows.jsonl", ordered[task])
    found = finetune(
        runs["bert"], task=task, data=data, out=tmp_path / "out", examples=3, epochs=1, quiet=True
    )
    assert found.rows["train"] == 3
    assert found.labels == {"classify": ("False", "True"), "tag": ("B-vowel", "O")}[task]


def test_two_texts_are_joined_and_the_longer_is_cut(runs):
    model = lmlab.load(runs["bert"])
    vocabulary = model.system.vocabulary
    a, b = model.tokenizer.encode("a"), model.tokenizer.encode("b")
    read = encode_texts(["a a", "b b b b"], model.tokenizer, vocabulary, 8)
    start, end = vocabulary.start, vocabulary.end
    assert read.tokens == [start, *a, *a, end, *b, *b, *b, end]
    assert read.truncated
    assert read.spans == [(0, 0)] * 4 + [(0, 1), (2, 3), (4, 5), (0, 0)]


def test_tags_stand_at_the_first_token_of_each_word(runs):
    tokenizer = lmlab.load(runs["bert"]).tokenizer
    task = Tagging(["B-x", "O"])
    row = {"words": ["a", "b", "c"], "tags": ["O", "B-x", "O"]}
    read = task.encode(row, tokenizer, tokenizer.vocabulary, 10)
    assert read.labels == [-100, 1, 0, 1, -100]
    short = task.encode(row, tokenizer, tokenizer.vocabulary, 4)
    assert first_tokens(row["words"], short) == [1, 2, None]


def test_a_span_is_found_by_its_characters(runs):
    tokenizer = lmlab.load(runs["bert"]).tokenizer
    row = {"text": "a b c d", "question": "e", "answer": "c d"}
    read = SpanExtraction().encode(row, tokenizer, tokenizer.vocabulary, 20)
    # <s> e </s> a b c d </s>: the answer is the tokens 5 and 6.
    assert read.labels == [5, 6]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "line 1: a row of classify is an object"),
        ('{"text": "a"}', "line 1: .*label is missing"),
        ("{", "line 1: not a JSON object"),
        ('{"text": 5, "label": "x"}', "line 1: text must be a text, got 5"),
        ('{"text": "a", "label": null}', "line 1: label must be a text, got null"),
        ("\xff", "not UTF-8"),
    ],
)
def test_a_bad_row_is_told_with_its_line(line: str, said: str, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line.encode("latin-1"))
    with pytest.raises(UserError, match=said):
        read_splits(path, Classification)


def test_other_mistakes_are_told(runs, tmp_path: Path):
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


def test_a_system_that_reads_images_is_put_to_no_task_of_texts(tmp_path: Path):
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


def test_a_label_that_training_did_not_have_is_told(runs, tmp_path: Path):
    folder = tmp_path / "splits"
    folder.mkdir()
    write_rows(folder / "train.jsonl", [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    write_rows(folder / "test.jsonl", [{"text": "a", "label": "z"}])
    with pytest.raises(UserError, match="'z' does not occur in the training rows, which have x, y"):
        finetune(runs["gpt"], task="classify", data=folder, out=tmp_path / "out", quiet=True)


def test_prompting_takes_the_likeliest_answer(runs):
    """The answers are those of the largest conditional score, computed here one by one."""
    scorer = lmlab.load(runs["gpt"]).scorer()
    train = [{"text": "a b", "label": "a"}, {"text": "c d", "label": "c"}]
    rows = [{"text": "e f", "label": "a"}, {"text": "b b", "label": "c"}]
    found = predict_few_shot(scorer, Classification, train, rows, shots=0)
    expected = []
    for row in rows:
        totals = {label: scorer.score_one(f"{row['text']} : {label}") for label in ("a", "c")}
        last = {label: score.per_token[-2].log_prob for label, score in totals.items()}
        expected.append(max(last, key=last.get))
    assert list(found.answers) == expected
    assert (
        found.metrics["accuracy"]
        == sum(a == r["label"] for a, r in zip(expected, rows, strict=True)) / 2
    )
    assert found.note is None


def test_examples_that_a_window_can_not_hold_are_told(runs):
    """<s>, eleven examples of five words, the question's two, sign and answer: 60 of 64."""
    scorer = lmlab.load(runs["gpt"]).scorer()
    assert scorer.window == 64
    train = [{"text": "a b", "label": "ac"[i % 2]} for i in range(30)]
    rows = [{"text": "e f", "label": "a"}] * 2
    assert predict_few_shot(scorer, Classification, train, rows, shots=11).note is None
    found = predict_few_shot(scorer, Classification, train, rows, shots=12)
    assert found.note is not None and "window of 64 tokens holds 11 of the 12" in found.note


def test_prompting_without_rows_or_choice_is_told(runs):
    scorer = lmlab.load(runs["gpt"]).scorer()
    train = [{"text": "a b", "label": "a"}, {"text": "c d", "label": "c"}]
    with pytest.raises(UserError, match="no rows to evaluate"):
        predict_few_shot(scorer, Classification, train, [], shots=0)
    with pytest.raises(UserError, match="all example rows have the answer 'a'"):
        predict_few_shot(scorer, Classification, train[:1], train, shots=0)
