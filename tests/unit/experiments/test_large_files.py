"""Large files: chunks of whole lines, the same bytes by any number of processes, resumed kills."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.limits import set_limit
from lmlab.core.locks import lock_folder
from lmlab.experiments.large_files import run_file as run_file_module
from lmlab.experiments.large_files.text_chunks import chunk_lines, plan_chunks

WORDS = ("the", "dog", "cat", "sleeps", "sees", "mary")


def plan(content: bytes, size: int, errors: Any = "strict") -> Any:
    return plan_chunks(io.BytesIO(content), "f.txt", chunk_bytes=size, errors=errors)


def text_of(lines: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    sentences = (" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(lines))
    return "".join(f"{sentence}\n" for sentence in sentences)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for system in ("ngram", "gru", "hmm"):
        lmlab.train(system, data="grammar", out=folder / system, size="tiny", steps=2, quiet=True)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(text_of(120))
    return path


def test_chunks_are_whole_lines_that_cover_the_file() -> None:
    rng = random.Random(1)
    for _ in range(60):
        lines = ["é" * rng.randint(0, 12) + "x" for _ in range(rng.randint(1, 20))]
        content = "\n".join(lines).encode() + b"\n" * rng.randint(0, 1)
        size = rng.randint(1, 60)
        planned = plan(content, size)
        starts = [chunk.start for chunk in planned.chunks]
        ends = [chunk.end for chunk in planned.chunks]
        assert starts == [0, *ends[:-1]] and ends[-1] == len(content)
        assert planned.lines == len(lines)
        for chunk in planned.chunks:
            assert chunk.first_line == content.count(b"\n", 0, chunk.start) + 1
            assert content[chunk.start - 1 : chunk.start] in (b"", b"\n")
            last_line = content[chunk.start : chunk.end - 1].rpartition(b"\n")[2]
            assert len(last_line) < chunk.end - chunk.start <= size + len(last_line)
        assert [
            (number, line)
            for chunk in planned.chunks
            for number, line in chunk_lines(io.BytesIO(content), chunk, "f.txt")
        ] == list(enumerate(io.BytesIO(content), 1))


def test_chunks_do_not_depend_on_the_blocks_they_are_read_in(monkeypatch) -> None:
    content = text_of(200).encode()
    whole = plan(content, 100)
    for block in (1, 7, 100, 999):
        monkeypatch.setattr("lmlab.experiments.large_files.text_chunks.BLOCK_BYTES", block)
        assert plan(content, 100) == whole


def test_a_bad_byte_or_a_long_line_is_found_before_any_work(monkeypatch) -> None:
    content = "ab\nœ\n".encode() + b"c\xffd\ne\n"
    for block in (1, 2, 3, 1 << 20):
        monkeypatch.setattr("lmlab.experiments.large_files.text_chunks.BLOCK_BYTES", block)
        with pytest.raises(UserError, match=r"f.txt, line 3: byte 0xff is not UTF-8"):
            plan(content, 4)
        assert plan(content, 4, "replace").lines == 4
    with pytest.raises(UserError, match=r"line 2: byte 0xc3"):
        plan(b"a\n\xc3", 4)
    set_limit("line", 10)
    try:
        with pytest.raises(UserError, match=r"f.txt, line 2: the bytes of a line must be at most"):
            plan(b"abc\n" + b"x" * 11 + b"\n", 4)
        assert plan(b"abc\n" + b"x" * 9 + b"\n", 4).lines == 2
    finally:
        set_limit("line", None)
    for empty in (b"", b"\n \n"):
        with pytest.raises(UserError, match="holds no text"):
            plan(empty, 4)


def test_any_number_of_processes_writes_the_same_bytes(runs, text, tmp_path) -> None:
    """And the rows are the scores of each chunk's lines alone."""
    models = [runs["ngram"], runs["gru"]]
    outputs = {}
    for jobs in (1, 3):
        out = tmp_path / f"{jobs}.jsonl"
        result = lmlab.score_file(models, text, out, jobs=jobs, chunk_bytes=500)
        assert (result.finished, result.texts, result.rows) == (True, 120, 240)
        assert result.chunks > 3 and result.resumed == 0
        outputs[jobs] = out.read_bytes()
    assert outputs[1] == outputs[3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*("1.jsonl", "3.jsonl", "text.txt")]
    rows = [json.loads(line) for line in outputs[1].splitlines()]
    assert [(row["line"], row["model"]) for row in rows] == [
        (line, name) for line in range(1, 121) for name in ("ngram", "gru")
    ]
    texts = text.read_text().splitlines()
    expected = lmlab.load(runs["gru"]).score(texts, carry=False)
    totals = [row["log_prob"] for row in rows if row["model"] == "gru"]
    assert totals == pytest.approx([score.total for score in expected], abs=1e-4)
    assert result.summaries["gru"].total == pytest.approx(sum(totals))
    assert result.summaries["gru"].tokens == sum(score.tokens for score in expected)


