"""The message of a failed check names the property and the position."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.protocols import LogProbs

from .claims import claim_close, claim_mass, claim_same, claim_sampled, claim_unchanged
from .test_conformance import check_no_future_leak


class Peeking:
    """The log-probability of the token at position 3 depends on the one at position 4."""

    def log_prob(self, batch: Batch, **_: object) -> LogProbs:
        per_token = -torch.cumsum(batch.tokens[:, 1:].float(), 1)
        per_token[:, 2] -= batch.tokens[:, 4]
        return LogProbs(per_token=per_token, kind="exact")


def test_leak_of_the_next_token_is_located() -> None:
    batch = Batch.collate([[2, 5, 6, 5, 6, 5, 3]], pad=0)
    specimen = SimpleNamespace(name="gpt", system=Peeking())
    with pytest.raises(AssertionError) as failed:
        check_no_future_leak(specimen, batch)
    assert str(failed.value) == (
        "position 3 depends on position 4, which it must not see: its log-probability was -22 and "
        "is -21 with another token there."
    )


ONES = torch.ones(2, 3)
CLAIMS: dict[str, tuple[Callable[[], None], str]] = {
    "close": (
        lambda: claim_close(
            ONES + torch.tensor([[0, 0, 0], [0, 0, 0.5]]),
            ONES,
            "scored together",
            atol=1e-5,
            axes=("text", "position"),
        ),
        "scored together: at text 1, position 2 expected 1, got 1.5 (1 of 6 differ).",
    ),
    "same": (
        lambda: claim_same(ONES[0] * 2, ONES[0], "loaded", first=1),
        "loaded: at position 1 expected 1, got 2 (3 of 3 differ).",
    ),
    "not a number": (
        lambda: claim_same(ONES[0] * torch.nan, ONES[0], "loaded"),
        "loaded: at position 0 expected 1, got nan (3 of 3 differ).",
    ),
    "shape": (
        lambda: claim_close(ONES[0], ONES, "scored", atol=1.0),
        "scored: expected shape (2, 3), got (3,)",
    ),
    "hidden": (
        lambda: claim_unchanged(torch.zeros(3), ONES[0], torch.tensor([False, True, True]), 2),
        "position 1 depends on position 2, which it must not see: its log-probability was 1 and is "
        "0 with another token there.",
    ),
    "mass": (
        lambda: claim_mass(0.9, 1234, exact=True),
        "probabilities sum to 0.9 over 1,234 sequences, expected 1.",
    ),
    "bound": (
        lambda: claim_mass(1.1, 10, exact=False),
        "probabilities sum to 1.1 over 10 sequences, expected at most 1.",
    ),
    "sampled": (
        lambda: claim_sampled({"a": 90, "b": 10}, {"a": 0.5, "b": 0.5}, 1e-9),
        "100 samples do not follow the scored probabilities (chi-square p = 1e-09): a was expected "
        "50.0 times and came 90 times.",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_failed_claim_message(name: str) -> None:
    claim, sentence = CLAIMS[name]
    with pytest.raises(AssertionError) as failed:
        claim()
    assert str(failed.value) == sentence


def test_true_claims_pass() -> None:
    claim_close(ONES + 1e-6, ONES, "scored", atol=1e-5)
    claim_same(ONES, ONES.clone(), "loaded")
    claim_unchanged(torch.zeros(3), ONES[0], torch.zeros(3, dtype=torch.bool), 2)
    claim_mass(1.0, 10, exact=True)
    claim_mass(0.5, 10, exact=False)
