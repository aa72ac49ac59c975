"""Diagnosis checks on runs that were broken on purpose: each problem is reported."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.manifests import relist

from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors, write_tensors
from lmlab.diagnosis.checks import (
    corpus_quality,
    embedding_norms,
    gradient_stability,
    latent_usage,
    learning_rate,
    training_progress,
)
from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence
from lmlab.training.train import train

Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

pytestmark = pytest.mark.xdist_group("doctor")  # share the costly fixtures


def sentences(count: int, *, seed: int, words: int = 12) -> list[str]:
    """Sentences of 6 to 9 words in which a word depends on the one before it."""
    source = random.Random(seed)
    lines = []
    for _ in range(count):
        word, line = source.randrange(words), []
        for _ in range(source.randint(6, 9)):
            line.append(f"word{word}")
            word = (word * 2 + source.choice((0, 1))) % words
        lines.append(" ".join(line))
    return lines


def corpus(folder: Path, **splits: list[str]) -> Path:
    folder.mkdir(parents=True)
    for name, lines in splits.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def trained(
    out: Path, system: str = "rnn", *, text: Path | str = "markov", **settings: Any
) -> Path:
    """A tiny run with the given budget and settings."""
    budget = {name: settings.pop(name) for name in ("epochs", "steps") if name in settings}
    train(system, data=text, out=out, size="tiny", settings=settings, quiet=True, **budget)
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy run of a few steps; tests break copies of its files."""
    folder = tmp_path_factory.mktemp("plain")
    return trained(folder / "run", steps=40, evaluate_every=10, log_every=4)


@pytest.fixture
def edited(plain: Path, tmp_path: Path) -> Callable[[Edit], RunEvidence]:
    """The plain run with edited metrics lines."""

    def edit(change: Edit) -> RunEvidence:
        run = tmp_path / "edited"
        shutil.copytree(plain, run)
        file = run / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))
        return RunEvidence(run)

    return edit


def require_finding(finding: Finding | None, name: str) -> Finding:
    """Assert that there is a finding of this name, with an explanation and suggestions."""
    assert finding is not None
    assert finding.name == name
    assert finding.why and finding.suggestions
    return finding


# Learning rate.


def test_learning_rate_100_times_too_high(tmp_path: Path) -> None:
    evidence = RunEvidence(trained(tmp_path / "run", steps=30, learning_rate=0.2, log_every=10))
    finding = require_finding(
        learning_rate.learning_rate_too_high(evidence), "learning rate too high"
    )
    # The embeddings start between -0.1 and 0.1, and the first step of Adam moves each by the rate.
    assert finding.numbers["largest step"] > 1
    assert "--set learning_rate=0.02" in finding.suggestions


def test_learning_rate_1000_times_too_low(tmp_path: Path) -> None:
    evidence = RunEvidence(trained(tmp_path / "run", steps=60, learning_rate=2e-6, log_every=10))
    finding = require_finding(
        learning_rate.learning_rate_too_low(evidence), "learning rate too low"
    )
    assert finding.numbers["usual step"] < 1e-4
    assert finding.severity == "serious"
    assert learning_rate.learning_rate_too_high(evidence) is None


def test_loss_spikes_suggest_a_lower_learning_rate(edited: Callable[[Edit], RunEvidence]) -> None:
    def jump(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"step": 50 * n, "epoch": n, "event": "train", "loss": loss, "count": 5000}
            for n, loss in enumerate((4.0, 3.0, 3.5, 2.8, 3.3, 2.7, 3.1, 2.6, 2.6, 2.5), start=1)
        ]

    finding = require_finding(
        learning_rate.learning_rate_too_high(edited(jump)), "learning rate too high"
    )
    # 3.5 after 3.0, 3.3 after 2.8, 3.1 after 2.7.
    assert finding.numbers["jumps"] == 3
    assert finding.numbers["largest rise"] == pytest.approx(0.5)