def test_formats_hold_the_same_rows(runs, text, tmp_path) -> None:
    lmlab.encode_file(runs["gru"], text, tmp_path / "v.jsonl", chunk_bytes=900)
    lmlab.encode_file(runs["gru"], text, tmp_path / "shards.npy", chunk_bytes=900)
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").open()]
    index = [json.loads(line) for line in (tmp_path / "shards.jsonl").open()]
    arrays = {row["shard"]: np.load(tmp_path / row["shard"]) for row in index}
    assert len(arrays) > 2 and list(arrays) == sorted(arrays)
    assert [row["line"] for row in index] == [row["line"] for row in rows] == [*range(1, 121)]
    stored = np.stack([arrays[row["shard"]][row["row"]] for row in index])
    assert np.array_equal(stored, np.array([row["vector"] for row in rows], dtype=np.float32))
    encoded = lmlab.load(runs["gru"]).encode([row["text"] for row in rows])
    assert np.abs(stored - np.stack([each.vector for each in encoded])).max() < 1e-5
    lmlab.score_file([runs["ngram"]], text, tmp_path / "words.csv", per_word=True)
    written = lmlab.score([runs["ngram"]], text.read_text().splitlines())
    with (tmp_path / "expected.csv").open("w") as file:
        written.write_csv(file)
    assert (tmp_path / "words.csv").read_text() == (tmp_path / "expected.csv").read_text()


def test_masks_are_filled_with_samples_that_differ_by_chunk(runs, tmp_path) -> None:
    file = tmp_path / "masks.txt"
    file.write_text("the <mask> sleeps\n" * 40)
    lmlab.fill_file(runs["hmm"], file, tmp_path / "best.jsonl", chunk_bytes=200, top=2)
    rows = [json.loads(line) for line in (tmp_path / "best.jsonl").open()]
    assert [(row["line"], row["rank"]) for row in rows] == [
        (line, rank) for line in range(1, 41) for rank in (1, 2)
    ]
    [filled] = lmlab.load(runs["hmm"]).fill(["the <mask> sleeps"], top=2)
    assert {row["answer"] for row in rows} == {option.text for option in filled.masks[0].options}
    sampled = {"joint": True, "sample": True, "top": 1, "chunk_bytes": 200}
    lmlab.fill_file(runs["hmm"], file, tmp_path / "a.jsonl", seed=1, **sampled)
    lmlab.fill_file(runs["hmm"], file, tmp_path / "b.jsonl", seed=1, **sampled)
    answers = [json.loads(line)["answer"] for line in (tmp_path / "a.jsonl").open()]
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert answers[:12] != answers[12:24]
    file.write_text("the <mask> sleeps\nno mask\n")
    with pytest.raises(UserError, match="line 2: "):
        lmlab.fill_file(runs["hmm"], file, tmp_path / "c.jsonl")


