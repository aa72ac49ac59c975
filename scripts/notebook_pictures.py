"""Pictures of results in notebooks for docs/notebooks.md: on a light and on a dark page.

    python scripts/notebook_pictures.py [FOLDER]

Trains small runs (about a minute) and needs playwright and a Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import sync_playwright

import lmlab

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PAGE = """<!doctype html><meta charset="utf-8">
<style>
  body {{ margin: 0; font: 15px system-ui, "DejaVu Sans", sans-serif; }}
  #picture {{ display: inline-block; }}
  #picture > div {{ padding: 10px 16px; }}
  .light {{ background: #ffffff; color: #1d2430; }}
  .dark {{ background: #14171c; color: #e3e7ee; }}
</style>
<div id="picture"><div class="light">{html}</div><div class="dark">{html}</div></div>"""


def results(folder: Path) -> Mapping[str, str]:
    """The HTML of a score, a comparison and a sweep, by the picture's name."""
    options = {"ngram": {}, "lstm": {"steps": 300}, "gpt": {"steps": 150}}
    for system, budget in options.items():
        lmlab.train(
            system,
            data="grammar",
            out=folder / system,
            size="tiny",
            settings={"learning_rate": 0.01},
            quiet=True,
            **budget,
        )
    texts = ["the dog that sees mary sleeps", "the dog that sees mary sleep near a zebra"]
    spec = {
        "system": "gru",
        "data": "grammar",
        "size": "tiny",
        "steps": 60,
        "search": "grid",
        "space": {"width": [8, 16, 32], "learning_rate": [0.003, 0.01, 0.03]},
    }
    return {
        "notebook-score": lmlab.load(folder / "lstm").score(texts).to_html(),
        "notebook-comparison": lmlab.compare([folder / system for system in options]).to_html(),
        "notebook-sweep": lmlab.sweep(spec, out=folder / "sweep", quiet=True).to_html(),
    }


def main(images: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 900, "height": 600})
        for name, html in results(Path(folder)).items():
            page.set_content(PAGE.format(html=html))
            page.locator("#picture").screenshot(path=images / f"{name}.png")
            print(images / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