def test_linear_loss_with_small_updates_is_a_low_learning_rate(
    edited: Callable[[Edit], RunEvidence],
) -> None:
    def straight(ratio: float) -> Edit:
        return lambda lines: [
            {
                "step": 100 * n,
                "epoch": n,
                "event": "train",
                "loss": 4.0 - 0.1 * n,
                "count": 20_000,
                "learning_rate": 1e-4,
                "update_ratio": ratio,
            }
            for n in range(1, 11)
        ]

    finding = require_finding(
        learning_rate.learning_rate_too_low(edited(straight(5e-4))), "learning rate too low"
    )
    # Ten segments: from 3.9 to 3.4 in the first half, from 3.4 to 3.0 in the second.
    assert finding.numbers["fall of the first half"] == pytest.approx(0.5)
    assert finding.numbers["fall of the second half"] == pytest.approx(0.4)
    assert finding.severity == "mild"


def test_gradient_always_clipped(edited: Callable[[Edit], RunEvidence]) -> None:
    def clipped(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line | {"gradient_norm": 7.0} for line in lines]

    finding = require_finding(
        learning_rate.gradient_always_clipped(edited(clipped)), "gradient always clipped"
    )
    assert finding.numbers == {"share": 1.0, "grad_clip": 1.0, "median norm": 7.0}


# Gradients.


def test_spectral_radius_of_a_tenth_vanishes(tmp_path: Path) -> None:
    evidence = RunEvidence(trained(tmp_path / "run", steps=3, radius=0.1, text="grammar"))
    finding = require_finding(
        gradient_stability.gradient_vanishes_with_distance(evidence),
        "gradient vanishes with distance",
    )
    # tanh is nearly linear at small weights, so a step back multiplies by about the radius.
    assert finding.numbers["factor"] == pytest.approx(0.1, abs=0.05)


def test_spectral_radius_of_three_explodes(tmp_path: Path) -> None:
    settings = {"radius": 3.0, "activation": "linear", "log_every": 2}
    evidence = RunEvidence(trained(tmp_path / "run", steps=10, text="grammar", **settings))
    finding = require_finding(
        gradient_stability.gradient_explodes_with_distance(evidence),
        "gradient explodes with distance",
    )
    assert finding.numbers["factor"] == pytest.approx(3.0, rel=0.1)
    require_finding(gradient_stability.exploding_gradient(evidence), "exploding gradient")


def test_vanishing_check_needs_a_recurrent_system(tmp_path: Path) -> None:
    evidence = RunEvidence(trained(tmp_path / "run", "parent-prior", steps=2))
    with pytest.raises(NotApplicable, match="directly"):
        gradient_stability.gradient_vanishes_with_distance(evidence)


def test_layer_with_zero_weights_is_reported(plain: Path, tmp_path: Path) -> None:
    """With zero recurrent and input weights no gradient reaches the embeddings."""
    evidence = RunEvidence(
        broken_weights(plain, tmp_path, lambda name, t: t * ("fused" not in name))
    )
    assert evidence.parameter_gradients["backbone.embedding.weight"].norm == 0.0
    finding = require_finding(
        gradient_stability.vanishing_or_exploding_layers(evidence), "vanishing or exploding layers"
    )
    assert "backbone.embedding.weight" in finding.numbers


def broken_weights(
    run: Path, tmp_path: Path, change: Callable[[str, torch.Tensor], torch.Tensor]
) -> Path:
    """A copy of a run with changed weights."""
    copy = tmp_path / "broken"
    shutil.copytree(run, copy)
    tensors = read_tensors(run / "model.safetensors")
    write_tensors(
        copy / "model.safetensors", {name: change(name, tensor) for name, tensor in tensors.items()}
    )
    relist(copy)
    return copy


# Embeddings.


def zipfian_sentences(count: int, *, seed: int) -> list[str]:
    """Words with Zipfian frequencies; now and then a word is determined by the previous one."""
    source, words = random.Random(seed), 60
    weights = [(rank + 1) ** -1.3 for rank in range(words)]
    lines = []
    for _ in range(count):
        line = source.choices(range(words), weights)
        for _ in range(source.randint(4, 8)):
            called = source.random() < 0.15
            line += (
                [(line[-1] * 7 + 1) % words] if called else source.choices(range(words), weights)
            )
        lines.append(" ".join(f"w{word}" for word in line))
    return lines


