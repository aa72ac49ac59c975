"""Who sees whom: what a view allows, and what a network uses of it, found by changing inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.system import Assembly
from lmlab.core.view import View

CELL = 26
"""Pixels of a square of the picture."""
LETTER = 8
"""Pixels that a letter of a label is given."""


@dataclass(frozen=True, kw_only=True)
class InputDependence:
    """Rows are predictions in reading order, columns the places of the input."""

    inputs: tuple[str, ...]
    """What is shown at each place."""
    targets: tuple[str, ...]
    """What is predicted, a row each."""
    allowed: tuple[tuple[bool, ...], ...]
    """Whether the view lets the prediction use the input."""
    used: tuple[tuple[bool, ...], ...]
    """Whether some other token at that place changes the prediction."""

    @property
    def leaks(self) -> list[tuple[int, int]]:
        """Row and column of every input that is used and was hidden: the model cheats."""
        return [
            (row, column)
            for row, used in enumerate(self.used)
            for column, seen in enumerate(used)
            if seen and not self.allowed[row][column]
        ]


@torch.no_grad()
def measure_input_dependence(
    system: Assembly,
    tokens: Sequence[int],
    names: Sequence[str],
    *,
    generator: torch.Generator | None = None,
    others: Sequence[int] | None = None,
) -> InputDependence:
    """What each prediction on one sequence may see, and what it does see.

    `names` is the text of each id of the vocabulary. Every input is replaced by every token of
    `others`, or by every one that can be predicted, so the cost is T · V passes: without `others`
    for small vocabularies and short sentences.
    """
    batch = Batch.collate([tokens], pad=system.vocabulary.pad)
    view = system.objective.view(batch, generator=generator)
    assert view.targets is not None, "this objective predicts nothing"
    before = system.target_log_probs(view)
    rows = before.target_mask[0].nonzero()[:, 0]
    attention_mask = view.query_attention_mask or view.attention_mask
    allowed = attention_mask.mask(view.lengths, view.inputs.shape[1])[0, rows]
    used = torch.zeros_like(allowed)
    for place in range(view.inputs.shape[1]):
        for other in _replacements(system) if others is None else others:
            after = system.target_log_probs(_with_input(view, place, other))
            # Of the first row, which is read first: a view may have made other rows of the text.
            used[:, place] |= (after.log_probs != before.log_probs)[: len(rows)]
    return InputDependence(
        inputs=tuple(names[token] for token in view.inputs[0].tolist()),
        targets=tuple(_outcomes(system, names)[id] for id in view.targets[0, rows].tolist()),
        allowed=_rows(allowed),
        used=_rows(used),
    )


def _outcomes(system: Assembly, names: Sequence[str]) -> Sequence[str]:
    """What targets are called: words, unless the emission has outcomes of its own."""
    told: Sequence[str] = getattr(system.emission, "outcomes", ())
    return told or names


def _replacements(system: Assembly) -> list[int]:
    vocabulary = system.vocabulary
    return [token for token in range(vocabulary.size) if token not in vocabulary.unpredictable]


def _with_input(view: View, place: int, token: int) -> View:
    inputs = view.inputs.clone()
    inputs[0, place] = token
    return replace(view, inputs=inputs)


def _rows(mask: Tensor) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(bool(cell) for cell in row) for row in mask.tolist())


STYLE = """\
  <style>
    text { font: 13px system-ui, 'Noto Sans', 'PingFang SC', 'Noto Sans CJK SC', sans-serif;
           fill: #24292f; }
    .small { font-size: 11px; fill: #6e7781; }
    .line { stroke: #8c959f; fill: none; }
    .used { fill: #4e79d8; stroke: #4e79d8; }
    .unused { fill: none; stroke: #4e79d8; }
    .hidden { fill: none; stroke: #8c959f; stroke-opacity: 0.35; }
    .leak { fill: #cf222e; stroke: #cf222e; }
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .small { fill: #9198a1; } }
  </style>
"""
"""Readable on light and on dark pages."""

DEPENDENCE_LEGEND = {
    "used": "seen and used",
    "unused": "may be seen, not used",
    "hidden": "hidden",
    "leak": "used though hidden",
}


def input_dependence_svg(sight: InputDependence, chain: Sequence[tuple[str, str]] = ()) -> str:
    """A picture of who sees whom as SVG text; `chain` names the parts above it, left to right.

    Each part of the chain is a name and a remark under it. The same input gives the same bytes.
    """
    label = LETTER * max(len(word) for word in sight.targets) + 12
    head = LETTER * max(len(word) for word in sight.inputs) + 8
    top = (64 if chain else 0) + 18
    grid_width = label + CELL * len(sight.inputs)
    boxes, chain_width = _draw_chain(chain)
    height = top + head + CELL * len(sight.targets) + 8
    width = max(grid_width + 190, chain_width) + 8
    body = [*boxes, f'  <g transform="translate(0 {top})">', *_draw_grid(sight, label, head)]
    body += [*_draw_legend(sight, grid_width + 24, head), "  </g>"]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        'aria-label="which inputs each prediction sees">\n'
    )
    return opening + STYLE + "\n".join(body) + "\n</svg>\n"


def _draw_chain(chain: Sequence[tuple[str, str]]) -> tuple[list[str], int]:
    """Boxes with arrows between them, and how wide they are together."""
    drawn, left = [], 1
    for place, (name, remark) in enumerate(chain):
        width = LETTER * max(len(name), len(remark)) + 20
        if place:
            path = f"M{left} 25h22m-5 -4l5 4l-5 4"
            drawn.append(f'  <path class="line" d="{path}"/>')
            left += 26
        middle = left + width // 2
        drawn += [
            f'  <rect class="line" x="{left}" y="4" width="{width}" height="42" rx="6"/>',
            f'  <text x="{middle}" y="22" text-anchor="middle">{escape(name)}</text>',
            f'  <text class="small" x="{middle}" y="38" text-anchor="middle">'
            f"{escape(remark)}</text>",
        ]
        left += width + 4
    return drawn, left


def _draw_grid(sight: InputDependence, label: int, head: int) -> list[str]:
    drawn = ['    <text class="small" x="0" y="-4">predicted ↓   given →</text>']
    for column, word in enumerate(sight.inputs):
        place = f"translate({label + CELL * column + CELL // 2 + 4} {head - 6}) rotate(-90)"
        drawn.append(f'    <text transform="{place}">{escape(word)}</text>')
    for row, word in enumerate(sight.targets):
        y = head + CELL * row
        drawn.append(
            f'    <text x="{label - 8}" y="{y + 17}" text-anchor="end">{escape(word)}</text>'
        )
        drawn += [
            _square(label + CELL * column, y, _look(sight, row, column))
            for column in range(len(sight.inputs))
        ]
    return drawn


def _draw_legend(sight: InputDependence, left: int, head: int) -> list[str]:
    cells = [(r, c) for r in range(len(sight.targets)) for c in range(len(sight.inputs))]
    looks = {_look(sight, row, column) for row, column in cells}
    drawn = []
    for place, look in enumerate(name for name in DEPENDENCE_LEGEND if name in looks):
        y = head + CELL * place
        drawn.append(_square(left, y, look))
        drawn.append(
            f'    <text class="small" x="{left + CELL + 4}" '
            f'y="{y + 17}">{DEPENDENCE_LEGEND[look]}</text>'
        )
    return drawn


def _look(sight: InputDependence, row: int, column: int) -> str:
    match sight.allowed[row][column], sight.used[row][column]:
        case True, True:
            return "used"
        case True, False:
            return "unused"
        case False, False:
            return "hidden"
    return "leak"


def _square(x: int, y: int, look: str) -> str:
    size = CELL - 4
    return (
        f'    <rect class="{look}" x="{x + 2}" y="{y + 2}" width="{size}" height="{size}" rx="3"/>'
    )
