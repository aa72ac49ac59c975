"""Surprisal by token, and input dependence: figures of a sentence for every system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import LogProb
from lmlab.core.score import ScoreKind
from lmlab.core.system import Assembly
from lmlab.core.view import NO_TARGET
from lmlab.inspection.activations import token_names
from lmlab.inspection.capture_axes import MAX_POSITIONS
from lmlab.inspection.input_dependence import (
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
from lmlab.scoring.formatting import KIND_DESCRIPTIONS

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
"""Special tokens of the system beyond its tokeniser's."""
MAX_REPLACEMENTS = 4
"""Replacement tokens tried at each position."""
MAX_WIDTH_INCHES = 10.0
"""Inches of a row of tokens."""


def surprisal_figures(subjects: Sequence[InspectedModel]) -> list[FigureSpec]:
    """Surprisal of each sentence; runs with the same tokens share a figure.

    None for unnormalised scores, as an energy is no −log p of a token, nor for texts scored as a
    whole.
    """
    able = [
        each
        for each in subjects
        if isinstance(each.system, LogProb) and each.model.card.kind != "unnormalised"
    ]
    groups: dict[tuple[tuple[str, ...], ...], list[InspectedModel]] = {}
    for subject in able:
        groups.setdefault(tuple(each.tokens for each in subject.sentences), []).append(subject)
    several = len(groups) > 1
    pictures = []
    for group in groups.values():
        suffix = f"-{group[0].name}" if several else ""
        count = len(group[0].sentences)
        for place, sentence in enumerate(group[0].sentences):
            name = numbered_name(f"surprisal{suffix}", place, count)
            pictures += _surprisal(group, sentence, name=name)
    return pictures


def _surprisal(
    subjects: Sequence[InspectedModel], sentence: TokenizedSentence, *, name: str
) -> list[FigureSpec]:
    """The figure of a sentence, or none if no run scores its tokens."""
    measured = {subject.name: token_surprisal(subject, sentence) for subject in subjects}
    found = {run: each for run, each in measured.items() if each is not None}
    if not found:
        return []
    tokens = sentence.tokens[1:]
    kinds = {kind for _, kind in found.values()}
    remarks = [
        SURPRISAL_CAPTION,
        *(
            f"The figures are {kind}: {KIND_DESCRIPTIONS[kind]}."
            for kind in sorted(kinds - {"exact"})
        ),
    ]
    if len(tokens) > MAX_POSITIONS:
        remarks.append(f"Shown are the first {MAX_POSITIONS} of {len(tokens)} tokens.")
    values = {run: each[:MAX_POSITIONS] for run, (each, _) in found.items()}
    shown = tokens[:MAX_POSITIONS]
    picture = FigureSpec(
        name=name,
        title="surprisal",
        caption=join_remarks(remarks),
        draw=partial(draw_surprisal, values=values, tokens=shown),
        width=min(MAX_WIDTH_INCHES, max(2.5, 0.36 * len(shown))),
        height=2.2,
        text=sentence.text,
    )
    return [picture]


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
            found = system.log_prob(collate_sentences(system, [sentence]), generator=generator)
    except UserError:
        return None
    if found.whole_text_only:
        return None
    return -found.per_token[0].double().cpu().numpy(), found.kind


def draw_surprisal(
    figure: Figure, values: Mapping[str, Values], tokens: Sequence[str], title: str = "surprisal"
) -> None:
    """Bars for one run, a line per run for several; infinite values leave at the top."""
    axes = figure.add_axes((0, 0, 1, 1))
    every = np.concatenate(list(values.values()))
    top = float(every[np.isfinite(every)].max(initial=1.0))
    places = np.arange(len(tokens)) + 0.5
    for look, (run, each) in enumerate(values.items()):
        heights = np.where(np.isfinite(each), each, 2 * top)
        if len(values) == 1:
            axes.bar(places, heights, width=0.7, color=COLOURS[0])
        else:
            label = printable_name(run)
            axes.plot(places, heights, marker="o", markersize=4, label=label, **line_style(look))
    axes.set_xlim(0, max(len(tokens), 1))
    axes.set_ylim(min(0.0, float(every.min(initial=0.0))), 1.08 * top)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylabel("nats")
    label_columns(axes, HeatMapAxis(name="", labels=tuple(tokens)), len(tokens))
    axes.tick_params(axis="x", length=0)
    if len(values) > 1:
        axes.grid(axis="x", linewidth=0.3, alpha=0.4)
        add_legend(axes)


