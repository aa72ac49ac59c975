"""Draw docs/images/grammar.svg, the README's picture, from the runs that `make demo` left.

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
PICTURE = ROOT / "docs" / "images" / "grammar.svg"
INK = (
    "<style>svg { color: #24292f; } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6edf3; } }</style>"
)
"""A picture that stands alone has no page to take its colour from."""


def draw(folder: Path) -> str:
    """The curves of all runs of a folder over the entropy of what they were trained on."""
    runs = [RunFolder(path.parent) for path in sorted(folder.glob("*/config.json"))]
    entropies = {true_entropy(run.read_config()) for run in runs}
    assert len(entropies) == 1, f"the runs of {folder} were trained on several corpora"
    curves = [loss_curve_from_metrics(run.path.name, read_metrics(run.metrics)) for run in runs]
    # In the legend as on the page: the highest last loss first.
    ordered = sorted(curves, key=lambda curve: -curve.held_out[-1][1])
    looks = [replace(curve, colour_index=place) for place, curve in enumerate(ordered)]
    picture = draw_training_curves(looks, floor=entropies.pop())
    opening, bracket, rest = picture.partition(">")
    return f"{opening}{bracket}\n{INK}{rest.rstrip()}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="?", default="runs/demo/grammar", type=Path)
    folder = parser.parse_args().runs
    if not list(folder.glob("*/config.json")):
        print(f"there are no runs in {folder}; make them with `make demo`", file=sys.stderr)
        return 2
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(folder), encoding="utf-8")
    print(f"drawn: {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
