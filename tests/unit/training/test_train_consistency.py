"""Validation loss equals the scorer's result; a run keeps its own tokenizer."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from tests.manifests import relist

from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.scoring.scorer import Scorer
from lmlab.training.run_folder import load_run
from lmlab.training.train import train


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for split, count in {"train": 60, "valid": 20, "test": 5}.items():
        lines = [" ".join(generator.choice(list("abcd"), size=6)) for _ in range(count)]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["lstm", "ngram"])
@pytest.mark.parametrize("layout", ["", "contiguous:"])
def test_validation_loss_equals_the_scorer(folder, layout, name):
    spec = f"{layout}{folder}"
    budget = {"epochs": 2} if name == "lstm" else {}
    result = train(name, data=spec, out=folder / "run", size="tiny", quiet=True, **budget)
    model = load_run(folder / "run")
    texts = [example.text for example in open_corpus(spec).splits["validation"]]
    scores = list(Scorer(model.system, model.tokenizer, model.layout).score(texts))
    scored = -sum(score.total for score in scores) / sum(score.tokens for score in scores)
    assert result.best == pytest.approx(scored, abs=1e-5)


def test_replaced_tokenizer_file_is_detected(folder):
    train("ngram", data=str(folder), out=folder / "one", quiet=True)
    train("ngram", data=str(folder), out=folder / "two", tokenizer="char", quiet=True)
    shutil.copy(folder / "two" / "tokenizer.json", folder / "one" / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer.json is not what was written"):
        load_run(folder / "one")
    relist(folder / "one")
    with pytest.raises(UserError, match="not the one that the run was trained with"):
        load_run(folder / "one")


def test_unconditional_model_rejects_parallel_corpus(tmp_path):
    pairs = "\n".join(f"ein {i}\tone {i}" for i in range(30))
    (tmp_path / "pairs.tsv").write_text(pairs + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="takes no source texts"):
        train("lstm", data=tmp_path / "pairs.tsv", out=tmp_path / "run", quiet=True)


def test_snapshots_equal_a_run_stopped_after_that_epoch(folder):
    """A constant learning rate, so that three epochs begin with a run of one."""
    options = {"data": folder, "size": "tiny", "quiet": True}
    settings = {"snapshot_epochs": "1,3"}
    whole = train("lstm", out=folder / "run", epochs=3, settings=settings, **options)
    short = train("lstm", out=folder / "short", epochs=1, **options)
    assert [path.name for path in sorted((whole.path / "epochs").iterdir())] == ["1", "3"]
    texts = [example.text for example in open_corpus(str(folder)).splits["test"]]

    def totals(path):
        model = load_run(path)
        return [s.total for s in Scorer(model.system, model.tokenizer, model.layout).score(texts)]

    assert totals(whole.path / "epochs" / "1") == totals(short.path) != totals(whole.path)
