from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.tensor_files import read_tensors
from lmlab.training.fitters import FITTERS, accumulate_expected_counts, fit_by_em
from lmlab.training.loop import FitJob
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

MakeJob = Callable[..., FitJob]
Losses = Callable[[Path], list[dict[str, Any]]]


def unigram_entropy(path: Path) -> float:
    """Nats per token of the frequencies of a file's own words, the ends of its lines included."""
    words = [word for line in path.read_text().splitlines() for word in (*line.split(), "</s>")]
    counts = Counter(words)
    return -sum(n * math.log(n / len(words)) for n in counts.values()) / len(words)


def test_fitters_cover_every_fitting_method() -> None:
    assert sorted(FITTERS) == ["cooccurrence", "counting", "em", "gradient", "words"]


def test_em_on_unigram_mixture_reaches_unigram_entropy(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    result = train(
        "independent", data=corpus, out=tmp_path / "run", size="tiny", epochs=50, quiet=True
    )
    losses = [line["loss"] for line in read_losses(result.path) if line["event"] == "train"]
    assert result.reason == "early"
    # Never up, but for the last digit of single precision once it has converged.
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(losses))
    assert losses[-1] == pytest.approx(unigram_entropy(corpus / "train.txt"), abs=1e-5)


def test_resumed_em_equals_uninterrupted_em(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    options: dict[str, Any] = {"data": corpus, "quiet": True}
    whole = train("independent", out=tmp_path / "whole", size="tiny", epochs=2, **options)
    train("independent", out=tmp_path / "run", size="tiny", epochs=1, **options)
    resumed = train("independent", out=tmp_path / "run", epochs=2, resume=True, **options)
    assert read_losses(resumed.path) == read_losses(whole.path)
    ours, theirs = (read_tensors(r.path / "model.safetensors") for r in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = train("independent", out=tmp_path / "run", resume=True, **options)
    assert again.reason == "nothing"


def test_expected_counts_sum_over_batches(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
) -> None:
    class Counting(bigram):  # type: ignore[misc]
        def expect(self, batch: Batch) -> dict[str, Tensor]:
            return {"tokens": torch.tensor(batch.count, dtype=torch.float32)}

        def maximise(self, counts: dict[str, Tensor]) -> None:
            raise NotImplementedError

    counts = accumulate_expected_counts(make_job(system=Counting()))
    assert counts["tokens"].dtype == torch.float64
    assert counts["tokens"].item() == sum(batch.count for batch in batches)


def test_em_asserts_that_likelihood_does_not_fall(make_job: MakeJob, bigram: Any) -> None:
    class Worse(bigram):  # type: ignore[misc]
        def expect(self, batch: Batch) -> dict[str, Tensor]:
            return {}

        def maximise(self, counts: dict[str, Tensor]) -> None:
            with torch.no_grad():
                self.table[:, 0] += 1.0  # towards padding, which is never right

    with pytest.raises(AssertionError, match="EM went from"):
        fit_by_em(make_job(system=Worse(), epochs=5))


def test_counting_is_deterministic_and_beats_unigram_entropy(
    corpus: Path, tmp_path: Path, read_losses: Losses
) -> None:
    runs = [
        train("ngram", data=corpus, out=tmp_path / name, size="tiny", quiet=True)
        for name in ("a", "b")
    ]
    first, second = (read_tensors(run.path / "model.safetensors") for run in runs)
    assert sorted(first) == sorted(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_losses(runs[0].path) == read_losses(runs[1].path)
    assert runs[0].loss is not None
    assert runs[0].loss < unigram_entropy(corpus / "valid.txt")
    again = train("ngram", data=corpus, out=tmp_path / "a", resume=True, quiet=True)
    assert again.reason == "nothing"
    assert load_run(tmp_path / "a").card.fitting == "counting"


def test_loaded_count_tables_reproduce_validation_loss(corpus: Path, tmp_path: Path) -> None:
    result = train("ngram", data=corpus, out=tmp_path / "run", size="tiny", quiet=True)
    model = load_run(result.path)
    start, end = model.tokenizer.vocabulary.start, model.tokenizer.vocabulary.end
    lines = (corpus / "valid.txt").read_text().splitlines()
    batch = Batch.collate([[start, *model.tokenizer.encode(t), end] for t in lines], 0)
    total = model.system.log_prob(batch).totals.sum().item()  # type: ignore[operator]
    assert result.loss == pytest.approx(-total / batch.count, rel=1e-5)
