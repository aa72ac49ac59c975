"""Reference bands: losses of short runs of healthy systems, by corpus.

The file is written by `python scripts/build_reference_bands.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from lmlab.diagnosis.findings import ReferenceBand

ANY_FAMILY = "any"
"""The band of all families, for a family without its own."""
REFERENCE_FILE = "reference_bands.json"


def find_reference_band(config: Mapping[str, Any], family: str) -> ReferenceBand | None:
    """The reference band for a run with this config.json; None if there is none.

    The corpus must be built in and tokenised as in the reference runs.
    """
    corpus = read_reference_bands().get(str(config["corpus"]["spec"]))
    if corpus is None or corpus["tokenizer"] != config["tokenizer"]:
        return None
    if corpus["vocabulary"] != config["vocabulary"]["size"]:
        return None
    chosen = family if family in corpus["families"] else ANY_FAMILY
    entry = corpus["families"].get(chosen)
    if entry is None:
        return None
    return ReferenceBand(
        corpus=str(config["corpus"]["spec"]),
        family=chosen,
        systems=tuple(entry["systems"]),
        points=tuple((float(t), float(low), float(high)) for t, low, high in entry["points"]),
    )


@cache
def read_reference_bands() -> dict[str, Any]:
    """The bands by corpus."""
    file = resources.files("lmlab.data") / REFERENCE_FILE
    if not file.is_file():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8"))["corpora"])