def input_dependence_figures(subject: InspectedModel) -> list[FigureSpec]:
    """Input dependence of the first sentence; none for a system without an objective."""
    system, sentence = subject.system, subject.sentences[0]
    if not isinstance(system, Assembly):
        return []
    ids = sentence.ids[:MAX_DEPENDENCE_POSITIONS]
    with evaluation_mode(system):
        seed = _asking_seed(system, ids)
        if seed is None:
            return []
        sight = measure_input_dependence(
            system,
            ids,
            _names(subject),
            generator=torch.Generator().manual_seed(seed),
            others=_replacements(system),
        )
    cut = f"Shown are the first {len(ids)} of {len(sentence.ids)} tokens."
    return [
        FigureSpec(
            name="view",
            title="who sees whom",
            caption=join_remarks(
                (INPUT_DEPENDENCE_CAPTION, cut if len(ids) < len(sentence.ids) else "")
            ),
            draw=partial(draw_input_dependence, sight=sight),
            width=CELL_INCHES * len(sight.inputs),
            height=CELL_INCHES * len(sight.targets),
            text=sentence.text,
        )
    ]


def _asking_seed(system: Assembly, ids: Sequence[int]) -> int | None:
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
    known = token_names(subject)
    beyond = max((known.vocabulary.size, *known.symbols), default=0) + EXTRA_TOKENS
    return [known.name(id) for id in range(beyond)]


def _replacements(system: Assembly) -> list[int]:
    """A few replacement tokens, spread over the vocabulary."""
    vocabulary = system.vocabulary
    able = [id for id in range(vocabulary.size) if id not in vocabulary.unpredictable]
    step = max(1, len(able) // MAX_REPLACEMENTS)
    return able[::step][:MAX_REPLACEMENTS]


DEPENDENCE_KINDS = {
    (True, True): "used",
    (True, False): "unused",
    (False, False): "hidden",
    (False, True): "leak",
}


CELL_COLOURS = {
    "used": (COLOURS[0], COLOURS[0]),
    "unused": ("none", COLOURS[0]),
    "hidden": ("none", BORDER_COLOUR),
    "leak": ("#c0392b", FOREGROUND_COLOUR),
}
"""Fill and edge of a cell."""


def draw_input_dependence(figure: Figure, sight: InputDependence) -> None:
    """Cells: filled if allowed and used, outlined if only allowed, red for a leak."""
    axes = figure.add_axes((0, 0, 1, 1))
    squares: dict[str, list[tuple[float, float]]] = {look: [] for look in DEPENDENCE_LEGEND}
    for row, (allowed, used) in enumerate(zip(sight.allowed, sight.used, strict=True)):
        for column, pair in enumerate(zip(allowed, used, strict=True)):
            squares[DEPENDENCE_KINDS[pair]].append((column + 0.5, row + 0.5))
    side = 0.78 * CELL_INCHES * 72
    for look, places in squares.items():
        if places:
            inside, rim = CELL_COLOURS[look]
            across, down = zip(*places, strict=True)
            axes.scatter(
                across,
                down,
                s=side**2,
                marker="s",
                facecolors=inside,
                edgecolors=rim,
                linewidths=0.8,
                label=DEPENDENCE_LEGEND[look],
            )
    _dress_sight(axes, sight)
    axes.legend(
        frameon=False,
        fontsize=9,
        labelcolor=FOREGROUND_COLOUR,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        markerscale=0.6,
    )


def _dress_sight(axes: Axes, sight: InputDependence) -> None:
    height, width = len(sight.targets), len(sight.inputs)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_title("who sees whom", loc="left", fontsize=11)
    label_columns(axes, HeatMapAxis(name="given", labels=sight.inputs), width)
    label_rows(axes, HeatMapAxis(name="predicted", labels=sight.targets), height)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
