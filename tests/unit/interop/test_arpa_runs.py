"""Import and export of runs as ARPA files."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.interop.arpa import export_arpa, import_arpa
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

LINES = ["the cat sat", "the dog sat", "a cat ran", "the cat ran away", "a dog sat down"] * 5


@pytest.fixture
def run(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    train("ngram", data=tmp_path / "corpus.txt", out=tmp_path / "run", size="tiny", quiet=True)
    return tmp_path / "run"


def total(model, text: str) -> float:
    ids = [model.system.vocabulary.start, *model.tokenizer.encode(text), 3]
    with torch.no_grad():
        return model.system.log_prob(Batch.collate([ids], pad=0)).totals.item()


def test_exported_and_reimported_run_has_equal_scores(run, tmp_path):
    export_arpa(run, tmp_path / "model.arpa.gz")
    back = import_arpa(tmp_path / "model.arpa.gz", tmp_path / "back")
    before = load_run(run)
    for text in ("the cat sat", "a dog ran away", "unseen words here", ""):
        # ARPA files hold about seven digits.
        assert total(back, text) == pytest.approx(total(before, text), abs=1e-4)


def test_unsupported_export_and_existing_run_are_refused(run, tmp_path):
    train(
        "independent", data=tmp_path / "corpus.txt", out=tmp_path / "other", size="tiny", quiet=True
    )
    with pytest.raises(UserError, match="systems that have them: ngram"):
        export_arpa(tmp_path / "other", tmp_path / "model.arpa")
    export_arpa(run, tmp_path / "model.arpa")
    with pytest.raises(UserError, match="already holds a run"):
        import_arpa(tmp_path / "model.arpa", run)
