"""Surprisal by token, and input dependence: figures of a sentence for every system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import LogProb
from lmlab.core.score import ScoreKind
from lmlab.core.score_descriptions import KIND_DESCRIPTIONS
from lmlab.core.view import NO_TARGET
from lmlab.inspection.activations import token_names
from lmlab.inspection.capture_axes import MAX_POSITIONS
from lmlab.inspection.input_dependence import (
    DEPENDENCE_KINDS,
    DEPENDENCE_LEGEND,
    InputDependence,
    measure_input_dependence,
)
from lmlab.inspection.inspected_models import InspectedModel, TokenizedSentence, collate_sentences
from lmlab.plotting.charts import (
    BORDER_COLOUR,
    CELL_INCHES,
    HeatMapAxis,
    Values,
    hide_spines,
    label_columns,
    label_rows,
)
from lmlab.plotting.figure import (
    COLOURS,
    FOREGROUND_COLOUR,
    FigureSpec,
    add_legend,
    join_remarks,
    line_style,
    numbered_name,
    printable_name,
)
from lmlab.plotting.figure_styling import TITLE

SURPRISAL_CAPTION = (
    "−log p of each token given its context, in nats: 0 is certain, 0.7 one of two, 4.6 one "
    "of a hundred."
)
INPUT_DEPENDENCE_CAPTION = (
    "Attention mask and use of the objective: each row is a prediction and each column an "
    "input; filled inputs change the prediction, outlined ones are visible but change "
    "nothing, empty ones are masked."
)
MAX_DEPENDENCE_POSITIONS = 20
"""Most tokens for input dependence, which costs a pass per token and replacement."""
TRIED_SEEDS = 20
"""Seeds tried until a view has a target."""
EXTRA_TOKENS = 512
"""Special tokens of the system beyond its tokenizer's."""
MAX_REPLACEMENTS = 4
"""Replacement tokens tried at each position."""
MAX_WIDTH_INCHES = 10.0
"""Inches of a row of tokens."""


def surprisal_figures(subjects: Sequence[InspectedModel]) -> list[FigureSpec]:
    """Surprisal of each sentence; runs with the same tokens share a figure.

    None for unnormalised scores, as an energy is no −log p of a token, nor for texts scored as a
    whole.
    """
    scorers = [
        s for s in subjects if isinstance(s.system, LogProb) and s.model.card.kind != "unnormalised"
    ]
    groups: dict[tuple[tuple[str, ...], ...], list[InspectedModel]] = {}
    for subject in scorers:
        groups.setdefault(tuple(s.tokens for s in subject.sentences), []).append(subject)
    several = len(groups) > 1
    figures = []
    for group in groups.values():
        suffix = f"-{group[0].name}" if several else ""
        count = len(group[0].sentences)
        for index, sentence in enumerate(group[0].sentences):
            name = numbered_name(f"surprisal{suffix}", index, count)
            figures += _surprisal(group, sentence, name=name)
    return figures


def _surprisal(
    subjects: Sequence[InspectedModel], sentence: TokenizedSentence, *, name: str
) -> list[FigureSpec]:
    """The figure of a sentence, or none if no run scores its tokens."""
    measured = {subject.name: token_surprisal(subject, sentence) for subject in subjects}
    scored = {run: result for run, result in measured.items() if result is not None}
    if not scored:
        return []
    tokens = sentence.tokens[1:]
    kinds = {kind for _, kind in scored.values()}
    notes = [
        SURPRISAL_CAPTION,
        *(
            f"The figures are {kind}: {KIND_DESCRIPTIONS[kind]}."
            for kind in sorted(kinds - {"exact"})
        ),
    ]
    if len(tokens) > MAX_POSITIONS:
        notes.append(f"Shown are the first {MAX_POSITIONS} of {len(tokens)} tokens.")
    values = {run: result[:MAX_POSITIONS] for run, (result, _) in scored.items()}
    shown_tokens = tokens[:MAX_POSITIONS]
    figure = FigureSpec(
        name=name,
        title="surprisal",
        caption=join_remarks(notes),
        draw=partial(draw_surprisal, values=values, tokens=shown_tokens),
        width=min(MAX_WIDTH_INCHES, max(2.5, 0.36 * len(shown_tokens))),
        height=2.2,
        text=sentence.text,
    )
    return [figure]


def token_surprisal(
    subject: InspectedModel, sentence: TokenizedSentence
) -> tuple[Values, ScoreKind] | None:
    """(T,) −log p of each token after the start token, and the kind of score.

    None if the text is scored as a whole, or the run can't score (ELECTRA without a generator).
    """
    system = subject.system
    assert isinstance(system, LogProb)
    try:
        with evaluation_mode(system):
            generator = torch.Generator().manual_seed(0)
            scored = system.log_prob(collate_sentences(system, [sentence]), generator=generator)
    except UserError:
        return None
    if scored.whole_text_only:
        return None
    return -scored.per_token[0].double().cpu().numpy(), scored.kind


