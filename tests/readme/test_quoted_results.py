"""Numbers quoted in the docs equal those of their benchmark records and of docs/notes.md."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def record(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in ("benchmarks", "benchmarks/notes"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module(name)


def cells(text: str, first: str) -> list[str]:
    """The cells of the only table row whose first cell is `first`."""
    [row] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_quoted_eleven_sentence_scores_match_records(monkeypatch) -> None:
    eleven, text = benchmark("eleven", monkeypatch), page("energies.md")
    measured = record("eleven.json")["in order"]
    for head, row in (("own", "the model's own head"), ("none", "no head")):
        expected = [f"{measured[f'{method}, head {head}']:.2f}" for method in eleven.SCORERS]
        assert cells(text, row) == expected
    # Computed by hand: how many of the (true, false) sentence pairs are ranked correctly.
    pairs = [(0, 1), (0, 2), (3, 10), (4, 5), (4, 6), (4, 10), (8, 7), (8, 9)]
    right = [
        sum(scores[true] > scores[false] for true, false in pairs)
        for scores in eleven.PUBLISHED_SCORES.values()
    ]
    assert right == [8, 7, 7, 6]
    quoted = [f"{count / 8 + 1e-9:.2f} ({count} of 8)" for count in right]
    assert cells(text, "the notes' scores: bert-base-chinese, no head") == quoted


def test_quoted_class_partition_entropy_matches_record(monkeypatch) -> None:
    partition, text = benchmark("partition", monkeypatch), page("notes.md")
    result = record("notes-partition.json")
    balanced = result["nats per token within a class"]["balanced"]
    quoted = re.search(
        r"leaves ([\d.]+) nats per token within a class on the training split and ([\d.]+) on", text
    )
    assert quoted is not None and result["states"] == 400 and result["vocabulary"] == 10_215
    assert quoted.groups() == (f"{balanced['train']:.2f}", f"{balanced['held out']:.2f}")
    # H(word | class) = H(word) - H(class), and no word is lost.
    counts = np.random.default_rng(0).zipf(1.5, 300).clip(max=10_000)
    classes = partition.balanced(counts, 20)
    masses = np.bincount(classes, weights=counts, minlength=20)
    assert len(set(classes)) == 20

    def entropy(weights: np.ndarray) -> float:
        shares = weights / weights.sum()
        return float(-(shares * np.log(shares)).sum())

    expected = entropy(counts.astype(float)) - entropy(masses)
    assert partition.class_conditional_entropy(classes, counts, counts) == pytest.approx(expected)


def test_quoted_gated_cell_losses_are_per_epoch() -> None:
    text = " ".join(page("notes.md").split())
    [table] = re.findall(r"<!-- table cells -->(.*)<!-- end of cells -->", page("notes.md"), re.S)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if re.match(r"\| DLM4[67] ", line)
    ]
    twenty, thirty = ([float(row[at]) for row in rows if row[at]] for at in (2, 3))
    assert len(twenty) == 20 and len(thirty) == 15
    for losses, epoch in ((twenty, 20), (thirty, 30)):
        assert f"{min(losses):.3f} to {max(losses):.3f} at epoch {epoch}" in text
    assert f"({min(thirty):.3f} at epoch 30, {min(twenty):.3f} at epoch 20)" in text
    # The epoch from which a plain LSTM stays below the best of them.
    since = []
    for seed in range(3):
        held_out = record(f"quality/multi30k-l20.lstm.tuned.seed{seed}.json")["held_out"]
        since.append(
            max(measured["epoch"] for measured in held_out if measured["loss"] >= min(thirty)) + 1
        )
    assert sorted(since) == [10, 11, 11]
    assert f"below {min(thirty):.3f} from epoch 10 on (one seed) or 11 (two)" in text


def test_quoted_cost_of_sparse_attention_matches_record(monkeypatch) -> None:
    sparse, text = benchmark("sparse_attention", monkeypatch), page("pretraining.md")
    records = record("sparse_attention.json")
    by_kind = {
        kind: {entry["length"]: entry for entry in records if entry["kind"] == kind}
        for kind in sparse.KINDS
    }
    for kind, measured in by_kind.items():
        longest = max(measured)
        at = "" if longest == 16384 else f" at {longest:,}"
        seconds = [
            f"{measured[length]['seconds']:.2f}" if length in measured else ""
            for length in (1024, 4096, 16384)
        ]
        assert cells(text, kind) == [
            *seconds,
            f"{sparse.exponent(records, kind, 'seconds'):.2f}",
            f"{measured[longest]['mebibytes']:,.0f}{at}",
            f"{sparse.exponent(records, kind, 'mebibytes'):.2f}",
            f"{measured[longest]['cache_kibibytes']:,.0f}{at}",
        ]
    dense, window = by_kind["dense"], by_kind["window:64"]
    assert round(dense[16384]["seconds"] / window[16384]["seconds"]) == 8
    assert all(window[length]["seconds"] < dense[length]["seconds"] for length in dense)


def test_quoted_accuracy_of_cloze_and_head_matches_record(monkeypatch) -> None:
    cloze, text = benchmark("cloze", monkeypatch), page("tasks.md")
    records = record("cloze.json")
    for examples in cloze.EXAMPLES:
        expected = [
            cloze.mean_and_half_range(
                [
                    100 * entry["accuracy"]
                    for entry in records
                    if (entry["task"], entry["examples"]) == (task, examples)
                ],
                1,
            )
            for task in cloze.TASKS
        ]
        assert cells(text, str(examples)) == expected
    assert {entry["majority"] for entry in records} == {0.689}


def test_quoted_claims_match_records() -> None:
    text = page("notes.md")

    def rows(name: str, **where: Any) -> list[dict[str, Any]]:
        stored = record(f"claims/{name}.json")["records"]
        return sorted((r for r in stored if where.items() <= r.items()), key=lambda r: r["seed"])

    def quoted(values: list[float], digits: int = 3) -> str:
        return ", ".join(f"{value:.{digits}f}" for value in values)

    [nce] = [line for line in text.splitlines() if line.startswith("| NCE leads to the counts")]
    for loss in ("maximum likelihood", "nce 25", "nce 1"):
        assert quoted([r["p(是|我)"] for r in rows("nce-four-sentences", loss=loss)]) in nce
    assert max(r["p(else|我)"] for r in rows("nce-four-sentences")) < 0.0035

    [counts] = [line for line in text.splitlines() if line.startswith("| with single masks")]
    single = rows("single-mask-counts", rate=0.01, steps=1500)
    for key in ("to the counts", "to the language", "counts to the language"):
        assert quoted([r[key] for r in single]) in counts

    [ambiguity] = [line for line in text.splitlines() if line.startswith("| an ambiguity")]
    for parts in (1, 2):
        means = [
            np.mean([r["KL"] for r in rows("expectation-mixture", **fields)])
            for fields in (
                {"model": "expectation", "parts": parts, "width": width} for width in (2, 4, 8, 16)
            )
        ]
        assert quoted([float(mean) for mean in means], 2) in ambiguity


def test_quoted_table_of_distillation_is_that_of_the_record(monkeypatch) -> None:
    distillation = benchmark("distillation", monkeypatch)
    records = record(distillation.SHORT.record)
    assert len(records) == len(distillation.SYSTEMS) * (1 + 3 * len(distillation.METHODS))
    assert distillation.table(records) in page("distillation.md")


def test_quoted_alignment_of_xlm_is_that_of_the_records() -> None:
    text = page("translation.md")
    for variant, label in (
        ("untrained", "untrained"),
        ("mlm", "`translation_share=0`, 6 epochs"),
        ("mlm+tlm", "`translation_share=0.5`, 4 epochs, which show as many tokens"),
    ):
        layers = record(f"xlm/{variant}.epochs6.seed0.json")["retrieval"]
        figures = " | ".join(f"{100 * layer['centred de-en']:.1f}" for layer in layers)
        assert f"| {label} | {figures} |" in text
