"""Plot docs/images/grammar.svg, the figure of the README, from the runs of `make demo`.

make demo
.venv/bin/python scripts/draw_readme_picture.py
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lmlab.plotting.training_curves import draw_training_curves, loss_curve_from_metrics
from lmlab.reports.report_sections import true_entropy
from lmlab.training.run_folder import RunFolder
from lmlab.training.training_logs import read_metrics

ROOT = Path(__file__).resolve().parent.parent
FIGURE = ROOT / "docs" / "images" / "grammar.svg"
STYLE = (
    "<style>svg { color: #24292f; } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6edf3; } }</style>"
)
"""Text colour; a standalone SVG cannot inherit one from a page."""


def training_curves_svg(folder: Path) -> str:
    """Training curves of all runs of a folder, with the entropy of their corpus as the floor."""
    runs = [RunFolder(path.parent) for path in sorted(folder.glob("*/config.json"))]
    entropies = {true_entropy(run.read_config()) for run in runs}
    assert len(entropies) == 1, f"the runs in {folder} must share one corpus"
    curves = [loss_curve_from_metrics(run.path.name, read_metrics(run.metrics)) for run in runs]
    # Order of the legend as in the plot: highest final loss first.
    ordered = sorted(curves, key=lambda curve: -curve.held_out[-1][1])
    coloured = [replace(curve, colour_index=index) for index, curve in enumerate(ordered)]
    svg = draw_training_curves(coloured, floor=entropies.pop())
    tag, bracket, rest = svg.partition(">")
    return f"{tag}{bracket}\n{STYLE}{rest.rstrip()}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "runs", nargs="?", default="runs/demo/grammar", type=Path, help="folder of the runs"
    )
    folder = parser.parse_args().runs
    if not list(folder.glob("*/config.json")):
        print(f"no runs in {folder}; run `make demo` first.", file=sys.stderr)
        return 2
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(training_curves_svg(folder), encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
