"""`lmlab translate` and `lmlab evaluate` on a translator trained for a moment."""

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


def test_lines_come_out_in_the_order_they_went_in(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de"
    file.write_text("zwei drei eins\n\neins\ndrei zwei\n", encoding="utf-8")
    found = lmlab("translate", run, file)
    assert (found.code, found.out) == (0, "two three one\n\none\nthree two\n")
    assert lmlab("translate", run, file, "--beam", 1).out == found.out


def test_a_file_and_texts_are_translated_alike(lmlab: Command, run: Path, tmp_path: Path):
    texts = ("eins zwei", "drei")
    (tmp_path / "source").write_text("\n".join(texts), encoding="utf-8")
    ways = ((tmp_path / "source",), ("--file", tmp_path / "source"), texts, ("--text", *texts))
    assert {lmlab("translate", run, *way).out for way in ways} == {"one two\nthree\n"}


def test_the_first_of_several_is_the_only_one_of_one(lmlab: Command, run: Path):
    one = json.loads(lmlab("translate", run, "--text", "zwei eins", "--json").out)
    many = json.loads(
        lmlab("translate", run, "--text", "zwei eins", "--n-best", 4, "--beam", 5, "--json").out
    )
    assert one["source"] == "zwei eins" and one["candidates"][0] == many["candidates"][0]
    scores = [each["log_prob"] for each in many["candidates"]]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    shown = lmlab("translate", run, "--text", "zwei eins", "--n-best", 4).out.splitlines()
    assert [line.split("\t")[1] for line in shown] == [each["text"] for each in many["candidates"]]


def test_words_can_be_required_banned_and_begun_with(lmlab: Command, run: Path):
    def translated(*options: str) -> str:
        return lmlab("translate", run, "--text", "eins zwei", *options).out.strip()

    assert "three" in translated("--require", "three").split()
    assert "two" not in translated("--ban", "two").split()
    assert translated("--prefix", "three").startswith("three")


def test_a_prefix_is_part_of_what_is_scored(lmlab: Command, run: Path):
    """log p(three two | eins zwei) is the same whether `three` was asked for or found."""

    def written(*options: object) -> list[dict[str, Any]]:
        found = lmlab("translate", run, "--text", "eins zwei", "--json", *options).out
        return list(json.loads(found)["candidates"])

    (begun,) = written("--prefix", "three two")
    wide = ("--beam", 60, "--n-best", 60, "--within", "inf")
    (free,) = [each for each in written(*wide) if each["text"] == begun["text"]]
    assert begun["log_prob"] == pytest.approx(free["log_prob"], abs=1e-5)
    assert begun["score"] == pytest.approx(free["score"], abs=1e-5)
    assert begun["tokens"] == free["tokens"]


def test_texts_are_drawn_by_the_seed_and_by_risk(lmlab: Command, run: Path, tmp_path: Path):
    """A line's draws are the same in any company; the least risky of many is the right one."""
    file = tmp_path / "texts.de"
    file.write_text("zwei drei eins\neins\nzwei\n", encoding="utf-8")
    draws = ("--method", "sample", "--temperature", 3, "--n-best", 3)
    found = lmlab("translate", run, file, *draws, "--seed", 5).out
    assert lmlab("translate", run, file, *draws, "--seed", 6).out != found
    file.write_text("zwei drei eins\n", encoding="utf-8")
    assert found.startswith(lmlab("translate", run, file, *draws, "--seed", 5).out)
    risk = ("--method", "mbr", "--samples", 12, "--utility", "bleu", "--top-k", 3)
    assert lmlab("translate", run, file, *risk).out == "two three one\n"


def test_what_is_not_as_asked_for_is_told_with_its_line(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de"
    file.write_text("\nzwei eins\n", encoding="utf-8")
    found = lmlab("translate", run, file, "--require", "three two one", "--max-length", 2)
    assert found.code == 0 and len(found.out.splitlines()) == 2
    assert found.err.startswith(
        "warning: line 2: 'three two one' is required and was not generated"
    )


def test_a_line_that_is_too_long_is_cut_and_the_others_are_not(
    lmlab: Command, pairs: Path, tmp_path: Path
):
    data, out = f"parallel:{pairs}/train.de,{pairs}/train.en", tmp_path / "short"
    settings = {"length": 6}
    train("transformer", data=data, out=out, size="tiny", settings=settings, steps=2, quiet=True)
    file = tmp_path / "texts.de"
    file.write_text(f"eins\n{'zwei ' * 9}\ndrei eins\n", encoding="utf-8")
    found = lmlab("translate", out, file, "--json")
    first, second, third = map(json.loads, found.out.splitlines())
    assert (first["truncated_tokens"], second["truncated_tokens"], third["truncated_tokens"]) == (
        0,
        5,
        0,
    )
    assert found.err == (
        "warning: line 2: longer than the model takes, so its last 5 tokens were truncated\n"
    )
    alone = json.loads(lmlab("translate", out, "--text", "drei eins", "--json").out)
    assert third["candidates"][0]["text"] == alone["candidates"][0]["text"]


def test_json_is_a_line_for_each_as_they_come(capfd: pytest.CaptureFixture[str]):
    """What was handed out stands on standard output before the next is asked for."""

    def records() -> Iterator[dict[str, int]]:
        for number in (1, 2):
            yield {"number": number}
            assert capfd.readouterr().out == f'{{"number": {number}}}\n'

    print_json_lines(records())


def test_a_pipe_is_answered_line_by_line(run: Path):
    command = [sys.executable, "-m", "lmlab", "translate", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"drei\n")
        process.stdin.flush()
        # Answered before the pipe is closed.
        assert process.stdout.readline() == b"three\n"
        process.stdin.write(b"eins")
        process.stdin.close()
        assert process.stdout.read() == b"one\n"
    assert process.returncode == 0


def test_where_it_looked_is_drawn(lmlab: Command, run: Path, tmp_path: Path):
    folder = tmp_path / "pictures"
    found = lmlab("translate", run, "--text", "drei eins", "--draw", folder)
    assert found.out == "three one\n"
    (picture,) = folder.glob("*.svg")
    assert "drei" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
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
def test_bad_requests_are_told_in_a_sentence(lmlab: Command, run: Path, arguments, told: str):
    found = lmlab("translate", run, *arguments)
    assert found.code != 0 and told in found.err and "Traceback" not in found.err


def test_a_compressed_file_is_read(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de.gz"
    file.write_bytes(gzip.compress(b"eins\n\nzwei\n"))
    found = lmlab("translate", run, file)
    assert (found.code, found.out, found.err) == (0, "one\n\ntwo\n", "")


def test_only_the_source_of_two_columns_is_translated(lmlab: Command, run: Path, tmp_path: Path):
    """By a .tsv file, by any other and by a pipe; an empty source gets an empty line."""
    for name in ("pairs.tsv", "pairs.txt"):
        file = tmp_path / name
        file.write_text("eins\tthree\n\tthree\nzwei drei\n", encoding="utf-8")
        found = lmlab("translate", run, file)
        assert (found.code, found.out) == (0, "one\n\ntwo three\n")
        assert found.err == (
            f"{name}: the first column is the source; the second, of 2 lines, was not read.\n"
        )
        records = [
            json.loads(line)
            for line in lmlab("translate", run, file, "--json").out.split("\n")[:-1]
        ]
        assert [(each["line"], each["source"]) for each in records] == [
            (1, "eins"),
            (2, ""),
            (3, "zwei drei"),
        ]
        assert records[1]["candidates"] == []
    file.write_text("eins\tone\tuno\n", encoding="utf-8")
    told = lmlab("translate", run, file)
    assert (told.code, told.out) == (2, "") and "pairs.txt, line 1:" in told.err
    assert "got 3 columns" in told.err
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"source": "drei", "target": "one"}\n', encoding="utf-8")
    assert lmlab("translate", run, rows).out == "three\n"


def test_unknown_words_of_a_source_are_told_once(lmlab: Command, run: Path):
    found = lmlab("translate", run, "--text", "eins foo", "--text", "foo bar eins zwei")
    assert found.err == (
        "warning: 50 % of the words (3 of 6) are unknown to this tokenizer and encoded as <unk>: "
        "'foo' (2 times), 'bar'\n"
    )


def test_the_greatest_length_does_not_count_the_prefix(lmlab: Command, run: Path):
    """As the help says: a word and the end after two of the prefix."""
    told = ("--prefix", "one two", "--max-length", 2, "--text", "eins zwei drei")
    assert lmlab("translate", run, *told).out == "one two three\n"
    assert "without --prefix" in " ".join(
        lmlab("translate", "--help").out.replace("│", " ").split()
    )


def test_bytes_that_are_no_utf8_are_named_by_line(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "bad.de"
    file.write_bytes(b"eins\nzw\xffei\n")
    found = lmlab("translate", run, file)
    assert found.code != 0 and "line 2: byte 0xff" in found.err
    assert lmlab("translate", run, file, "--errors", "replace").code == 0


def test_a_language_model_is_no_translator(lmlab: Command, runs: dict[str, Path]):
    found = lmlab("translate", runs["lstm"], "--text", "the dog")
    assert found.code != 0 and "source" in found.err
    judged = lmlab("evaluate", runs["lstm"])
    assert judged.code != 0 and "Traceback" not in judged.err


def test_evaluation_has_figures_signature_and_a_paired_test(
    lmlab: Command, run: Path, tmp_path: Path
):
    folder = tmp_path / "out"
    twin = shutil.copytree(run, tmp_path / "twin")
    found = lmlab("evaluate", run, twin, "--out", folder, "--json")
    assert found.code == 0, found.err
    record = json.loads(found.out)
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


def test_runs_of_equal_names_are_told_apart_by_their_paths(
    lmlab: Command, run: Path, tmp_path: Path
):
    twin = shutil.copytree(run, tmp_path / "twins" / run.name)
    options = ("--limit", 2, "--metric", "chrf", "--out", tmp_path / "out", "--json")
    judged = json.loads(lmlab("evaluate", run, twin, *options).out)["scores"]
    assert [each["system"] for each in judged] == [str(run), str(twin)]
    assert len(list((tmp_path / "out").glob("*numbers.txt"))) == 2
    twice = lmlab("evaluate", run, run)
    assert twice.code != 0 and f"{run} was given twice" in twice.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--tokenize", "foo"), "choose from 13a, char"),
        (("--metric", "bleu,blue"), "did you mean 'bleu'"),
        (("--out", __file__), "a file is in its way"),
        (("--method", "greedy", "--samples", "3"), "samples does not apply"),
        (("--seed", "-3"), "a seed must be from 0"),
        (("--errors", "guess"), "'strict' or 'replace'"),
    ],
)
def test_what_can_be_refused_is_before_anything_is_translated(
    lmlab: Command, run: Path, monkeypatch, options: tuple[str, ...], told: str
):
    monkeypatch.setattr(Translator, "translate", lambda *given: pytest.fail("translated"))
    found = lmlab("evaluate", run, *options)
    assert found.code != 0 and told in found.err and "Traceback" not in found.err


def test_without_sacrebleu_nothing_is_translated(lmlab: Command, run: Path, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *given: pytest.fail("translated"))
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    found = lmlab("evaluate", run)
    assert found.code != 0 and "pip install 'lmlab[translation]'" in found.err


def test_a_fine_tuned_run_is_judged_on_what_it_was_tuned_on(
    lmlab: Command, run: Path, tmp_path: Path
):
    """Divided as a file is, whatever its own seed: of 40 rows 2 are held out twice."""
    rows = tmp_path / "rows.jsonl"
    words = [" ".join(each) for each in product(NAMES, repeat=4)][:40]
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


def test_weights_are_kept_by_bleu_and_sources_have_their_own_words(lmlab: Command, tmp_path: Path):
    """What is kept has the BLEU that the best validation had; an absurd pair is left out."""
    texts = [" ".join(each) for each in product(NAMES, repeat=4)]
    lines = [f"{text}\t{' '.join(map(NAMES.get, text.split()))}" for text in texts]
    lines += ["eins\t" + "one " * 30] * 9
    data, out = tmp_path / "pairs.tsv", tmp_path / "run"
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = ("select_by=bleu", "max_length_ratio=4", "learning_rate=0.1", "evaluate_every=5")
    options = ("--size", "tiny", "--steps", 25, "--source-tokenizer", "word", "--set", *settings)
    trained = lmlab("train", "seq2seq", "--data", data, "--out", out, *options)
    assert trained.code == 0 and "training pairs exceed the maximum length ratio" in trained.err
    told = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    scores = [each["bleu"] for each in told if "bleu" in each]
    assert len(scores) == 5 and len(set(scores)) > 1
    greedily = ("--method", "greedy", "--split", "validation", "--metric", "bleu", "--json")
    (judged,) = json.loads(lmlab("evaluate", out, *greedily).out)["scores"]
    assert judged["score"] == pytest.approx(max(scores))
    config = json.loads((out / "config.json").read_text())
    assert config["source_vocabulary"]["size"] == 5 + 3 == config["vocabulary"]["size"]


def test_what_looks_nowhere_is_not_drawn(lmlab: Command, pairs: Path, tmp_path: Path, monkeypatch):
    data, out = f"parallel:de-en:{pairs}", tmp_path / "run"
    train("seq2seq", data=data, out=out, size="tiny", steps=1, quiet=True)
    monkeypatch.setattr(Translator, "_chunk", lambda *given: pytest.fail("translated"))
    found = lmlab("translate", out, "--text", "eins", "--draw", tmp_path / "pictures")
    assert found.code != 0 and "has no attention over source positions" in found.err


def test_unequal_files_and_unknown_languages_are_told(lmlab: Command, run: Path, tmp_path: Path):
    for name, text in {"test.de": "eins\nzwei\n", "test.en": "one\n", "train.de": "eins\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "train.en").write_text("one\n", encoding="utf-8")
    uneven = lmlab("evaluate", run, "--data", f"parallel:de-en:{tmp_path}")
    assert uneven.code != 0 and "as many lines" in uneven.err
    unknown = lmlab("evaluate", run, "--data", f"parallel:de-fr:{tmp_path}")
    assert unknown.code != 0 and "train*.fr" in unknown.err