def draw_surprisal(
    figure: Figure, values: Mapping[str, Values], tokens: Sequence[str], title: str = "surprisal"
) -> None:
    """Bars for one run, a line per run for several; infinite values leave at the top."""
    axes = figure.add_axes((0, 0, 1, 1))
    all_values = np.concatenate(list(values.values()))
    top = float(all_values[np.isfinite(all_values)].max(initial=1.0))
    x = np.arange(len(tokens)) + 0.5
    for index, (run, surprisals) in enumerate(values.items()):
        heights = np.where(np.isfinite(surprisals), surprisals, 2 * top)
        if len(values) == 1:
            axes.bar(x, heights, width=0.7, color=COLOURS[0])
        else:
            label = printable_name(run)
            axes.plot(x, heights, marker="o", markersize=4, label=label, **line_style(index))
    axes.set_xlim(0, max(len(tokens), 1))
    axes.set_ylim(min(0.0, float(all_values.min(initial=0.0))), 1.08 * top)
    axes.set_title(title, loc="left", fontsize=11).set_label(TITLE)
    axes.set_ylabel("nats")
    label_columns(axes, HeatMapAxis(name="", labels=tuple(tokens)), len(tokens))
    axes.tick_params(axis="x", length=0)
    if len(values) > 1:
        axes.grid(axis="x", linewidth=0.3, alpha=0.4)
        add_legend(axes)


def input_dependence_figures(subject: InspectedModel) -> list[FigureSpec]:
    """Input dependence of the first sentence; none for a system without an objective."""
    system, sentence = subject.system, subject.sentences[0]
    if not isinstance(system, ComposedSystem):
        return []
    ids = sentence.ids[:MAX_DEPENDENCE_POSITIONS]
    with evaluation_mode(system):
        seed = _first_seed_with_target(system, ids)
        if seed is None:
            return []
        dependence = measure_input_dependence(
            system,
            ids,
            _names(subject),
            generator=torch.Generator().manual_seed(seed),
            replacements=_replacements(system),
        )
    cut = f"Shown are the first {len(ids)} of {len(sentence.ids)} tokens."
    return [
        FigureSpec(
            name="view",
            title="input dependence",
            caption=join_remarks(
                (INPUT_DEPENDENCE_CAPTION, cut if len(ids) < len(sentence.ids) else "")
            ),
            draw=partial(draw_input_dependence, dependence=dependence),
            width=CELL_INCHES * len(dependence.inputs),
            height=CELL_INCHES * len(dependence.targets),
            fixed_layout=True,
            text=sentence.text,
        )
    ]


def _first_seed_with_target(system: ComposedSystem, ids: Sequence[int]) -> int | None:
    """The first seed with a target among the tokens; None if targets are elsewhere."""
    batch = Batch.collate([ids], pad=system.vocabulary.pad)
    for seed in range(TRIED_SEEDS):
        view = system.objective.view(batch, generator=torch.Generator().manual_seed(seed))
        if view.decoder is not None or view.targets is None or view.inputs.ndim != 2:
            return None
        if bool((view.targets != NO_TARGET).any()):
            return seed
    return None


def _names(subject: InspectedModel) -> list[str]:
    """Names of all ids, including the system's own special tokens."""
    names = token_names(subject)
    size = max((names.vocabulary.size, *names.symbols), default=0) + EXTRA_TOKENS
    return [names.name(id) for id in range(size)]


def _replacements(system: ComposedSystem) -> list[int]:
    """A few replacement tokens, spread over the vocabulary."""
    vocabulary = system.vocabulary
    predictable = [id for id in range(vocabulary.size) if id not in vocabulary.unpredictable]
    step = max(1, len(predictable) // MAX_REPLACEMENTS)
    return predictable[::step][:MAX_REPLACEMENTS]


CELL_COLOURS = {
    "used": (COLOURS[0], COLOURS[0]),
    "unused": ("none", COLOURS[0]),
    "hidden": ("none", BORDER_COLOUR),
    "leak": ("#c0392b", FOREGROUND_COLOUR),
}
"""Fill and edge of a cell."""


def draw_input_dependence(figure: Figure, dependence: InputDependence) -> None:
    """Cells: filled if allowed and used, outlined if only allowed, red for a leak."""
    axes = figure.add_axes((0, 0, 1, 1))
    squares: dict[str, list[tuple[float, float]]] = {kind: [] for kind in DEPENDENCE_LEGEND}
    for row, (allowed, used) in enumerate(zip(dependence.allowed, dependence.used, strict=True)):
        for column, pair in enumerate(zip(allowed, used, strict=True)):
            squares[DEPENDENCE_KINDS[pair]].append((column + 0.5, row + 0.5))
    side = 0.78 * CELL_INCHES * 72
    for kind, centres in squares.items():
        if centres:
            fill, edge = CELL_COLOURS[kind]
            x, y = zip(*centres, strict=True)
            axes.scatter(
                x,
                y,
                s=side**2,
                marker="s",
                facecolors=fill,
                edgecolors=edge,
                linewidths=0.8,
                label=DEPENDENCE_LEGEND[kind],
            )
    _label_dependence(axes, dependence)
    axes.legend(
        frameon=False,
        fontsize=9,
        labelcolor=FOREGROUND_COLOUR,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        markerscale=0.6,
    )


def _label_dependence(axes: Axes, dependence: InputDependence) -> None:
    height, width = len(dependence.targets), len(dependence.inputs)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_title("input dependence", loc="left", fontsize=11).set_label(TITLE)
    label_columns(axes, HeatMapAxis(name="input", labels=dependence.inputs), width)
    label_rows(axes, HeatMapAxis(name="target", labels=dependence.targets), height)
    axes.tick_params(length=0)
    hide_spines(axes)
