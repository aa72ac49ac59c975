"""Feed-forward layers as key-value memories (Geva et al. 2021): which tokens trigger a neuron?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmlab.core.assembly import ComposedSystem
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.html import TableCell, number_cell
from lmlab.inspection.activations import clean_view, stack_input_words, token_names
from lmlab.inspection.head_importance import layer_stacks
from lmlab.inspection.inspected_models import InspectedModel, TokenizedSentence, collate_sentences
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.stack import Stack
from lmlab.plotting.charts import TextTable, draw_text_table
from lmlab.plotting.figure import FigureSpec, FigureTable, printable_name

UNITS_PER_LAYER = 3
"""Neurons listed per layer, the most selective."""
TRIGGERS_PER_UNIT = 5
"""Top activating positions listed per neuron."""
CONTEXT_BEFORE, CONTEXT_AFTER = 3, 1
"""Context tokens around a trigger."""
CANDIDATE_UNITS = 100
"""Candidate neurons per layer, the most selective first."""
MAX_TEXTS = 64
MAX_LAYERS = 6
"""Most layers listed; of more, evenly spaced ones from first to last."""


@dataclass(frozen=True, kw_only=True)
class TriggerExample:
    """A position that activates a neuron."""

    before: tuple[str, ...]
    word: str
    after: tuple[str, ...]
    value: float

    def __str__(self) -> str:
        marked = f"[{printable_name(self.word)}]"
        return " ".join(
            [*map(printable_name, self.before), marked, *map(printable_name, self.after)]
        )


@dataclass(frozen=True, kw_only=True)
class NeuronMemory:
    """One neuron of a feed-forward layer and its triggers."""

    stack: str
    layer: int
    unit: int
    selectivity: float
    """Mean activation at its triggers above its overall mean, in standard deviations."""
    triggers: tuple[TriggerExample, ...]


@contextmanager
def recorded_activations(stack: Stack) -> Iterator[dict[int, list[Tensor]]]:
    """Context manager recording each layer's activations: (1, T, units) per call of one text.

    Shared prefixes of several texts are recorded once.
    """
    recorded: dict[int, list[Tensor]] = {}
    count = len(stack.blocks)
    calls = [0] * count

    def record(index: int, module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # A block shared between layers (ALBERT) is called once for each of them.
        layer = index + 1 + count * (calls[index] % stack.times)
        calls[index] += 1
        assert isinstance(module, FeedForward)
        recorded.setdefault(layer, []).append(module.units(inputs[0]).detach())

    hooks = [
        block.feed_forward.register_forward_hook(partial(record, index))
        for index, block in enumerate(stack.all_blocks()[:count])
        if block.feed_forward is not None
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def find_feed_forward_memories(
    subject: InspectedModel, sentences: Sequence[TokenizedSentence]
) -> list[NeuronMemory]:
    """The most selective neurons of each layer. Cost: a forward pass per text."""
    system = subject.system
    assert isinstance(system, ComposedSystem)
    memories = []
    for name, stack in layer_stacks(system).items():
        words: list[tuple[str, ...]] = []
        activations: dict[int, list[Tensor]] = {}
        with evaluation_mode(system):
            for sentence in sentences:
                view = clean_view(
                    system, collate_sentences(system, [sentence]).to(device_of(system))
                )
                text_words = stack_input_words(view, name, token_names(subject))
                with recorded_activations(stack) as recorded:
                    system.backbone(view)
                # With two streams, the content stream comes first.
                if all(calls[0].shape[1] >= len(text_words) for calls in recorded.values()):
                    words.append(text_words)
                    for layer, calls in recorded.items():
                        activations.setdefault(layer, []).append(calls[0][0, : len(text_words)])
        for layer in sorted(activations):
            memories += _selective(name, layer, torch.cat(activations[layer]), words)
    return memories


def _selective(
    stack: str, layer: int, values: Tensor, words: Sequence[tuple[str, ...]]
) -> list[NeuronMemory]:
    """Neurons of (positions, units) whose top activations stand out most, one per token."""
    count = min(TRIGGERS_PER_UNIT, len(values))
    best = values.topk(count, dim=0)
    spread = values.std(0).clamp(min=1e-9)
    selectivity = (best.values.mean(0) - values.mean(0)) / spread
    positions = [(text, t) for text, text_words in enumerate(words) for t in range(len(text_words))]
    units: list[NeuronMemory] = []
    listed_words: set[str] = set()
    for unit in selectivity.argsort(descending=True).tolist()[:CANDIDATE_UNITS]:
        triggers = tuple(
            _trigger(words, *positions[int(row)], float(value))
            for row, value in zip(best.indices[:, unit], best.values[:, unit], strict=True)
        )
        # List only one neuron per token.
        if triggers[0].word not in listed_words and len(units) < UNITS_PER_LAYER:
            listed_words.add(triggers[0].word)
            strength = float(selectivity[unit])
            units.append(
                NeuronMemory(
                    stack=stack, layer=layer, unit=unit + 1, selectivity=strength, triggers=triggers
                )
            )
    return units


def _trigger(
    words: Sequence[tuple[str, ...]], text: int, position: int, value: float
) -> TriggerExample:
    text_words = words[text]
    return TriggerExample(
        before=text_words[max(0, position - CONTEXT_BEFORE) : position],
        word=text_words[position],
        after=text_words[position + 1 : position + 1 + CONTEXT_AFTER],
        value=value,
    )


def feed_forward_memory_figures(subject: InspectedModel) -> list[FigureSpec]:
    """The most selective neurons with their triggers; none without feed-forward layers."""
    if not isinstance(subject.system, ComposedSystem) or not layer_stacks(subject.system):
        return []
    try:
        units = find_feed_forward_memories(
            subject, (*subject.sample, *subject.sentences)[:MAX_TEXTS]
        )
    except UserError:
        return []  # The system can't encode such a text by itself.
    if not units:
        return []
    listed = [unit for unit in units if unit.layer in _listed_layers(units)]
    rows = tuple(
        (f"{unit.stack} {unit.layer}".strip(), str(unit.unit), _trigger_line(unit))
        for unit in listed
    )
    listing = TextTable(
        header=("layer", "unit", "fires most at"), rows=rows, column_positions=(0.0, 0.9, 1.5)
    )
    title = "feed-forward units as memories"
    return [
        FigureSpec(
            name="memories",
            title=title,
            caption="The most selective units of each feed-forward layer, and the words at "
            "which they are most active, in brackets, with their neighbours (Geva et "
            "al. 2021).",
            draw=partial(draw_text_table, listing=listing, title=title),
            width=10.0,
            height=listing.height,
            fixed_layout=True,
            table=FigureTable(
                header=("layer", "unit", "selectivity", "fires at", "by"),
                rows=tuple(
                    (
                        TableCell(f"{unit.stack} {unit.layer}".strip()),
                        number_cell(unit.unit, 0),
                        number_cell(unit.selectivity, 1),
                        TableCell(str(trigger)),
                        number_cell(trigger.value, 2),
                    )
                    for unit in units
                    for trigger in unit.triggers
                ),
            ),
        )
    ]


def _listed_layers(units: Sequence[NeuronMemory]) -> set[int]:
    layers = sorted({unit.layer for unit in units})
    if len(layers) <= MAX_LAYERS:
        return set(layers)
    step = (len(layers) - 1) / (MAX_LAYERS - 1)
    return {layers[round(index * step)] for index in range(MAX_LAYERS)}


MAX_LINE_LETTERS = 110
"""Characters of a line of triggers."""


def _trigger_line(unit: NeuronMemory) -> str:
    """As many triggers as fit on a line, equal spellings once."""
    line = ""
    for trigger in dict.fromkeys(map(str, unit.triggers)):
        longer = f"{line}  ·  {trigger}" if line else trigger
        if line and len(longer) > MAX_LINE_LETTERS:
            break
        line = longer
    return line
