"""Captured model internals, per sentence and averaged over texts: collecting, stacking, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.parts import Backbone, Emission
from lmlab.core.retrieval_protocols import Retrieve
from lmlab.core.system import System
from lmlab.inspection.activations import captures_without_layers
from lmlab.inspection.capture_axes import WORD_AXES, AxisLabels, state_names
from lmlab.inspection.capture_figures import capture_figures
from lmlab.inspection.inspected_models import (
    InspectedModel,
    TokenizedSentence,
    batches_by_length,
    collate_sentences,
    tokenize_sentence,
)
from lmlab.plotting.figure import FigureSpec, numbered_name
from lmlab.training.run_folder import TrainedModel

MAX_TABLE_ENTRIES = 20_000_000
"""Largest token-state table to capture, in entries."""
COMPARED_SENTENCES = 24
"""Most sentences compared as rows of one figure."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectedCaptures:
    """Captures of the model and of single sentences."""

    model: dict[str, Capture]
    sentences: tuple[dict[str, Capture], ...]
    compared_sentences: tuple[TokenizedSentence, ...] = field(default=())
    """The rows of the batch axis of the model's captures."""


def collected_capture_figures(subject: InspectedModel) -> list[FigureSpec]:
    """Figures of all captures: the model's first, then sentence by sentence."""
    collected = collect_captures(subject.system, subject.sentences, subject.sample)
    collected = replace(collected, model={**collected.model, **state_token_capture(subject.system)})
    labels = AxisLabels(token=subject.token)
    labels = replace(labels, states=state_names(collected.model, labels))
    names = tuple(sentence_label(subject.system, item) for item in collected.compared_sentences)
    figures = capture_figures(collected.model, replace(labels, sentences=names))
    for i, (sentence, captures) in enumerate(
        zip(subject.sentences, collected.sentences, strict=True)
    ):
        specs = capture_figures(
            captures, replace(labels, tokens=sentence.tokens), text=sentence.text
        )
        count = len(subject.sentences)
        figures += [replace(item, name=numbered_name(item.name, i, count)) for item in specs]
    return figures


def sentence_label(system: System, sentence: TokenizedSentence) -> str:
    """Row label of a sentence: its text, or its question if documents are retrieved for it.

    Several questions may share an answer.
    """
    question = sentence.condition if isinstance(system, Retrieve) else None
    return question or sentence.text


@runtime_checkable
class StateTokenTable(Protocol):
    """Emission whose states are distributions over tokens."""

    def log_table(self) -> Tensor:
        """(V, K) log P(token | state)."""
        ...


def state_token_capture(system: System) -> dict[str, Capture]:
    """P(token | state) if the emission is a mixture over states; else empty."""
    emission = getattr(system, "emission", None)
    if not isinstance(emission, Emission):
        return {}
    own_table = isinstance(emission, StateTokenTable)
    states = emission if own_table else getattr(emission, "states", None)
    if isinstance(states, StateTokenTable):
        with evaluation_mode(system):
            table = states.log_table().exp()
    elif emission.input_kinds == {"states"} and isinstance(
        getattr(system, "backbone", None), Backbone
    ):
        count = getattr(system.backbone, "width", 0)
        with evaluation_mode(system):
            # One-hot mixture weights show each state by itself.
            one_hot = torch.eye(count, device=device_of(system)).log()
            table = emission.log_probs(one_hot).exp().t()
    else:
        return {}
    if table.numel() > MAX_TABLE_ENTRIES:
        return {}
    capture = Capture(
        values=table,
        axes=("token", "state"),
        caption="The likeliest tokens of each latent state, with P(token | state).",
        bounds=UNIT_INTERVAL,
    )
    return {"words of the states": capture}


def collect_text_captures(
    model: TrainedModel, text: str, source: str | None = None
) -> dict[str, Capture]:
    """All captures of one text by name, with a batch of one row.

    The text is unmasked if the objective allows it (masked models, ELECTRA's discriminator, XLNet's
    content stream); else masked as in training, with a fixed seed.
    """
    system, sentence = model.system, tokenize_sentence(model, text, source)
    system.check_length(len(sentence.ids))
    batch = collate_sentences(system, [sentence]).to(device_of(system))
    with evaluation_mode(system), torch.random.fork_rng():
        torch.manual_seed(0)
        view = system.objective.clean_view(batch) if isinstance(system, ComposedSystem) else None
        if view is None:
            return system.capture_internals(batch)
        assert isinstance(system, ComposedSystem)
        return {
            **system.backbone.capture_internals(view),
            **system.emission.capture_internals(system.hidden(view)),
            **system.objective.capture_internals(system, batch),
        }


