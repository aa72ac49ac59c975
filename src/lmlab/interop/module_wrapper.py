"""Wrapper for third-party models: a torch module and its tokeniser, scored like a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from lmlab.core.card import Card
from lmlab.core.errors import LmlabWarning, UserError, unknown_name
from lmlab.core.score_kind import ScoreKind
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.interop.module_checks import check_module
from lmlab.interop.tokenizer_adapter import (
    AnyTokenizer,
    SpecialToken,
    adapt_tokenizer,
    token_count,
)
from lmlab.models.wrapped import (
    ModuleBackbone,
    WrappedCausalLM,
    WrappedMaskedLM,
    WrappedModel,
)
from lmlab.training.run_folder import TrainedModel

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