KILLED = """
import os, signal, sys, lmlab

def kill(what, done, of):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)

lmlab.score_file(sys.argv[1:2], *sys.argv[2:], jobs=2, chunk_bytes=400, report=kill)
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is no signal there")
def test_a_killed_command_continues(runs, tmp_path) -> None:
    """A process is killed while its workers work; the same call makes the missing parts alone."""
    text, out = tmp_path / "text.txt", tmp_path / "out.csv"
    text.write_text(text_of(300))
    command = [sys.executable, "-c", KILLED, str(runs["ngram"]), str(text), str(out)]
    killed = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL
    parts = Path(f"{out}.parts")
    assert not out.exists() and len([*parts.glob("part-*.csv")]) >= 3
    result = lmlab.score_file([runs["ngram"]], text, out, chunk_bytes=400)
    assert 3 <= result.resumed < result.chunks and result.texts == 300
    assert not parts.exists()
    whole = tmp_path / "whole.csv"
    lmlab.score_file([runs["ngram"]], text, whole, chunk_bytes=400)
    assert out.read_bytes() == whole.read_bytes()


@pytest.fixture
def interrupted(runs, text, tmp_path, monkeypatch) -> Path:
    """An output whose parts are made and not joined, as after a kill."""
    out = tmp_path / "out.jsonl"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_file_module.PartRecord, "read", killed)
        with pytest.raises(KeyboardInterrupt):
            lmlab.score_file([runs["ngram"]], text, out, chunk_bytes=900)
    assert not out.exists()
    return out


def test_other_options_and_a_changed_input_are_refused(interrupted, runs, text) -> None:
    ngram, before = runs["ngram"], text.read_text()
    with pytest.raises(UserError, match=r"begun with other options: chunk-bytes differs \(900, "):
        lmlab.score_file([ngram], text, interrupted, chunk_bytes=901)
    with pytest.raises(UserError, match=r"mean differs \(False, now True\)"):
        lmlab.score_file([ngram], text, interrupted, chunk_bytes=900, mean=True)
    with pytest.raises(UserError, match="models differs"):
        lmlab.score_file([runs["gru"]], text, interrupted, chunk_bytes=900)
    text.write_text(before.replace("dog", "cow", 1))
    with pytest.raises(UserError, match="has changed since"):
        lmlab.score_file([ngram], text, interrupted, chunk_bytes=900)
    text.write_text(before)  # another time, the same content
    result = lmlab.score_file([ngram], text, interrupted, chunk_bytes=900)
    assert result.resumed == result.chunks


def test_an_output_is_written_by_one_command_and_never_replaced(runs, text, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    with (
        lock_folder(Path(f"{out}.parts"), adjacent=True),
        pytest.raises(UserError, match="written by another lmlab process"),
    ):
        lmlab.score_file([runs["ngram"]], text, out)
    lmlab.score_file([runs["ngram"]], text, out)
    with pytest.raises(UserError, match="already exists; remove it"):
        lmlab.score_file([runs["ngram"]], text, out)


def test_a_full_disk_keeps_the_finished_parts(runs, text, tmp_path, monkeypatch) -> None:
    from lmlab.experiments.large_files import chunk_tasks

    out, write = tmp_path / "out.jsonl", chunk_tasks.write_part

    def full(job: Any, number: int, chunk: Any) -> None:
        if number == 2:
            raise UserError("the disk is full.")
        write(job, number, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(chunk_tasks, "write_part", full)
        with pytest.raises(
            UserError,
            match=r"text.txt, chunk from line \d+: .*disk is full; 2 of \d chunks are finished in",
        ):
            lmlab.score_file([runs["ngram"]], text, out, chunk_bytes=900)
    assert lmlab.score_file([runs["ngram"]], text, out, chunk_bytes=900).resumed == 2


def test_urls_and_packed_files(runs, text, tmp_path) -> None:
    import fsspec

    plain, packed = tmp_path / "plain.jsonl", tmp_path / "text.txt.gz"
    lmlab.score_file([runs["ngram"]], text, plain, chunk_bytes=900)
    packed.write_bytes(gzip.compress(text.read_bytes()))
    lmlab.score_file([runs["ngram"]], packed, tmp_path / "packed.jsonl", chunk_bytes=900)
    assert (tmp_path / "packed.jsonl").read_bytes() == plain.read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe("/large/text.txt", text.read_bytes())
    places = "memory://large/text.txt", "memory://large/out.jsonl"
    with pytest.raises(UserError, match="memory of this process alone; use --jobs 1"):
        lmlab.score_file([runs["ngram"]], *places, jobs=2)
    lmlab.score_file([runs["ngram"]], *places, chunk_bytes=900)
    assert memory.cat("/large/out.jsonl") == plain.read_bytes()
    assert not memory.exists("/large/out.jsonl.parts")
    lmlab.score_file([runs["ngram"]], f"file://{text}", f"file://{tmp_path}/url.jsonl")
    assert (tmp_path / "url.jsonl").exists()
    with pytest.raises(UserError, match="there is no such file"):
        lmlab.score_file([runs["ngram"]], "memory://none.txt", tmp_path / "none.jsonl")
    (tmp_path / "cut.txt.gz").write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(UserError, match="damaged or cut short"):
        lmlab.score_file([runs["ngram"]], tmp_path / "cut.txt.gz", tmp_path / "cut.jsonl")


def test_rows_of_json_lines_are_checked_before_any_work(runs, tmp_path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "the dog"}\n' * 50 + "{broken\n")
    with pytest.raises(UserError, match="line 51: expected a JSON object"):
        lmlab.score_file([runs["ngram"]], file, tmp_path / "out.csv", chunk_bytes=100)
    result = lmlab.score_file([runs["ngram"]], file, tmp_path / "lenient.csv", errors="replace")
    assert result.texts == 50
