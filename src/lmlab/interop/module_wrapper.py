"""Wrapper for third-party torch modules: output and causality checked, then used like a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.card import Card
from lmlab.core.errors import LmlabWarning, UserError, unknown_name
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.score import ScoreKind
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.interop.tokenizer_adapter import AnyTokenizer, SpecialToken, adapt_tokenizer, token_count
from lmlab.models.wrapped import (
    ModuleBackbone,
    WrappedCausalLM,
    WrappedLookAheadLM,
    WrappedMaskedLM,
    WrappedModel,
    extract_logits,
)
from lmlab.training.config import TrainingConfig
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import TrainedModel
from lmlab.training.run_records import WrapperRecord, unknown_corpus

PROBE_TOKENS = 8
"""Maximum number of tokens in a probe."""
PROBE_REPLACEMENTS = 3
"""Number of replacement tokens tried."""
CAUSALITY_TOLERANCE, PADDING_TOLERANCE = 1e-4, 1e-5
"""Relative tolerance (to the largest score) for equal scores: between rows of one batch, where a
false alarm rejects a model; and with and without padding, where it costs only time.
"""


def check_module(
    backbone: ModuleBackbone,
    vocabulary: Vocabulary,
    *,
    kind: str,
    max_length: int | None,
    allow_leaks: bool = False,
) -> tuple[int, bool]:
    """Check shapes, finiteness and causality of a module, which may see ahead with `allow_leaks`.

    Returns its number of output ids, and whether right padding leaves scores unchanged.
    """
    with evaluation_mode(backbone):
        tokens = _probe_tokens(backbone, vocabulary, max_length)
        size = _check_scores(backbone, tokens)
        if not allow_leaks:
            _check_attention(backbone, tokens, vocabulary, kind)
        return size, _padding_is_exact(backbone, tokens)


def _probe_tokens(backbone: ModuleBackbone, vocabulary: Vocabulary, limit: int | None) -> Tensor:
    """(1, T) ordinary ids, sampled uniformly."""
    special = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    ordinary = [id for id in range(backbone.width) if id not in special] or list(
        range(backbone.width)
    )
    generator = torch.Generator().manual_seed(0)
    length = PROBE_TOKENS if limit is None else min(PROBE_TOKENS, limit)
    indices = torch.randint(len(ordinary), (1, length), generator=generator)
    return torch.tensor(ordinary)[indices].to(device_of(backbone))


def _probe_logits(backbone: ModuleBackbone, tokens: Tensor) -> tuple[Tensor, UserError | None]:
    """(1, T, V) logits of the ids; after an IndexError those of ids 0, with the error.

    An embedding too small for the tokenizer fails this way, but its size is still known.
    """
    shape, lengths, failure = tuple(tokens.shape), _lengths(tokens), None
    try:
        return extract_logits(backbone.call(tokens, lengths), shape), None
    except UserError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
        failure = error
    try:
        return extract_logits(backbone.call(torch.zeros_like(tokens), lengths), shape), failure
    except UserError:
        raise failure from failure.__cause__


def _check_scores(backbone: ModuleBackbone, tokens: Tensor) -> int:
    """Number of output ids; must cover the tokenizer, with finite scores."""
    logits, failure = _probe_logits(backbone, tokens)
    size = logits.shape[-1]
    if size < backbone.width:
        raise UserError(
            f"the tokenizer has {backbone.width} tokens, but the module outputs scores for {size}; "
            "use the tokenizer that it was trained with."
        )
    if failure is not None:
        raise failure
    scores = logits[..., : backbone.width].float()
    if bool(scores.isnan().any() | (scores == torch.inf).any()) or not bool(
        scores.isfinite().any(-1).all()
    ):
        raise UserError(
            "the module outputs scores that are not finite; check its weights and its "
            "evaluation mode."
        )
    return size


def _check_attention(
    backbone: ModuleBackbone, tokens: Tensor, vocabulary: Vocabulary, kind: str
) -> None:
    """Attention check: a causal module must not see the future, a masked one sees both sides."""
    if tokens.shape[1] < 2:
        return
    right_effect = _changed_positions(backbone, tokens, changed=tokens.shape[1] - 1)
    if kind == "causal" and bool(right_effect[:-1].any()):
        position = int(right_effect[:-1].nonzero()[0])
        raise UserError(
            f"the module is not causal: changing the token at position {tokens.shape[1]} changes "
            f"the scores at position {position + 1}, which must not attend to it; fix its "
            "attention mask, wrap it with kind='masked', or with allow_leaks=True to examine it."
        )
    if kind == "masked" and not bool(right_effect[:-1].any()):
        left_effect = _changed_positions(backbone, tokens, changed=0)
        if bool(left_effect[1:].any()):
            raise UserError(
                "the module attends to the left only, but a masked model must attend to both "
                "sides; wrap it with kind='causal'."
            )


def _changed_positions(backbone: ModuleBackbone, tokens: Tensor, *, changed: int) -> Tensor:
    """(T,) bool: positions whose scores change when the token at one position is replaced."""
    rows = tokens.repeat(1 + PROBE_REPLACEMENTS, 1)
    original = int(tokens[0, changed])
    step = max(1, backbone.width // (PROBE_REPLACEMENTS + 1))
    for row in range(1, PROBE_REPLACEMENTS + 1):
        rows[row, changed] = (original + row * step) % backbone.width
    scores = backbone.read(rows, _lengths(rows))
    return _differences(scores[1:], scores[:1]).amax((0, 2)) > _tolerance(
        scores, CAUSALITY_TOLERANCE
    )


def _padding_is_exact(backbone: ModuleBackbone, tokens: Tensor) -> bool:
    """Whether the scores of a short text are unchanged when it is batched with a long one."""
    short = (tokens.shape[1] + 1) // 2
    if short == tokens.shape[1]:
        return False
    unpadded = backbone.read(tokens[:, :short], _lengths(tokens[:, :short]))
    lengths = torch.tensor([short, tokens.shape[1]], device=tokens.device)
    padded = backbone.read(tokens.repeat(2, 1), lengths)[:1, :short]
    return bool(_differences(unpadded, padded).max() <= _tolerance(unpadded, PADDING_TOLERANCE))


def _lengths(tokens: Tensor) -> Tensor:
    return torch.full((len(tokens),), tokens.shape[1], device=tokens.device)


def _differences(first: Tensor, second: Tensor) -> Tensor:
    """|one - other|, 0 where both are infinite (impossible tokens)."""
    return (first.float() - second.float()).abs().nan_to_num(nan=0.0)


def _tolerance(scores: Tensor, share: float) -> float:
    """Absolute tolerance, at least the rounding error of the dtype."""
    greatest = scores.float()[scores.isfinite()].abs().max()
    return max(share, 8 * torch.finfo(scores.dtype).eps) * float(greatest)


WRAPPER_KINDS: dict[str, tuple[str, ...]] = {
    "causal": ("LogProb", "Step"),
    "masked": ("LogProb", "Fill", "Logits"),
}
"""Kinds of modules, and the protocols of each."""


def wrap_module(
    module: nn.Module,
    tokenizer: Any,
    *,
    kind: str = "causal",
    name: str | None = None,
    window: int | None = None,
    count_end: bool = True,
    allow_leaks: bool = False,
    symbols: Mapping[str, SpecialToken] | None = None,
    roles: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> TrainedModel:
    """Implementation of `lmlab.wrap`; `path` is where the model was loaded from, if anywhere.

    The module is neither copied nor changed: later training affects later scores.
    """
    if kind not in WRAPPER_KINDS:
        raise unknown_name("kind of module", kind, WRAPPER_KINDS)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"a model to wrap must be a torch module, got {type(module).__name__}; give the "
            "nn.Module whose forward maps ids to logits."
        )
    if allow_leaks and kind != "causal":
        raise UserError(
            f"allow_leaks=True applies to kind='causal', got kind={kind!r}, whose predictions see "
            "both sides anyway; remove it."
        )
    if window is not None and window < 2:
        raise UserError(f"window must be at least 2 tokens, got {window}.")
    adapted = adapt_tokenizer(tokenizer, kind=kind, special_tokens=symbols or {}, roles=roles)
    _check_special_tokens(adapted.vocabulary, kind)
    system, notes = _system(module, adapted, kind, window, allow_leaks)
    if notes and path is None:
        warnings.warn(" ".join(notes), LmlabWarning, stacklevel=3)
    layout = Layout(end=count_end and adapted.vocabulary.end is not None)
    model_name = name or type(module).__name__
    return TrainedModel(
        system=system,
        tokenizer=adapted,  # type: ignore[arg-type]  # it does all that is asked of one
        layout=layout,
        config=_config(system, adapted, layout, kind, model_name, notes),
        card=_card(module, kind, model_name, system.objective.kind),
        path=path or Path(model_name),
        stored=False,
    )


def _check_special_tokens(vocabulary: Vocabulary, kind: str) -> None:
    if kind == "masked" and vocabulary.mask is None:
        raise UserError(
            "a masked model needs a mask token, and the tokenizer declares none; give mask= as "
            "its string or id, or wrap the module with kind='causal'."
        )
    if vocabulary.start is None and vocabulary.end is None:
        raise UserError(
            "the tokenizer declares no start and no end token, and a text needs one; give "
            "start= or end= as its string or id (a newline token can be both)."
        )


def _system(
    module: nn.Module, tokenizer: AnyTokenizer, kind: str, window: int | None, allow_leaks: bool
) -> tuple[WrappedModel, list[str]]:
    """The module as a checked system, with notes on irregularities."""
    vocabulary, count = tokenizer.vocabulary, token_count(tokenizer)
    filler = vocabulary.pad if vocabulary.pad < count else 0
    make_backbone = partial(ModuleBackbone, module, count=count, padding_id=filler)
    max_length = max_input_length(module) if window is None else window
    size, pads = check_module(
        make_backbone(), vocabulary, kind=kind, max_length=max_length, allow_leaks=allow_leaks
    )
    notes = []
    if size > count:
        notes.append(
            f"The module outputs scores for {size} ids and the tokenizer has {count} tokens; the "
            f"last {size - count} are treated as unused."
        )
    backbone = make_backbone(supports_padding=pads, max_positions=max_length)
    if kind == "masked":
        return WrappedMaskedLM(backbone, vocabulary), notes
    make = WrappedLookAheadLM if allow_leaks else WrappedCausalLM
    return make(backbone, vocabulary), notes


def max_input_length(module: nn.Module) -> int | None:
    """Maximum input length of the module, if its config gives one, as in transformers."""
    limit = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 2:
        return None
    # RoBERTa-like models offset positions by the padding id + 1.
    tables = [
        table
        for name, table in module.named_modules()
        if "position" in name and isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    return min(
        [limit, *(table.num_embeddings - int(table.padding_idx or 0) - 1 for table in tables)]
    )


def _card(module: nn.Module, kind: str, name: str, score: ScoreKind) -> Card:
    return Card(
        family="wrapped",
        kind=score,
        paper="",
        source="",
        protocols=WRAPPER_KINDS[kind],
        objectives=("masked",) if kind == "masked" else ("next-token",),
        name=name,
        summary=f"{type(module).__name__}: an external {kind} module.",
    )


def _config(
    system: WrappedModel,
    tokenizer: AnyTokenizer,
    layout: Layout,
    kind: str,
    name: str,
    notes: list[str],
) -> RunConfig:
    """The config of a corresponding run, as far as known."""
    return RunConfig(
        system=name,
        size="base",
        system_config={},
        vocabulary=tokenizer.vocabulary,
        tokenizer=tokenizer.kind,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        layout=layout,
        corpus=unknown_corpus(),
        training=TrainingConfig(),
        wrapped=WrapperRecord(
            module=type(system.backbone.module).__qualname__,
            kind=kind,
            pads=system.backbone.supports_padding,
            notes=tuple(notes),
        ),
    )
