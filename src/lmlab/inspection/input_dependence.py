"""Input dependence: inputs the attention mask allows, and inputs used (by perturbation); SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import torch
from torch import Tensor

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.view import View

CELL = 26
"""Pixels of a cell."""
LETTER = 8
"""Pixels per character of a label."""


@dataclass(frozen=True, kw_only=True)
class InputDependence:
    """Rows are predictions in text order, columns the input positions."""

    inputs: tuple[str, ...]
    """The input at each position."""
    targets: tuple[str, ...]
    """The target of each row."""
    allowed: tuple[tuple[bool, ...], ...]
    """Whether the view's attention mask lets the prediction use the input."""
    used: tuple[tuple[bool, ...], ...]
    """Whether replacing the token at that position changes the prediction."""

    @property
    def leaks(self) -> list[tuple[int, int]]:
        """Row and column of every input that is used although masked: an information leak."""
        return [
            (row, column)
            for row, used in enumerate(self.used)
            for column, is_used in enumerate(used)
            if is_used and not self.allowed[row][column]
        ]


@torch.no_grad()
def measure_input_dependence(
    system: ComposedSystem,
    tokens: Sequence[int],
    names: Sequence[str],
    *,
    generator: torch.Generator | None = None,
    replacements: Sequence[int] | None = None,
) -> InputDependence:
    """Which inputs each prediction on one sequence may use, and which it does use.

    `names` gives the text of each vocabulary id. Every input is replaced by each of `replacements`,
    default all predictable tokens: T · V passes, so only for small vocabularies and short
    sentences.
    """
    batch = Batch.collate([tokens], pad=system.vocabulary.pad)
    view = system.objective.view(batch, generator=generator)
    assert view.targets is not None, "this objective predicts nothing"
    before = system.target_log_probs(view)
    rows = before.target_mask[0].nonzero()[:, 0]
    attention_mask = view.query_attention_mask or view.attention_mask
    allowed = attention_mask.mask(view.lengths, view.inputs.shape[1])[0, rows]
    used = torch.zeros_like(allowed)
    for position in range(view.inputs.shape[1]):
        for replacement in _replacements(system) if replacements is None else replacements:
            after = system.target_log_probs(_with_input(view, position, replacement))
            # Compare the first row only: a view may have added rows to the text.
            used[:, position] |= (after.log_probs != before.log_probs)[: len(rows)]
    return InputDependence(
        inputs=tuple(names[token] for token in view.inputs[0].tolist()),
        targets=tuple(_outcomes(system, names)[id] for id in view.targets[0, rows].tolist()),
        allowed=boolean_rows(allowed),
        used=boolean_rows(used),
    )


def _outcomes(system: ComposedSystem, names: Sequence[str]) -> Sequence[str]:
    """Names of the targets: tokens, unless the emission has its own outcomes."""
    outcomes: Sequence[str] = getattr(system.emission, "outcomes", ())
    return outcomes or names


def _replacements(system: ComposedSystem) -> list[int]:
    vocabulary = system.vocabulary
    return [token for token in range(vocabulary.size) if token not in vocabulary.unpredictable]


def _with_input(view: View, position: int, token: int) -> View:
    inputs = view.inputs.clone()
    inputs[0, position] = token
    return replace(view, inputs=inputs)


def boolean_rows(mask: Tensor) -> tuple[tuple[bool, ...], ...]:
    """A mask (T, S) as tuples."""
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
"""Readable on light and dark backgrounds."""

DEPENDENCE_LEGEND = {
    "used": "allowed and used",
    "unused": "allowed, not used",
    "hidden": "masked",
    "leak": "used although masked",
}

DEPENDENCE_KINDS = {
    (True, True): "used",
    (True, False): "unused",
    (False, False): "hidden",
    (False, True): "leak",
}
"""By whether an input is allowed and whether it is used."""


def input_dependence_svg(dependence: InputDependence, chain: Sequence[tuple[str, str]] = ()) -> str:
    """The input dependence matrix as SVG; `chain` names the components above it, left to right.

    Each component is a name and a remark. The same input gives the same bytes.
    """
    left = LETTER * max(len(word) for word in dependence.targets) + 12
    header = LETTER * max(len(word) for word in dependence.inputs) + 8
    top = (64 if chain else 0) + 18
    grid_width = left + CELL * len(dependence.inputs)
    boxes, chain_width = _draw_chain(chain)
    height = top + header + CELL * len(dependence.targets) + 8
    width = max(grid_width + 190, chain_width) + 8
    body = [*boxes, f'  <g transform="translate(0 {top})">', *_draw_grid(dependence, left, header)]
    body += [*_draw_legend(dependence, grid_width + 24, header), "  </g>"]
    svg_start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        'aria-label="which inputs each prediction uses">\n'
    )
    return svg_start + STYLE + "\n".join(body) + "\n</svg>\n"


def _draw_chain(chain: Sequence[tuple[str, str]]) -> tuple[list[str], int]:
    """Boxes with arrows between them, and their total width."""
    elements, left = [], 1
    for index, (name, remark) in enumerate(chain):
        width = LETTER * max(len(name), len(remark)) + 20
        if index:
            path = f"M{left} 25h22m-5 -4l5 4l-5 4"
            elements.append(f'  <path class="line" d="{path}"/>')
            left += 26
        centre = left + width // 2
        elements += [
            f'  <rect class="line" x="{left}" y="4" width="{width}" height="42" rx="6"/>',
            f'  <text x="{centre}" y="22" text-anchor="middle">{escape(name)}</text>',
            f'  <text class="small" x="{centre}" y="38" text-anchor="middle">'
            f"{escape(remark)}</text>",
        ]
        left += width + 4
    return elements, left


def _draw_grid(dependence: InputDependence, left: int, header: int) -> list[str]:
    elements = ['    <text class="small" x="0" y="-4">target ↓   input →</text>']
    for column, word in enumerate(dependence.inputs):
        transform = f"translate({left + CELL * column + CELL // 2 + 4} {header - 6}) rotate(-90)"
        elements.append(f'    <text transform="{transform}">{escape(word)}</text>')
    for row, word in enumerate(dependence.targets):
        y = header + CELL * row
        elements.append(
            f'    <text x="{left - 8}" y="{y + 17}" text-anchor="end">{escape(word)}</text>'
        )
        elements += [
            _square(left + CELL * column, y, _cell_style(dependence, row, column))
            for column in range(len(dependence.inputs))
        ]
    return elements


def _draw_legend(dependence: InputDependence, left: int, header: int) -> list[str]:
    cells = [(r, c) for r in range(len(dependence.targets)) for c in range(len(dependence.inputs))]
    styles = {_cell_style(dependence, row, column) for row, column in cells}
    elements = []
    for index, style in enumerate(name for name in DEPENDENCE_LEGEND if name in styles):
        y = header + CELL * index
        elements.append(_square(left, y, style))
        elements.append(
            f'    <text class="small" x="{left + CELL + 4}" '
            f'y="{y + 17}">{DEPENDENCE_LEGEND[style]}</text>'
        )
    return elements


def _cell_style(dependence: InputDependence, row: int, column: int) -> str:
    return DEPENDENCE_KINDS[dependence.allowed[row][column], dependence.used[row][column]]


def _square(x: int, y: int, style: str) -> str:
    size = CELL - 4
    return (
        f'    <rect class="{style}" x="{x + 2}" y="{y + 2}" width="{size}" height="{size}" rx="3"/>'
    )
