"""Registry of the metrics of `lmlab compare`: every file of `metrics/`, by its METRIC; plug-ins."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from lmlab.core.plugins import METRICS, Plugin, load_plugins, plugins
from lmlab.scoring import metrics
from lmlab.scoring.metric import Metric


def all_metrics() -> dict[str, Metric]:
    """Every metric by name, in the order of the columns; imports their files."""
    files = [file.name for file in pkgutil.iter_modules(metrics.__path__)]
    loaded = {name: importlib.import_module(f"{metrics.__name__}.{name}").METRIC for name in files}
    misnamed = {name: metric.name for name, metric in loaded.items() if metric.name != name}
    assert not misnamed, f"the files of these metrics have other names: {misnamed}"
    loaded |= load_plugins("metric", plugins(METRICS), loaded, _checked_metric)
    return dict(sorted(loaded.items(), key=lambda item: (item[1].table.order, item[0])))


def _checked_metric(plugin: Plugin, metric: Any) -> Metric:
    if not isinstance(metric, Metric) or metric.name != plugin.name:
        raise plugin.error(
            f"{plugin.target} must be an lmlab.scoring.metric.Metric with the name {plugin.name!r}"
        )
    return metric
