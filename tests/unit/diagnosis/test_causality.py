"""Causality reports: causal systems pass, injected leaks are found with their place and size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.diagnosis.causality import CausalityReport, matrix_lines
from lmlab.diagnosis.causality_probe import probe_system, random_tokens
from lmlab.diagnosis.examination_figures import write_causality_figure
from lmlab.training.system_building import build_tiny

LETTERS = " abcdefghijklmnopqrstuvwxyz.#"
TEXT = "the cat sat"
SIZES = (1e-4, 1e-2)
"""Injected effects in nats."""
VOCABULARY = Vocabulary(size=20)
NOT_PROBED = {
    "dpr": "compares a text with documents, and has none",
    "glove": "has vectors and no predictions",
    "vit": "predicts no tokens",
}


def letter_tokenizer() -> SimpleNamespace:
    return SimpleNamespace(
        vocab_size=len(LETTERS),
        encode=lambda text: [LETTERS.index(letter) for letter in text],
        decode=lambda ids: "".join(LETTERS[id] for id in ids),
    )


class Bigram(nn.Module):
    """Logits of the next letter from the last one, plus an injected leak.

    `leak` maps ids (B, T) to what is added to the logit of letter 5 at each position, (B, T).
    """

    def __init__(self, leak: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(len(LETTERS), len(LETTERS), generator=generator))
        self.leak = leak

    def forward(self, ids: Tensor) -> Tensor:
        extra = F.one_hot(torch.tensor(5), len(LETTERS))
        return self.table[ids] + self.leak(ids)[..., None] * extra


def examine(leak: Callable[[Tensor], Tensor], text: str = TEXT) -> CausalityReport:
    model = lmlab.wrap(Bigram(leak), letter_tokenizer(), end=".", allow_leaks=True)
    report = lmlab.doctor(model, text=text).causality
    assert report is not None
    return report


def added(ids: Tensor, input_position: int, amount: Tensor | float) -> Tensor:
    """(B, T) an amount at one position, if there is such a position; 0 elsewhere."""
    extra = torch.zeros(ids.shape)
    extra[:, input_position : input_position + 1] = torch.as_tensor(amount).reshape(-1, 1)
    return extra


def expected_effect(last_letter: str, size: float) -> float:
    """Largest change of a log-probability in float64, when the logit of letter 5 moves by `size`.

    The mask and padding tokens do not exist here, so all letters can be predicted.
    """
    table = Bigram(lambda ids: torch.zeros(ids.shape)).table.detach().double()
    before = table[LETTERS.index(last_letter)]
    after = before.clone()
    after[5] += size
    return float((after.log_softmax(0) - before.log_softmax(0)).abs().max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("source", "predicted"), [(3, 1), (10, 1), (10, 9), (7, 4), (5, 5)])
def test_leak_of_a_later_token_is_found(source: int, predicted: int, size: float) -> None:
    """The token at position `source`, or the predicted one itself; positions from 1."""
    letter = LETTERS.index(TEXT[source - 1])

    def leak(ids: Tensor) -> Tensor:
        if ids.shape[1] <= source:
            return torch.zeros(ids.shape)
        return added(ids, predicted - 1, size * (ids[:, source] == letter))

    report = examine(leak)
    assert report.tolerance < SIZES[0] and report.verdict == "leaks"
    [found] = report.leaks
    assert (found.source_position, found.predicted_position) == (source, predicted)
    assert found.cause == ("later token" if source > predicted else "predicted token")
    previous = "." if predicted == 1 else TEXT[predicted - 2]
    assert found.nats == pytest.approx(expected_effect(previous, size), rel=0.03)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("predicted", [1, 6, 11])
def test_leak_of_padding_is_found(predicted: int, size: float) -> None:
    """A module that knows the padded length."""
    report = examine(lambda ids: added(ids, predicted - 1, size * (ids.shape[1] > len(TEXT))))
    assert {leak.cause for leak in report.leaks} == {"padding"}
    assert {leak.predicted_position for leak in report.leaks} == {predicted}
    assert len(report.leaks) == len(report.paddings)
    previous = "." if predicted == 1 else TEXT[predicted - 2]
    assert report.leaks[0].nats == pytest.approx(expected_effect(previous, size), rel=0.03)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("source", "predicted"), [(1, 1), (4, 9), (10, 2)])
def test_leak_of_a_neighbour_is_found(source: int, predicted: int, size: float) -> None:
    """The token at position `source` of the other row of the batch."""
    vocabulary = Vocabulary(
        size=len(LETTERS) + 1, pad=len(LETTERS), unknown=None, start=None, end=27, mask=None
    )
    letter = random_tokens(vocabulary, len(TEXT), seed=2)[source - 1]

    def leak(ids: Tensor) -> Tensor:
        if len(ids) != 2 or ids.shape[1] <= source:
            return torch.zeros(ids.shape)
        return added(ids, predicted - 1, size * (ids.flip(0)[:, source] == letter))

    report = examine(leak)
    assert {leak.cause for leak in report.leaks} == {"neighbour"}
    assert {leak.predicted_position for leak in report.leaks} == {predicted}
    assert {leak.source_position for leak in report.leaks} == {1, source + 1}  # 1: its presence
    previous = "." if predicted == 1 else TEXT[predicted - 2]
    assert report.leaks[0].nats == pytest.approx(expected_effect(previous, size), rel=0.03)


def test_module_without_leak_is_causal() -> None:
    report = examine(lambda ids: torch.zeros(ids.shape))
    assert (report.verdict, report.leaks, report.noise) == ("causal", (), 0.0)
    # Each prediction depends on the token before it and on nothing else.
    seen = {
        (row + 1, column + 1)
        for row, effects in enumerate(report.token_effects)
        for column, nats in enumerate(effects)
        if nats is not None and nats > report.tolerance
    }
    assert seen == {(position, position + 1) for position in range(1, len(TEXT))}


def test_random_module_is_unstable() -> None:
    report = examine(lambda ids: torch.rand(ids.shape))
    assert report.verdict == "unstable" and report.noise > 0.01
    assert "something random" in report.summary[0]


# Systems of the zoo -------------------------------------------------------------------------------


def probe(system: System, name: str) -> CausalityReport:
    conditional = catalogue()[name].conditional and catalogue()[name].kind == "exact"
    source = [2, 7, 8, 9, 3] if conditional else None
    return probe_system(system, random_tokens(VOCABULARY, 8), name=name, source=source)


@pytest.mark.parametrize("name", sorted(set(catalogue()) - set(NOT_PROBED)))
def test_zoo_system_depends_on_what_it_may(name: str) -> None:
    """Exact ones on earlier tokens alone; none on padding or a neighbour."""
    report = probe(build_tiny(name, VOCABULARY), name)
    assert report.leaks == (), report.summary
    assert report.noise == 0
    if report.kind == "exact":
        assert report.left_to_right and report.verdict == "causal"


@pytest.mark.parametrize("name", sorted(NOT_PROBED))
def test_system_without_predictions_is_refused(name: str) -> None:
    with pytest.raises(UserError):
        probe(build_tiny(name, VOCABULARY), name)


@pytest.mark.parametrize("name", ["bert", "electra", "star-transformer"])
def test_bidirectional_system_is_reported_as_such(name: str) -> None:
    report = probe(build_tiny(name, VOCABULARY), name)
    assert report.verdict == "bidirectional" and report.looks_ahead > 1e-3
    assert report.summary[0].startswith("bidirectional, as scores of kind pseudo say")


@pytest.mark.parametrize("name", ["lstm", "gru-mixture"])
def test_normalisation_over_time_is_a_leak(name: str) -> None:
    """Embeddings divided by their deviation over time: later tokens and padding are seen."""
    system = build_tiny(name, VOCABULARY)
    [embedding] = [
        module
        for module in system.modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings >= VOCABULARY.size
    ][:1]
    embedding.register_forward_hook(
        lambda module, inputs, output: output / output.std(dim=1, keepdim=True)
    )
    report = probe(system, name)
    causes = {leak.cause for leak in report.leaks}
    assert {"later token", "padding"} <= causes and "neighbour" not in causes
    assert {leak.predicted_position for leak in report.leaks} >= set(range(1, 8))


# What users see -----------------------------------------------------------------------------------


def leaking_model() -> lmlab.LanguageModel:
    def over_time(ids: Tensor) -> Tensor:
        return ids.float().mean(dim=1, keepdim=True).expand(ids.shape)

    return lmlab.wrap(
        Bigram(over_time), letter_tokenizer(), end=".", allow_leaks=True, name="leaky"
    )


def test_scores_of_a_leaking_module_say_so() -> None:
    with pytest.raises(UserError, match=r"not causal.* with allow_leaks=True to examine it\.$"):
        lmlab.wrap(leaking_model().system.backbone.module, letter_tokenizer(), end=".")
    model = leaking_model()
    [score] = model.score([TEXT])
    assert (score.kind, model.card.kind) == ("pseudo", "pseudo")
    assert score.convention.order == "left to right, with later tokens seen"
    with pytest.raises(UserError, match="perplexity needs a score of kind exact"):
        _ = model.summary([TEXT]).perplexity
    with pytest.raises(UserError, match="whose predictions see both sides anyway"):
        lmlab.wrap(
            Bigram(lambda ids: torch.zeros(ids.shape)),
            letter_tokenizer(),
            kind="masked",
            mask="#",
            end=".",
            allow_leaks=True,
        )


def test_leak_is_a_serious_finding() -> None:
    examination = lmlab.doctor(leaking_model(), text=TEXT)
    [finding] = examination.findings
    assert (finding.name, finding.severity) == ("leak", "serious")
    assert not examination.healthy and examination.checks == ("causality",)
    assert "over the dimension of time" in finding.suggestions[0]
    record = json.loads(json.dumps(examination.as_dict()))
    assert record["causality"]["verdict"] == "leaks"
    assert record["causality"]["leaks"][0]["nats"] == finding.numbers["largest effect"]


def test_matrix_as_text_and_figure(tmp_path: Path) -> None:
    report = lmlab.doctor(leaking_model(), text=TEXT).causality
    assert report is not None
    lines = list(matrix_lines(report))
    rows = {line.split()[0]: line for line in lines[1:12]}
    assert rows["3"].split()[2:] == ["!", "!", "!", *"+" * 8]
    assert rows["4"].split()[3:] == [*"!!!!", *"+" * 7]  # ' ' is quoted
    assert rows["11"].split()[2:] == ["·"] * 11  # nothing reads the last token
    assert [line.split()[0] for line in lines[12:]] == ["1", "1", "4", "4"]  # padding
    svg, png = write_causality_figure(report, tmp_path / "new")
    for word in ("another token at a position", "padding after the text", "3 e", "its presence"):
        assert word in svg.read_text(encoding="utf-8")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_doctor_refuses_what_does_not_apply() -> None:
    with pytest.raises(UserError, match="data= applies to runs"):
        lmlab.doctor(leaking_model(), data="grammar")
    with pytest.raises(UserError, match="at least 2 tokens"):
        lmlab.doctor(leaking_model(), text="a")
