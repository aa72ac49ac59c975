"""Predictions in the layout of BabyLM's evaluation of 2025, in which they are handed in.

    DIR/MODEL/main/zero_shot/BACKEND/TASK/DATASET/predictions.json

Each file has the predictions of every paradigm: `{uid: {"predictions": [{"id", "pred"}]}}`, where
an id is the paradigm and the number of the item in it; the wug test adds the first alternative's
`prob`. The backend is `causal`, or `mlm` for pseudo-log-likelihoods.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lmlab.core.atomic_files import telling_disk_errors, write_text
from lmlab.scoring.suite import ItemResult
from lmlab.scoring.suite_records import SuiteResult
from lmlab.scoring.suite_registry import SuiteData

REVISION = "main"


def babylm_predictions(result: SuiteResult) -> dict[str, dict[str, list[dict[str, object]]]]:
    """The document of one suite's predictions.json."""
    document: dict[str, dict[str, list[dict[str, object]]]] = {}
    for item in result.items:
        predictions = document.setdefault(item.paradigm, {"predictions": []})["predictions"]
        predictions.append(_prediction(item, len(predictions), result))
    return document


def _prediction(item: ItemResult, number: int, result: SuiteResult) -> dict[str, object]:
    prediction: dict[str, object] = {"id": f"{item.paradigm}_{number}", "pred": item.prediction}
    return prediction | ({"prob": item.preference} if result.measure == "spearman" else {})


def write_babylm_predictions(folder: Path, data: SuiteData, results: Sequence[SuiteResult]) -> None:
    """Write a suite's predictions of each model; suites that BabyLM lacks write nothing."""
    if data.suite.babylm_task is None:
        return
    for result in results:
        backend = "mlm" if result.kind == "pseudo" else "causal"
        run = folder / Path(result.model).name / REVISION
        place = run / "zero_shot" / backend / data.suite.babylm_task / data.path.stem
        with telling_disk_errors(place):
            place.mkdir(parents=True, exist_ok=True)
        document = json.dumps(babylm_predictions(result), ensure_ascii=False)
        write_text(place / "predictions.json", f"{document}\n")