def collect_captures(
    system: System, sentences: Sequence[TokenizedSentence], sample: Sequence[TokenizedSentence] = ()
) -> CollectedCaptures:
    """Captures of each sentence, and of the model averaged over all sentences and the sample.

    A capture with a position axis belongs to a sentence, one without to the model. A model capture
    that depends on the text (state usage) is averaged over predictions.
    """
    with evaluation_mode(system):
        single = [_sentence_captures(system, [sentence]) for sentence in sentences]
        compared = (*sentences, *sample)[:COMPARED_SENTENCES]
        # If all captures are per sentence, the sample is not needed.
        needs_sample = any(
            not _is_per_sentence(c) for captures in single for c in captures.values()
        )
        means = _model_captures(system, (*sentences, *sample), compared) if needs_sample else {}
    return CollectedCaptures(
        model=means,
        sentences=tuple(
            {name: c for name, c in captures.items() if _is_per_sentence(c)} for captures in single
        ),
        compared_sentences=compared,
    )


def _is_per_sentence(capture: Capture) -> bool:
    return "batch" in capture.axes and bool(set(WORD_AXES) & set(capture.axes))


def _sentence_captures(
    system: System, sentences: Sequence[TokenizedSentence]
) -> dict[str, Capture]:
    return _batch_captures(system, collate_sentences(system, sentences))


def _batch_captures(system: System, batch: Batch) -> dict[str, Capture]:
    """Captures except per-layer ones, which have their own figures.

    The objective masks with torch's global generator, whose state is restored.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return captures_without_layers(system.capture_internals(batch.to(device_of(system))))


def _model_captures(
    system: System, sentences: Sequence[TokenizedSentence], compared: Sequence[TokenizedSentence]
) -> dict[str, Capture]:
    sums: dict[str, Capture] = {}
    counts: dict[str, float] = {}
    # Batches of equal length, so that no padding enters an average.
    for batch in batches_by_length(system, sentences):
        for name, capture in _batch_captures(system, batch).items():
            if "batch" in capture.axes:
                continue
            before = sums.get(name)
            if before is None or before.values.shape != capture.values.shape:
                sums[name], counts[name] = _scaled(capture, batch.count), float(batch.count)
            else:
                total = before.values + capture.values.double() * batch.count
                sums[name] = replace(before, values=total)
                counts[name] += batch.count
    means = {name: _scaled(summed, 1 / max(counts[name], 1.0)) for name, summed in sums.items()}
    return {**means, **_latent_captures(system, compared)}


def _scaled(capture: Capture, factor: float) -> Capture:
    return replace(capture, values=capture.values.double() * factor)


def _latent_captures(system: System, sentences: Sequence[TokenizedSentence]) -> dict[str, Capture]:
    """Captures with one row per sentence and no position axis: latents."""
    rows: dict[str, list[Capture]] = {}
    for sentence in sentences:
        for name, capture in _sentence_captures(system, [sentence]).items():
            if "batch" in capture.axes and not _is_per_sentence(capture):
                rows.setdefault(name, []).append(capture)
    return {
        name: stack_captures(stack) for name, stack in rows.items() if len(stack) == len(sentences)
    }


def stack_captures(captures: Sequence[Capture]) -> Capture:
    """Stack captures as rows; entries are matched by name, nan where a row lacks one."""
    first, *rest = captures
    for axis, entry_names in first.names.items():
        if all(row.names[axis] == entry_names for row in rest):
            continue
        all_names = tuple(dict.fromkeys(name for row in captures for name in row.names[axis]))
        captures = [_align_entries(row, axis, all_names) for row in captures]
    values = torch.cat([row.values for row in captures], first.axes.index("batch"))
    return replace(captures[0], values=values)


def _align_entries(capture: Capture, axis: str, names: tuple[str, ...]) -> Capture:
    """The capture with its entries scattered to their names' positions among `names`."""
    dimension = capture.axes.index(axis)
    shape = list(capture.values.shape)
    shape[dimension] = len(names)
    indices = torch.tensor([names.index(name) for name in capture.names[axis]])
    values = capture.values.double()
    empty = values.new_full(shape, torch.nan)
    values = empty.index_copy(dimension, indices.to(values.device), values)
    return replace(capture, values=values, names={**capture.names, axis: names})