def test_embedding_norms_that_encode_frequency(tmp_path: Path) -> None:
    """A healthy model's embeddings are shrunk, and one entry is set to the log frequencies.

    Unit 0 of the LSTM is made constant: gates and candidate saturate, forget gate 0, c = 1 and
    h_0 = tanh 1. With e_k0 = log n_k / tanh 1 its scores are the log frequencies, with a little of
    the context, and the norm of e_k grows with the frequency of k.
    """
    text = corpus(
        tmp_path / "text",
        train=zipfian_sentences(600, seed=0),
        valid=zipfian_sentences(100, seed=1),
    )
    run = trained(tmp_path / "run", "lstm", text=text, steps=100, learning_rate=0.02)
    healthy = RunEvidence(run)
    assert embedding_norms.embedding_norms_carry_information(healthy) is None
    stream = torch.from_numpy(healthy.texts.train.stream.astype("int64"))

    def by_length(name: str, tensor: torch.Tensor) -> torch.Tensor:
        changed, width = tensor.clone(), 16
        rows = torch.arange(4) * width  # unit 0 of input gate, forget gate, candidate, output gate
        if name == "emission.bias":
            changed.zero_()
        elif name == "emission.weight":
            counts = torch.bincount(stream, minlength=len(tensor)) + 1.0
            changed *= 0.25
            changed[:, 0] = counts.log() / torch.tanh(torch.tensor(1.0))
        elif name.endswith(("weight_ih_l0", "weight_hh_l0")):
            changed[rows] = 0.0
        elif name.endswith("bias_ih_l0"):
            changed[rows] = torch.tensor([40.0, -40.0, 40.0, 40.0])
        return changed

    evidence = RunEvidence(broken_weights(run, tmp_path, by_length))
    finding = require_finding(
        embedding_norms.embedding_norms_carry_information(evidence),
        "embedding norms carry information",
    )
    assert finding.numbers["correlation"] > 0.99
    assert finding.numbers["cost"] > finding.numbers["gain"] > 0


