"""`lmlab translate` and `lmlab evaluate` on a briefly trained translation model."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lmlab.cli.output import print_json_lines
from lmlab.sampling.translation import Translator
from lmlab.scoring.translation_metrics import make_metric
from lmlab.tasks.finetune import finetune
from lmlab.training.train import train

from .conftest import Command

NAMES = {"eins": "one", "zwei": "two", "drei": "three"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers of one to three German words, and the same in English."""
    folder = tmp_path_factory.mktemp("numbers")
    sources = [" ".join(words) for n in (1, 2, 3) for words in product(NAMES, repeat=n)]
    for split, chosen in {"train": sources, "valid": sources[::4], "test": sources[1::4]}.items():
        targets = [" ".join(NAMES[word] for word in text.split()) for text in chosen]
        (folder / f"{split}.de").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        (folder / f"{split}.en").write_text("\n".join(targets) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "numbers"
    settings = {"learning_rate": 0.03, "tokens_per_batch": 160, "width": 24, "schedule": "cosine"}
    train(
        "seq2seq-attention",
        data=f"parallel:de-en:{pairs}",
        out=out,
        size="tiny",
        settings=settings,
        steps=150,
        quiet=True,
    )
    return out


def test_translations_keep_the_order_of_lines(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de"
    file.write_text("zwei drei eins\n\neins\ndrei zwei\n", encoding="utf-8")
    result = lmlab("translate", run, file)
    assert (result.code, result.out) == (0, "two three one\n\none\nthree two\n")
    assert lmlab("translate", run, file, "--beam", 1).out == result.out


def test_file_and_text_arguments_agree(lmlab: Command, run: Path, tmp_path: Path):
    texts = ("eins zwei", "drei")
    (tmp_path / "source").write_text("\n".join(texts), encoding="utf-8")
    forms = ((tmp_path / "source",), ("--file", tmp_path / "source"), texts, ("--text", *texts))
    assert {lmlab("translate", run, *form).out for form in forms} == {"one two\nthree\n"}


def test_n_best_list_starts_with_the_single_best(lmlab: Command, run: Path):
    one = json.loads(lmlab("translate", run, "--text", "zwei eins", "--json").out)
    several = json.loads(
        lmlab("translate", run, "--text", "zwei eins", "--n-best", 4, "--beam", 5, "--json").out
    )
    assert one["source"] == "zwei eins" and one["candidates"][0] == several["candidates"][0]
    scores = [candidate["log_prob"] for candidate in several["candidates"]]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    shown = lmlab("translate", run, "--text", "zwei eins", "--n-best", 4).out.splitlines()
    assert [line.split("\t")[1] for line in shown] == [
        candidate["text"] for candidate in several["candidates"]
    ]


def test_require_ban_and_prefix_constraints(lmlab: Command, run: Path):
    def translated(*options: str) -> str:
        return lmlab("translate", run, "--text", "eins zwei", *options).out.strip()

    assert "three" in translated("--require", "three").split()
    assert "two" not in translated("--ban", "two").split()
    assert translated("--prefix", "three").startswith("three")


def test_score_includes_the_forced_prefix(lmlab: Command, run: Path):
    """log p(three two | eins zwei) is the same with `three` as prefix and by free search."""

    def candidates(*options: object) -> list[dict[str, Any]]:
        output = lmlab("translate", run, "--text", "eins zwei", "--json", *options).out
        return list(json.loads(output)["candidates"])

    (prefixed,) = candidates("--prefix", "three two")
    wide = ("--beam", 60, "--n-best", 60, "--within", "inf")
    (free,) = [
        candidate for candidate in candidates(*wide) if candidate["text"] == prefixed["text"]
    ]
    assert prefixed["log_prob"] == pytest.approx(free["log_prob"], abs=1e-5)
    assert prefixed["score"] == pytest.approx(free["score"], abs=1e-5)
    assert prefixed["tokens"] == free["tokens"]


def test_sampling_by_seed_and_minimum_bayes_risk(lmlab: Command, run: Path, tmp_path: Path):
    """A line's samples do not depend on other lines; MBR decoding gives the correct text."""
    file = tmp_path / "texts.de"
    file.write_text("zwei drei eins\neins\nzwei\n", encoding="utf-8")
    sampling = ("--method", "sample", "--temperature", 3, "--n-best", 3)
    output = lmlab("translate", run, file, *sampling, "--seed", 5).out
    assert lmlab("translate", run, file, *sampling, "--seed", 6).out != output
    file.write_text("zwei drei eins\n", encoding="utf-8")
    assert output.startswith(lmlab("translate", run, file, *sampling, "--seed", 5).out)
    minimum_risk = ("--method", "mbr", "--samples", 12, "--utility", "bleu", "--top-k", 3)
    assert lmlab("translate", run, file, *minimum_risk).out == "two three one\n"


def test_unmet_required_phrase_is_reported_with_its_line(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de"
    file.write_text("\nzwei eins\n", encoding="utf-8")
    result = lmlab("translate", run, file, "--require", "three two one", "--max-length", 2)
    assert result.code == 0 and len(result.out.splitlines()) == 2
    assert result.err.startswith(
        "warning: line 2: 'three two one' is required and was not generated"
    )


def test_only_lines_over_the_window_are_truncated(lmlab: Command, pairs: Path, tmp_path: Path):
    data, out = f"parallel:{pairs}/train.de,{pairs}/train.en", tmp_path / "short"
    settings = {"length": 6}
    train("transformer", data=data, out=out, size="tiny", settings=settings, steps=2, quiet=True)
    file = tmp_path / "texts.de"
    file.write_text(f"eins\n{'zwei ' * 9}\ndrei eins\n", encoding="utf-8")
    result = lmlab("translate", out, file, "--json")
    first, second, third = map(json.loads, result.out.splitlines())
    assert (first["truncated_tokens"], second["truncated_tokens"], third["truncated_tokens"]) == (
        0,
        5,
        0,
    )
    assert result.err == (
        "warning: line 2: longer than the model takes, so its last 5 tokens were truncated\n"
    )
    alone = json.loads(lmlab("translate", out, "--text", "drei eins", "--json").out)
    assert third["candidates"][0]["text"] == alone["candidates"][0]["text"]


def test_json_lines_are_flushed_one_by_one(capfd: pytest.CaptureFixture[str]):
    """Each record is on standard output before the next is generated."""

    def records() -> Iterator[dict[str, int]]:
        for number in (1, 2):
            yield {"number": number}
            assert capfd.readouterr().out == f'{{"number": {number}}}\n'

    print_json_lines(records())


def test_stdin_is_translated_line_by_line(run: Path):
    command = [sys.executable, "-m", "lmlab", "translate", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"drei\n")
        process.stdin.flush()
        # Translated before standard input is closed.
        assert process.stdout.readline() == b"three\n"
        process.stdin.write(b"eins")
        process.stdin.close()
        assert process.stdout.read() == b"one\n"
    assert process.returncode == 0


def test_draw_writes_attention_figure(lmlab: Command, run: Path, tmp_path: Path):
    folder = tmp_path / "pictures"
    result = lmlab("translate", run, "--text", "drei eins", "--draw", folder)
    assert result.out == "three one\n"
    (figure,) = folder.glob("*.svg")
    assert "drei" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.de",), "there is no file nowhere.de"),
        (("--text", "eins", "--beam", "0"), "beam width must be 1 or more"),
        (("--text", "eins", "--method", "guess"), "guess"),
        (("--text", "eins", "--method", "greedy", "--beam", "3"), "does not apply to the method"),
        (("--text", "eins", "--ban", "unheard"), "unheard"),
        (("--text", "eins", "--n-best", "3", "--method", "greedy"), "greedy gives one text"),
        (
            ("--text", "eins", "--prefix", "one", "--ban", "one"),
            "the prefix contains a banned phrase",
        ),
        (("--text", "eins", "--seed", "-1"), "a seed must be from 0"),
        (("--text", "eins", "--errors", "guess"), "'strict' or 'replace'"),
        ((".",), ". is a folder"),
    ],
)
def test_translate_usage_errors(lmlab: Command, run: Path, arguments, message: str):
    result = lmlab("translate", run, *arguments)
    assert result.code != 0 and message in result.err and "Traceback" not in result.err


def test_gzip_file_is_translated(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de.gz"
    file.write_bytes(gzip.compress(b"eins\n\nzwei\n"))
    result = lmlab("translate", run, file)
    assert (result.code, result.out, result.err) == (0, "one\n\ntwo\n", "")


def test_only_the_first_column_is_translated(lmlab: Command, run: Path, tmp_path: Path):
    """In .tsv and in other files; an empty source gets an empty line."""
    for name in ("pairs.tsv", "pairs.txt"):
        file = tmp_path / name
        file.write_text("eins\tthree\n\tthree\nzwei drei\n", encoding="utf-8")
        result = lmlab("translate", run, file)
        assert (result.code, result.out) == (0, "one\n\ntwo three\n")
        assert result.err == (
            f"{name}: the first column is the source; the second, of 2 lines, was not read.\n"
        )
        records = [
            json.loads(line)
            for line in lmlab("translate", run, file, "--json").out.split("\n")[:-1]
        ]
        assert [(record["line"], record["source"]) for record in records] == [
            (1, "eins"),
            (2, ""),
            (3, "zwei drei"),
        ]
        assert records[1]["candidates"] == []
    file.write_text("eins\tone\tuno\n", encoding="utf-8")
    refused = lmlab("translate", run, file)
    assert (refused.code, refused.out) == (2, "") and "pairs.txt, line 1:" in refused.err
    assert "got 3 columns" in refused.err
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"source": "drei", "target": "one"}\n', encoding="utf-8")
    assert lmlab("translate", run, rows).out == "three\n"


def test_unknown_source_words_are_reported_once(lmlab: Command, run: Path):
    result = lmlab("translate", run, "--text", "eins foo", "--text", "foo bar eins zwei")
    assert result.err == (
        "warning: 50 % of the words (3 of 6) are unknown to this tokenizer and encoded as <unk>: "
        "'foo' (2 times), 'bar'\n"
    )


def test_max_length_does_not_count_the_prefix(lmlab: Command, run: Path):
    """As the help says: one word and the end token after a prefix of two words."""
    arguments = ("--prefix", "one two", "--max-length", 2, "--text", "eins zwei drei")
    assert lmlab("translate", run, *arguments).out == "one two three\n"
    assert "without --prefix" in " ".join(
        lmlab("translate", "--help").out.replace("│", " ").split()
    )


def test_invalid_utf8_is_reported_by_line(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "bad.de"
    file.write_bytes(b"eins\nzw\xffei\n")
    result = lmlab("translate", run, file)
    assert result.code != 0 and "line 2: byte 0xff" in result.err
    assert lmlab("translate", run, file, "--errors", "replace").code == 0


def test_language_model_is_refused(lmlab: Command, runs: dict[str, Path]):
    result = lmlab("translate", runs["lstm"], "--text", "the dog")
    assert result.code != 0 and "source" in result.err
    evaluated = lmlab("evaluate", runs["lstm"])
    assert evaluated.code != 0 and "Traceback" not in evaluated.err


def test_evaluate_reports_scores_signature_and_paired_test(
    lmlab: Command, run: Path, tmp_path: Path
):
    folder = tmp_path / "out"
    twin = shutil.copytree(run, tmp_path / "twin")
    result = lmlab("evaluate", run, twin, "--out", folder, "--json")
    assert result.code == 0, result.err
    record = json.loads(result.out)
    bleu, _, first, second = record["scores"]
    assert (bleu["metric"], first["metric"]) == ("bleu", "chrf")
    # Every word is right; no text has the four words that BLEU's longest n-grams need.
    assert first["score"] == second["score"] == pytest.approx(100.0) and bleu["score"] == 0
    assert first["p_value"] is None and second["p_value"] == 1.0
    assert "tok:none" in bleu["signature"] and first["texts"] == 10
    written = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert written["numbers.txt"] == written["twin.txt"]
    assert len(written["twin.txt"].splitlines()) == 10
    shown = lmlab("evaluate", run, "--limit", 3, "--method", "mbr", "--samples", 4).out
    assert "3 texts, mbr" in shown and "chrf" in shown and "version:" in shown


def test_evaluate_names_runs_of_equal_name_by_path(lmlab: Command, run: Path, tmp_path: Path):
    twin = shutil.copytree(run, tmp_path / "twins" / run.name)
    options = ("--limit", 2, "--metric", "chrf", "--out", tmp_path / "out", "--json")
    scores = json.loads(lmlab("evaluate", run, twin, *options).out)["scores"]
    assert [score["system"] for score in scores] == [str(run), str(twin)]
    assert len(list((tmp_path / "out").glob("*numbers.txt"))) == 2
    twice = lmlab("evaluate", run, run)
    assert twice.code != 0 and f"the run {run} is given twice" in twice.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tokenize", "foo"), "choose from 13a, char"),
        (("--metric", "bleu,blue"), "did you mean 'bleu'"),
        (("--out", __file__), "a file is in its way"),
        (("--method", "greedy", "--samples", "3"), "samples does not apply"),
        (("--seed", "-3"), "a seed must be from 0"),
        (("--errors", "guess"), "'strict' or 'replace'"),
    ],
)
def test_evaluate_checks_options_before_translating(
    lmlab: Command, run: Path, monkeypatch, options: tuple[str, ...], message: str
):
    monkeypatch.setattr(Translator, "translate", lambda *given: pytest.fail("translated"))
    result = lmlab("evaluate", run, *options)
    assert result.code != 0 and message in result.err and "Traceback" not in result.err


