"""Layer activations of one sentence: captured values by layer, a token label for every position."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.system import System
from lmlab.core.view import View
from lmlab.inspection.inspected_models import (
    InspectedModel,
    NamesSpecialTokens,
    TokenizedSentence,
    TokenNames,
    collate_sentences,
)

LAYER_NAME_PATTERN = re.compile(r"(?P<where>.*?) ?layer (?P<layer>\d+) (?P<what>.+)")
"""Names of per-layer captures: `decoder layer 3 source attention`."""
SEEDS = 4
"""Seeds tried for a random mask."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerActivations:
    """One activation in every layer."""

    where: str
    """encoder, decoder, query, or empty."""
    what: str
    layers: tuple[int, ...]
    captures: tuple[Capture, ...]

    @property
    def name(self) -> str:
        """Human-readable name."""
        return f"{self.where} {self.what}".strip()

    @property
    def axes(self) -> tuple[str, ...]:
        return self.captures[0].axes


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceActivations:
    """A sentence, its view and its captures."""

    sentence: TokenizedSentence
    view: View
    names: TokenNames
    captures: Mapping[str, Capture]

    def series(self) -> list[LayerActivations]:
        """The captures that exist per layer."""
        return group_by_layer(self.captures)

    def words(self, series: LayerActivations, axis: str, entries: int) -> tuple[str, ...]:
        """A label for each entry of an axis: its own name, the input token, or a number."""
        entry_names = series.captures[0].names.get(axis)
        if entry_names is not None:
            return entry_names
        if axis not in ("time", "source"):
            return tuple(str(entry + 1) for entry in range(entries))
        of_source = axis == "source" and series.what.startswith("source")
        words = stack_input_words(self.view, "encoder" if of_source else series.where, self.names)
        if len(words) > entries:
            return words[len(words) - entries :] if axis == "source" else words[:entries]
        # Positions before the inputs are added by the network: memory tokens, a relay node.
        return ("·",) * (entries - len(words)) + words


def stack_input_words(view: View, stack: str, names: TokenNames) -> tuple[str, ...]:
    """Input tokens of the encoder, the decoder, or the only stack."""
    if view.decoder is None or stack == "encoder":
        return input_words(view, names)
    decoder_words = input_words(view.decoder, names)
    if stack == "decoder":
        return decoder_words
    # Image and text in one stack: the first token, the patches, the other tokens.
    return (*decoder_words[:1], *input_words(view, names), *decoder_words[1:])


def input_words(view: View, names: TokenNames) -> tuple[str, ...]:
    """The input token at each position of the first row."""
    length = int(view.lengths[0])
    if view.inputs.ndim != 2:
        return tuple(f"patch {patch + 1}" for patch in range(length))
    return tuple(names.name(id) for id in view.inputs[0, :length].tolist())


def group_by_layer(captures: Mapping[str, Capture]) -> list[LayerActivations]:
    """Per-layer captures, in the order of their first layer."""
    groups: dict[tuple[str, str], list[tuple[int, Capture]]] = {}
    for name, capture in captures.items():
        match = LAYER_NAME_PATTERN.fullmatch(name)
        if match is not None:
            key = (match["where"].strip(), match["what"])
            groups.setdefault(key, []).append((int(match["layer"]), capture))
    return [
        LayerActivations(
            where=where,
            what=what,
            layers=tuple(layer for layer, _ in pairs),
            captures=tuple(capture for _, capture in pairs),
        )
        for (where, what), pairs in groups.items()
    ]


def has_attention_layers(captures: Mapping[str, Capture]) -> bool:
    """Whether the captures come from a network with attention layers."""
    return any("head" in capture.axes for capture in captures.values())


def captures_without_layers(captures: Mapping[str, Capture]) -> dict[str, Capture]:
    """Captures that get a figure of their own: in an attention network, those of no layer."""
    if not has_attention_layers(captures):
        return dict(captures)
    return {
        name: capture
        for name, capture in captures.items()
        if not (LAYER_NAME_PATTERN.fullmatch(name) and _in_series(capture))
        and not (name.endswith("input") and "unit" in capture.axes)
    }


def _in_series(capture: Capture) -> bool:
    return "unit" in capture.axes or ("head" in capture.axes and len(capture.axes) == 4)


def token_names(subject: InspectedModel) -> TokenNames:
    """Names of a run's token ids."""
    objective = getattr(subject.system, "objective", None)
    return TokenNames(
        token=subject.token,
        vocabulary=subject.model.tokenizer.vocabulary,
        symbols=objective.symbols if isinstance(objective, NamesSpecialTokens) else {},
    )


def record_activations(
    subject: InspectedModel, sentence: TokenizedSentence
) -> SentenceActivations | None:
    """Forward pass over one sentence with all captures; None if no layer has attention."""
    system = subject.system
    if not isinstance(system, ComposedSystem):
        return None
    with evaluation_mode(system):
        view = clean_view(system, collate_sentences(system, [sentence]).to(device_of(system)))
        captures = system.backbone.capture_internals(view)
    if not has_attention_layers(captures):
        return None
    return SentenceActivations(
        sentence=sentence, view=view, names=token_names(subject), captures=captures
    )


def clean_view(system: System, batch: Batch) -> View:
    """The unmasked view if the objective has one; else the objective's own view."""
    assert isinstance(system, ComposedSystem)
    view = _view(system, batch, 0)
    if view.decoder is not None:
        # Of several random masks, the one that leaves the encoder the most tokens.
        views = [view, *(_view(system, batch, seed) for seed in range(1, SEEDS))]
        return max(views, key=lambda candidate: int(candidate.lengths[0]))
    # Two-stream models have no activations without targets.
    if view.query_attention_mask is not None:
        return view
    return system.objective.clean_view(batch) or view


def _view(system: ComposedSystem, batch: Batch, seed: int) -> View:
    return system.objective.view(batch, generator=torch.Generator().manual_seed(seed))