def test_embedding_norms_that_grow_without_improvement(
    edited: Callable[[Edit], RunEvidence],
) -> None:
    def grow(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lengths = {10: 1.0, 20: 1.1, 30: 1.6, 40: 2.2}
        losses = {10: 2.0, 20: 1.9, 30: 1.9, 40: 1.95}
        return [
            {"step": step, "epoch": 0, "event": event, "loss": losses[step], "count": 500}
            | ({"vector_norms": {"table": length}} if event == "train" else {})
            for step, length in lengths.items()
            for event in ("train", "validation")
        ]

    finding = require_finding(
        embedding_norms.embedding_norms_drift(edited(grow)), "embedding norms drift"
    )
    assert finding.numbers["growth"] == pytest.approx(2.2 / 1.1)


# Latent variables.


@pytest.mark.parametrize("name", ["divergence", "latent kl"])
def test_posterior_collapse(plain: Path, name: str) -> None:
    evidence = RunEvidence(plain)
    evidence.__dict__["captures"] = {name: torch.tensor([0.001, 0.0, 0.002, 0.004])}
    finding = require_finding(latent_usage.posterior_collapse(evidence), "posterior collapse")
    assert finding.numbers["kl"] == pytest.approx(0.007)
    evidence.__dict__["captures"] = {name: torch.tensor([0.5, 0.0, 0.3, 0.004])}
    assert latent_usage.posterior_collapse(evidence) is None


def test_posterior_collapse_of_a_trained_vae(tmp_path: Path) -> None:
    """Posterior collapse after a few steps of the ELBO: z carries no information."""
    evidence = RunEvidence(trained(tmp_path / "run", "rnn-vae", steps=30, learning_rate=0.01))
    finding = require_finding(latent_usage.posterior_collapse(evidence), "posterior collapse")
    assert finding.numbers["kl"] < 0.05


def test_unused_states_of_a_mixture(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "gru-mixture", steps=3)
    states = RunEvidence(run).captures["mixture use"].numel()
    assert latent_usage.unused_states(RunEvidence(run)) is None

    def silence(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not name.endswith("choose.bias"):
            return tensor
        silenced = tensor.clone()
        silenced[: len(tensor) // 2] = -50.0
        return silenced

    finding = require_finding(
        latent_usage.unused_states(RunEvidence(broken_weights(run, tmp_path, silence))),
        "unused states",
    )
    assert finding.numbers["unused"] == pytest.approx((states // 2) / states)


def test_latent_checks_do_not_apply_without_latents(plain: Path) -> None:
    for check in (latent_usage.posterior_collapse, latent_usage.unused_states):
        with pytest.raises(NotApplicable):
            check(RunEvidence(plain))


# Corpus.


def test_leakage_between_splits(tmp_path: Path) -> None:
    train_texts, held_out = sentences(200, seed=0, words=97), sentences(40, seed=1, words=97)
    assert not set(train_texts) & set(held_out)
    text = corpus(tmp_path / "text", train=train_texts, valid=held_out + train_texts[:10])
    evidence = RunEvidence(trained(tmp_path / "run", "ngram", text=text))
    finding = require_finding(
        corpus_quality.leakage_between_splits(evidence), "leakage between splits"
    )
    assert finding.numbers == {"share": 0.2, "texts": 10.0}
    assert corpus_quality.repeated_training_texts(evidence) is None


def test_repeated_training_texts(tmp_path: Path) -> None:
    text = corpus(
        tmp_path / "text",
        train=sentences(100, seed=0, words=97) + ["all rights are reserved here"] * 25,
        valid=sentences(20, seed=1, words=97),
    )
    evidence = RunEvidence(trained(tmp_path / "run", "ngram", text=text))
    finding = require_finding(
        corpus_quality.repeated_training_texts(evidence), "repeated training texts"
    )
    assert finding.numbers == {"share": 24 / 125, "texts": 24.0}
    assert corpus_quality.leakage_between_splits(evidence) is None


def test_synthetic_corpora_may_repeat_texts(plain: Path) -> None:
    for check in (corpus_quality.leakage_between_splits, corpus_quality.repeated_training_texts):
        with pytest.raises(NotApplicable, match="independent samples"):
            check(RunEvidence(plain))


def test_small_vocabulary_gives_many_unknown_tokens(tmp_path: Path) -> None:
    text = corpus(tmp_path / "text", train=sentences(80, seed=0), valid=sentences(20, seed=1))
    evidence = RunEvidence(trained(tmp_path / "run", "ngram", text=text, vocabulary_size=8))
    finding = require_finding(corpus_quality.many_unknown_tokens(evidence), "many unknown tokens")
    # Three of twelve words are in it; the ends of sentences are known, one in eight or nine tokens.
    assert finding.numbers["share"] == pytest.approx(0.75 * 7.5 / 8.5, abs=0.15)
    assert finding.severity == "serious"


def test_tiny_corpus_without_a_held_out_split(tmp_path: Path) -> None:
    text = tmp_path / "few.txt"
    text.write_text("\n".join(sentences(10, seed=0)) + "\n")
    evidence = RunEvidence(trained(tmp_path / "run", "ngram", text=text))
    assert (
        require_finding(corpus_quality.tiny_corpus(evidence), "tiny corpus").numbers["tokens"] < 100
    )
    require_finding(corpus_quality.nothing_held_out(evidence), "nothing held out")


# Training progress.


def test_overfitting_on_ten_sentences(tmp_path: Path) -> None:
    text = corpus(tmp_path / "text", train=sentences(10, seed=0), valid=sentences(10, seed=1))
    settings = {"learning_rate": 0.02, "log_every": 5, "evaluate_every": 5}
    evidence = RunEvidence(trained(tmp_path / "run", "lstm", text=text, steps=120, **settings))
    finding = require_finding(training_progress.overfitting(evidence), "overfitting")
    assert finding.numbers["last"] - finding.numbers["train"] > 0.5
    assert finding.numbers["last"] > finding.numbers["best"]


def test_loss_no_better_than_unigram_baseline(edited: Callable[[Edit], RunEvidence]) -> None:
    def stuck(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The ten words of the markov corpus: uniform ln 12 = 2.485, unigram 2.333."""
        return [
            {"step": 200, "epoch": 3, "event": "train", "loss": 2.4, "count": 120_000},
            {"step": 200, "epoch": 3, "event": "validation", "loss": 2.4, "count": 4728},
        ]

    evidence = edited(stuck)
    finding = require_finding(
        training_progress.nothing_learned(evidence), "no gain over the context-free baseline"
    )
    assert finding.numbers["unigram"] == pytest.approx(2.333, abs=0.001)
    band_finding = require_finding(
        training_progress.above_reference_band(evidence), "above the reference band"
    )
    assert band_finding.numbers["high"] < 2.333 < band_finding.numbers["loss"]


def test_loss_below_the_true_entropy(edited: Callable[[Edit], RunEvidence]) -> None:
    def cheating(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line | {"loss": 1.2} for line in lines]

    finding = require_finding(
        training_progress.below_true_entropy(edited(cheating)), "below the true entropy"
    )
    # The exact entropy is 1.376 nats per token; on this split it is a little higher.
    assert finding.numbers["entropy"] == pytest.approx(1.376, abs=0.05)


def test_sampled_loss_is_not_compared_with_the_true_entropy(plain: Path) -> None:
    """A residual EBM's score is an estimate, but its validation loss is a sampled loss."""
    evidence = RunEvidence(plain)
    assert evidence.unit == "nats per token" and evidence.levels
    sampled = RunEvidence(plain)
    sampled.system.validation_metric = "loss"
    assert sampled.unit == "nats per target" and sampled.reference_band is None
    with pytest.raises(NotApplicable, match="not those of a distribution"):
        training_progress.below_true_entropy(sampled)


def test_diverged_training_is_reported(edited: Callable[[Edit], RunEvidence]) -> None:
    evidence = edited(
        lambda lines: [*lines[:-4], {"step": 33, "epoch": 0, "event": "not finite", "seconds": 1.0}]
    )
    finding = require_finding(training_progress.loss_not_finite(evidence), "loss not finite")
    assert "--set learning_rate=0.0002" in finding.suggestions
    assert training_progress.stopped_early(evidence) is None


def test_interrupted_training_is_reported(edited: Callable[[Edit], RunEvidence]) -> None:
    evidence = edited(lambda lines: [line for line in lines if line["step"] <= 20])
    finding = require_finding(training_progress.stopped_early(evidence), "interrupted")
    assert finding.numbers == {"steps": 20.0, "share": 0.5}
    assert training_progress.loss_not_finite(evidence) is None


# Missing evidence.


def test_missing_metrics_fields_are_missing_evidence(edited: Callable[[Edit], RunEvidence]) -> None:
    def older(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        new = ("update_ratio", "vector_norms")
        return [{k: v for k, v in line.items() if k not in new} for line in lines]

    evidence = edited(older)
    assert learning_rate.learning_rate_too_high(evidence) is None
    for check in (learning_rate.learning_rate_too_low, embedding_norms.embedding_norms_drift):
        with pytest.raises(MissingEvidence, match="its metrics have no"):
            check(evidence)


def test_missing_weights_file(plain: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain, run)
    (run / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors is missing"):
        RunEvidence(run)
    relist(run)
    with pytest.raises(MissingEvidence, match=r"no model\.safetensors"):
        gradient_stability.vanishing_or_exploding_layers(RunEvidence(run))
    assert training_progress.stopped_early(RunEvidence(run)) is None


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run at"):
        RunEvidence(tmp_path / "nowhere")