def test_evaluate_needs_sacrebleu_before_translating(lmlab: Command, run: Path, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *given: pytest.fail("translated"))
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    result = lmlab("evaluate", run)
    assert result.code != 0 and "pip install 'lmlab[translation]'" in result.err


def test_finetuned_run_is_evaluated_on_its_own_data(lmlab: Command, run: Path, tmp_path: Path):
    """The split does not depend on the seed: of 40 rows, 2 are for validation and 2 for test."""
    rows = tmp_path / "rows.jsonl"
    words = [" ".join(sequence) for sequence in product(NAMES, repeat=4)][:40]
    lines = [{"source": text, "target": " ".join(map(NAMES.get, text.split()))} for text in words]
    rows.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    tuned = finetune(
        run, task="generate", data=rows, out=tmp_path / "out", steps=1, seed=3, quiet=True
    )
    record = json.loads(lmlab("evaluate", tuned.path, "--metric", "chrf", "--json").out)
    assert (record["corpus"], record["scores"][0]["texts"]) == (str(rows), 2)
    answered = [json.loads(line) for line in (tuned.path / "predictions.jsonl").open()]
    expected = corpus_chrf(record["translations"]["out"], [row["target"] for row in answered])
    assert record["scores"][0]["score"] == pytest.approx(expected)
    other = lmlab("evaluate", run, tuned.path)
    assert other.code != 0 and "give --data" in other.err
    rows.unlink()
    lost = lmlab("evaluate", tuned.path)
    assert lost.code != 0 and "give its path by --data" in lost.err


