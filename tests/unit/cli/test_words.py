"""`lmlab words` on a file and on a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmlab.training.train import train

from .conftest import Command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "v.txt"
    path.write_text("4 2\nking 2 1\nqueen 2 -1\nman 0 1\nwoman 0.1 -1\n")
    return path


def test_nearest_and_analogy(lmlab: Command, file: Path):
    output = json.loads(lmlab("words", file, "nearest", "king", "-k", "1", "--json").out)
    assert output == [{"word": "queen", "cosine": pytest.approx(0.6)}]
    assert "woman" in lmlab("words", file, "analogy", "king", "queen", "man", "-k", "1").out


def test_similarity_of_two_words_and_of_a_pairs_file(lmlab: Command, file: Path, tmp_path: Path):
    assert lmlab("words", file, "similarity", "king", "queen").out == "0.6000\n"
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("king\tqueen\t9\nking\tman\t5\nqueen\tman\t1\nking\telf\t2\n")
    output = json.loads(lmlab("words", file, "similarity", pairs, "--json").out)
    assert (output["pairs"], output["left_out"]) == (3, 1)
    # Cosines 0.6, 0.447, -0.447: the same order.
    assert output["spearman"] == pytest.approx(1.0)


def test_exported_vectors_give_the_same_neighbours(lmlab: Command, tmp_path: Path):
    corpus = tmp_path / "c.txt"
    corpus.write_text("a b c d\n" * 40)
    train("ngram", data=str(corpus), out=tmp_path / "counts", quiet=True)
    settings = {"fitting": "gradient", "min_count": 1}
    run = tmp_path / "run"
    train("cbow", data=str(corpus), out=run, size="tiny", settings=settings, steps=2, quiet=True)
    assert "4 words of dimension 8" in lmlab("words", run, "export", tmp_path / "v.bin").out
    ours = lmlab("words", run, "nearest", "a").out
    assert ours == lmlab("words", tmp_path / "v.bin", "nearest", "a").out
    result = lmlab("words", tmp_path / "counts", "nearest", "a")
    assert (
        result.code == 2
        and "no vector for each of its tokens" in result.err
        and "cbow" in result.err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nearest", "kin"), "did you mean 'king'"),
        (("nearst", "king"), "did you mean 'nearest'"),
        (("analogy", "king"), "analogy takes three words"),
        (("export", "v.json"), ".txt"),
        (("similarity", "nothing.tsv"), "cannot read the pairs"),
    ],
)
def test_usage_errors_are_one_sentence(
    lmlab: Command, file: Path, arguments: tuple[str, ...], message: str
):
    result = lmlab("words", file, *arguments)
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1
