"""Wrapper for third-party models: a torch module and its tokeniser, scored like a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
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
    WrappedMaskedLM,
    WrappedModel,
    extract_logits,
)
from lmlab.training.run_folder import TrainedModel

PROBE_TOKENS = 8
"""Maximum number of tokens in a probe."""
PROBE_REPLACEMENTS = 3
"""Number of replacement tokens tried."""
CAUSALITY_TOLERANCE, PADDING_TOLERANCE = 1e-4, 1e-5
"""Relative tolerance (to the largest score) for equal scores: between rows of one batch, where a
false alarm rejects a model; and with and without padding, where it costs only time.
"""


def check_module(
    reading: ModuleBackbone, vocabulary: Vocabulary, *, kind: str, longest: int | None
) -> int:
    """Check shapes, finiteness and causality of a module; returns its number of output ids.

    Sets `reading.supports_padding`, measured: whether right padding leaves scores unchanged.
    """
    with evaluation_mode(reading):
        tokens = _some_tokens(reading, vocabulary, longest)
        size = _check_scores(reading, tokens)
        _check_sight(reading, tokens, vocabulary, kind)
        reading.supports_padding = _may_pad(reading, tokens)
    return size


def _some_tokens(reading: ModuleBackbone, vocabulary: Vocabulary, longest: int | None) -> Tensor:
    """(1, T) ordinary ids, sampled uniformly."""
    symbols = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    able = [id for id in range(reading.width) if id not in symbols] or list(range(reading.width))
    generator = torch.Generator().manual_seed(0)
    places = PROBE_TOKENS if longest is None else min(PROBE_TOKENS, longest)
    drawn = torch.randint(len(able), (1, places), generator=generator)
    return torch.tensor(able)[drawn].to(device_of(reading))


def _first_answer(reading: ModuleBackbone, tokens: Tensor) -> tuple[Tensor, UserError | None]:
    """(1, T, V) logits of the ids; after an IndexError those of ids 0, with the error.

    An embedding too small for the tokeniser fails this way, but its size is still known.
    """
    shape, lengths, failure = tuple(tokens.shape), _lengths(tokens), None
    try:
        return extract_logits(reading.call(tokens, lengths), shape), None
    except UserError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
        failure = error
    try:
        return extract_logits(reading.call(torch.zeros_like(tokens), lengths), shape), failure
    except UserError:
        raise failure from failure.__cause__


def _check_scores(reading: ModuleBackbone, tokens: Tensor) -> int:
    """Number of output ids; must cover the tokeniser, with finite scores."""
    found, failure = _first_answer(reading, tokens)
    size = found.shape[-1]
    if size < reading.width:
        raise UserError(
            f"the tokeniser has {reading.width} tokens, but the module outputs scores for {size}; "
            "use the tokeniser that it was trained with."
        )
    if failure is not None:
        raise failure
    scores = found[..., : reading.width].float()
    if bool(scores.isnan().any() | (scores == torch.inf).any()) or not bool(
        scores.isfinite().any(-1).all()
    ):
        raise UserError(
            "the module outputs scores that are not finite; check its weights and its "
            "evaluation mode."
        )
    return size


def _check_sight(
    reading: ModuleBackbone, tokens: Tensor, vocabulary: Vocabulary, kind: str
) -> None:
    """Attention check: a causal module must not see the future, a masked one sees both sides."""
    if tokens.shape[1] < 2:
        return
    ahead = _moves(reading, tokens, changed=tokens.shape[1] - 1)
    if kind == "causal" and bool(ahead[:-1].any()):
        place = int(ahead[:-1].nonzero()[0])
        raise UserError(
            f"the module is not causal: changing the token at position {tokens.shape[1]} changes "
            f"the scores at position {place + 1}, which must not attend to it; wrap it with "
            "kind='masked', or fix its attention mask."
        )
    if kind == "masked" and not bool(ahead[:-1].any()):
        back = _moves(reading, tokens, changed=0)
        if bool(back[1:].any()):
            raise UserError(
                "the module attends to the left only, but a masked model must attend to both "
                "sides; wrap it with kind='causal'."
            )


def _moves(reading: ModuleBackbone, tokens: Tensor, *, changed: int) -> Tensor:
    """(T,) bool: positions whose scores change when the token at one position is replaced."""
    rows = tokens.repeat(1 + PROBE_REPLACEMENTS, 1)
    original = int(tokens[0, changed])
    step = max(1, reading.width // (PROBE_REPLACEMENTS + 1))
    for other in range(1, PROBE_REPLACEMENTS + 1):
        rows[other, changed] = (original + other * step) % reading.width
    scores = reading.read(rows, _lengths(rows))
    return _differences(scores[1:], scores[:1]).amax((0, 2)) > _allowed(scores, CAUSALITY_TOLERANCE)


def _may_pad(reading: ModuleBackbone, tokens: Tensor) -> bool:
    """Whether the scores of a short text are unchanged when it is batched with a long one."""
    short = (tokens.shape[1] + 1) // 2
    if short == tokens.shape[1]:
        return False
    alone = reading.read(tokens[:, :short], _lengths(tokens[:, :short]))
    lengths = torch.tensor([short, tokens.shape[1]], device=tokens.device)
    together = reading.read(tokens.repeat(2, 1), lengths)[:1, :short]
    return bool(_differences(alone, together).max() <= _allowed(alone, PADDING_TOLERANCE))


def _lengths(tokens: Tensor) -> Tensor:
    return torch.full((len(tokens),), tokens.shape[1], device=tokens.device)


def _differences(one: Tensor, other: Tensor) -> Tensor:
    """|one - other|, 0 where both are infinite (impossible tokens)."""
    return (one.float() - other.float()).abs().nan_to_num(nan=0.0)


def _allowed(scores: Tensor, share: float) -> float:
    """Absolute tolerance, at least the rounding error of the dtype."""
    greatest = scores.float()[scores.isfinite()].abs().max()
    return max(share, 8 * torch.finfo(scores.dtype).eps) * float(greatest)


WRAPPER_KINDS: dict[
    str, tuple[Callable[[ModuleBackbone, Vocabulary], WrappedModel], ScoreKind, tuple[str, ...]]
] = {
    "causal": (WrappedCausalLM, "exact", ("LogProb", "Step")),
    "masked": (WrappedMaskedLM, "pseudo", ("LogProb", "Fill", "Logits")),
}
"""Kinds of modules: system, score kind and protocols of each."""
NO_TRAINING_HISTORY = (
    "{name} was not trained here, so the doctor has no training curve to examine; score, "
    "compare and inspect it instead."
)


def wrap_module(
    module: nn.Module,
    tokenizer: Any,
    *,
    kind: str = "causal",
    name: str | None = None,
    window: int | None = None,
    count_end: bool = True,
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
    if window is not None and window < 2:
        raise UserError(f"window must be at least 2 tokens, got {window}.")
    understood = adapt_tokenizer(tokenizer, kind=kind, symbols=symbols or {}, roles=roles)
    _check_symbols(understood.vocabulary, kind)
    system, notes = _system(module, understood, kind, window)
    if notes and path is None:
        warnings.warn(" ".join(notes), LmlabWarning, stacklevel=3)
    layout = Layout(end=count_end and understood.vocabulary.end is not None)
    called = name or type(module).__name__
    return TrainedModel(
        system=system,
        tokenizer=understood,  # type: ignore[arg-type]  # it does all that is asked of one
        layout=layout,
        config=_config(system, understood, layout, kind, called, notes),
        card=_card(module, kind, called),
        path=path or Path(called),
        stored=False,
    )


def _check_symbols(vocabulary: Vocabulary, kind: str) -> None:
    if kind == "masked" and vocabulary.mask is None:
        raise UserError(
            "a masked model needs a mask token, and the tokeniser declares none; give mask= as "
            "its string or id, or wrap the module with kind='causal'."
        )
    if vocabulary.start is None and vocabulary.end is None:
        raise UserError(
            "the tokeniser declares no start and no end token, and a text needs one; give "
            "start= or end= as its string or id (a newline token can be both)."
        )


def _system(
    module: nn.Module, tokenizer: AnyTokenizer, kind: str, window: int | None
) -> tuple[WrappedModel, list[str]]:
    """The module as a checked system, with notes on irregularities."""
    vocabulary, count = tokenizer.vocabulary, token_count(tokenizer)
    filler = vocabulary.pad if vocabulary.pad < count else 0
    reading = ModuleBackbone(module, count=count, filler=filler)
    longest = max_input_length(module) if window is None else window
    size = check_module(reading, vocabulary, kind=kind, longest=longest)
    notes = []
    if size > count:
        notes.append(
            f"The module outputs scores for {size} ids and the tokeniser has {count} tokens; the "
            f"last {size - count} are treated as unused."
        )
    system = WRAPPER_KINDS[kind][0](reading, vocabulary)
    if longest is not None:
        # The last token of a text is predicted but never an input, except in masked LMs.
        system.window = longest - (1 if kind == "masked" else 0)
    return system, notes


def max_input_length(module: nn.Module) -> int | None:
    """Maximum input length of the module, if its config gives one, as in transformers."""
    told = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    if not isinstance(told, int) or told < 2:
        return None
    # RoBERTa-like models offset positions by the padding id + 1.
    tables = [
        each
        for name, each in module.named_modules()
        if "position" in name and isinstance(each, nn.Embedding) and each.padding_idx is not None
    ]
    return min([told, *(each.num_embeddings - int(each.padding_idx or 0) - 1 for each in tables)])


def _card(module: nn.Module, kind: str, name: str) -> Card:
    _, score, protocols = WRAPPER_KINDS[kind]
    return Card(
        family="wrapped",
        kind=score,
        paper="",
        source="",
        protocols=protocols,
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
) -> dict[str, Any]:
    """The config.json of a corresponding run, as far as known."""
    return {
        "system": name,
        "size": "base",
        "recipe": None,
        "seed": 0,
        "system_config": {},
        "vocabulary": asdict(tokenizer.vocabulary),
        "tokenizer": tokenizer.kind,
        "tokenizer_fingerprint": tokenizer.fingerprint(),
        "layout": asdict(layout),
        # No fingerprint: the training data is unknown.
        "corpus": {"name": "", "spec": "", "fingerprint": "", "seed": 0},
        "training": {},
        "wrapped": {
            "module": type(system.backbone.module).__qualname__,
            "kind": kind,
            "pads": system.backbone.supports_padding,
            "notes": notes,
        },
    }