def corpus_chrf(translations: list[str], references: list[str]) -> float:
    return float(make_metric("chrf").corpus_score(translations, [references]).score)


def test_select_by_bleu_and_source_tokenizer(lmlab: Command, tmp_path: Path):
    """Selected weights have the best validation BLEU; pairs of extreme ratio are dropped."""
    texts = [" ".join(sequence) for sequence in product(NAMES, repeat=4)]
    lines = [f"{text}\t{' '.join(map(NAMES.get, text.split()))}" for text in texts]
    lines += ["eins\t" + "one " * 30] * 9
    data, out = tmp_path / "pairs.tsv", tmp_path / "run"
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = ("select_by=bleu", "max_length_ratio=4", "learning_rate=0.1", "evaluate_every=5")
    options = ("--size", "tiny", "--steps", 25, "--source-tokenizer", "word", "--set", *settings)
    trained = lmlab("train", "seq2seq", "--data", data, "--out", out, *options)
    assert trained.code == 0 and "training pairs exceed the maximum length ratio" in trained.err
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    scores = [metric["bleu"] for metric in metrics if "bleu" in metric]
    assert len(scores) == 5 and len(set(scores)) > 1
    decoding = ("--method", "greedy", "--split", "validation", "--metric", "bleu", "--json")
    (evaluated,) = json.loads(lmlab("evaluate", out, *decoding).out)["scores"]
    assert evaluated["score"] == pytest.approx(max(scores))
    config = json.loads((out / "config.json").read_text())
    assert config["source_vocabulary"]["size"] == 5 + 3 == config["vocabulary"]["size"]


def test_draw_is_refused_without_attention(
    lmlab: Command, pairs: Path, tmp_path: Path, monkeypatch
):
    data, out = f"parallel:de-en:{pairs}", tmp_path / "run"
    train("seq2seq", data=data, out=out, size="tiny", steps=1, quiet=True)
    monkeypatch.setattr(Translator, "_chunk", lambda *given: pytest.fail("translated"))
    result = lmlab("translate", out, "--text", "eins", "--draw", tmp_path / "pictures")
    assert result.code != 0 and "has no attention over source positions" in result.err


def test_unequal_files_and_unknown_languages_are_refused(lmlab: Command, run: Path, tmp_path: Path):
    for name, text in {"test.de": "eins\nzwei\n", "test.en": "one\n", "train.de": "eins\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "train.en").write_text("one\n", encoding="utf-8")
    uneven = lmlab("evaluate", run, "--data", f"parallel:de-en:{tmp_path}")
    assert uneven.code != 0 and "as many lines" in uneven.err
    unknown = lmlab("evaluate", run, "--data", f"parallel:de-fr:{tmp_path}")
    assert unknown.code != 0 and "train*.fr" in unknown.err
