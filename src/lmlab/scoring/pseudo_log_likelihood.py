"""Masked-LM scores of texts: pseudo-log-likelihood, raw logits, within-word, several masks at once.

| method | masked for token t | its score |
|---|---|---|
| `simple` | nothing | logit |
| `raw` | t | logit (Goyal et al. 2022) |
| `norm` | t | log-softmax (Salazar et al. 2020) |
| `within-word` | t and the later tokens of its word | log-softmax (Kauf and Ivanova 2023) |
| `k-mask` | all positions of `masked` at once | log-softmax |
| `raw-k-mask` | all positions of `masked` at once | logit |

`norm` is the pseudo-log-likelihood, also called `pll`; `within-word` is PLL-word-l2r, also called
`pll-within-word`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import Fill, LMHead, Logits, require
from lmlab.core.score import ScoreKind
from lmlab.core.system_protocols import SystemInfo
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.masking.pseudo_likelihood import (
    MAX_TOKENS_AT_ONCE,
    MaskedCopies,
    ScoreMasked,
    mask_each,
    mask_together,
    score_masked_copies,
    scored_positions,
)

MaskedMethod = Literal["simple", "raw", "norm", "within-word", "k-mask", "raw-k-mask"]
MASKED_METHODS: tuple[MaskedMethod, ...] = get_args(MaskedMethod)
METHOD_ALIASES: dict[str, MaskedMethod] = {"pll": "norm", "pll-within-word": "within-word"}
"""Method names of the literature: PLL (Salazar et al. 2020), PLL-word-l2r (Kauf and Ivanova
2023)."""
UNNORMALISED: frozenset[str] = frozenset({"simple", "raw", "raw-k-mask"})
"""Methods whose scores are logits, known only up to an unknown constant."""


def masked_score_kind(method: str) -> ScoreKind:
    """The score kind of a method: never a log-probability of the whole text."""
    return "unnormalised" if method in UNNORMALISED else "pseudo"


def masked_token_scores(
    system: SystemInfo,
    batch: Batch,
    *,
    method: str,
    head: LMHead = "own",
    scored: Tensor | None = None,
    masked: Tensor | None = None,
    words: Tensor | None = None,
    tokens_at_once: int = MAX_TOKENS_AT_ONCE,
) -> Tensor:
    """Masked-LM scores (B, T) of the tokens, 0 at positions that are not scored.

    `scored` (B, T) selects the positions to score; default: all but position 0 and the end token.
    `masked` (B, T) are those masked by the k-mask methods, default `scored`; a scored position not
    among them is visible. `words` (B, T) are word indices for within-word. `head` none takes the
    inner product of the last hidden state with the token's embedding instead of the model's own
    logits, and its log-softmax where the method is normalised.

    `norm`, `within-word` and `k-mask` need `Fill`, all else `Logits`. No pass has more than
    `tokens_at_once` tokens (or one text), padding included. Cost: a forward pass per scored
    position; one in all for simple and the k-mask methods. No gradients.
    """
    method = METHOD_ALIASES.get(method, method)
    if method not in MASKED_METHODS:
        raise unknown_name(
            "method of scoring masked models", method, (*MASKED_METHODS, *METHOD_ALIASES)
        )
    if scored is None:
        scored = scored_positions(batch, system.vocabulary)
    masked = scored if masked is None else masked
    scores_visible = "k-mask" in method and bool((scored & ~masked).any())
    score_fn = _score_function(system, method, head, scores_visible=scores_visible)
    copies = _copies(method, scored, masked, words)
    with evaluation_mode(system):
        return score_masked_copies(score_fn, batch, copies, tokens_at_once=tokens_at_once)


def _copies(method: str, scored: Tensor, masked: Tensor, words: Tensor | None) -> MaskedCopies:
    if method == "simple":
        return mask_together(scored, masked=None)
    if "k-mask" in method:
        return mask_together(scored, masked=masked)
    if method != "within-word":
        return mask_each(scored)
    if words is None:
        raise UserError("within-word masks the rest of a word, and no words were given.")
    return mask_each(scored, words)


def _score_function(
    system: SystemInfo, method: str, head: LMHead, *, scores_visible: bool
) -> ScoreMasked:
    """The scoring function of a method; `scores_visible` where unmasked positions are scored."""
    use = f"the method {method}" + (" without a head" if head == "none" else "")
    if method in UNNORMALISED:
        return _with_head(logit_at, require(system, Logits, use), head)
    if head == "none" or scores_visible:
        return _with_head(_normalised_logit_at, require(system, Logits, use), head)
    filler = require(system, Fill, use)
    return lambda batch, masked, targets: log_prob_at(filler, batch, masked, targets)


def _with_head(score_fn: Callable[..., Tensor], system: Logits, head: LMHead) -> ScoreMasked:
    return lambda batch, masked, targets: score_fn(system, batch, masked, targets, head=head)


def log_prob_at(system: Fill, batch: Batch, masked: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities (N,) of the tokens at `targets` (B, T), a subset of `masked`."""
    if isinstance(system, MaskedLM):
        return system.log_prob_at(batch, masked, targets)
    log_probs = system.fill(batch, masked).log_probs[targets[masked]]
    return _token_values(log_probs, batch.tokens[targets])


def logit_at(
    system: Logits, batch: Batch, masked: Tensor, targets: Tensor, *, head: LMHead = "own"
) -> Tensor:
    """Logits (N,) of the tokens at `targets` (B, T), with the positions `masked` (B, T) masked."""
    if isinstance(system, MaskedLM):
        return system.logit_at(batch, masked, targets, head=head)
    return _token_values(system.logits(batch, masked, targets, head=head), batch.tokens[targets])


def _normalised_logit_at(
    system: Logits, batch: Batch, masked: Tensor, targets: Tensor, *, head: LMHead
) -> Tensor:
    logits = system.logits(batch, masked, targets, head=head)
    return _token_values(torch.log_softmax(logits, dim=-1), batch.tokens[targets])


def _token_values(values: Tensor, tokens: Tensor) -> Tensor:
    """Gather (N,): the entry of one token (N,) in each row of (N, V)."""
    return values.gather(-1, tokens[:, None]).squeeze(-1)
