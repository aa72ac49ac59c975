"""lmlab: a laboratory for language models.

Train, score, sample and compare, as `lmlab --help` does, on objects:

    lmlab.train("lstm", data="capitals", out="runs/lstm")
    model = lmlab.load("runs/lstm")
    model.score(["中国的首都是北京"])
    model.sample(3, seed=0)
    lmlab.compare(["runs/lstm", "runs/ngram"])
    lmlab.wrap(module, tokenizer).score(["anybody's torch module"])

See `lmlab.api`. Importing this package imports neither torch nor anything else that is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmlab.api import ablate as ablate
    from lmlab.api import compare as compare
    from lmlab.api import doctor as doctor
    from lmlab.api import evaluate as evaluate
    from lmlab.api import inspect as inspect
    from lmlab.api import load as load
    from lmlab.api import pairs as pairs
    from lmlab.api import show_objective as show_objective
    from lmlab.api import systems as systems
    from lmlab.api import train as train
    from lmlab.api import wrap as wrap
    from lmlab.core.errors import UserError as UserError
    from lmlab.index_api import build_index as build_index
    from lmlab.index_api import open_index as open_index
    from lmlab.language_model import LanguageModel as LanguageModel
    from lmlab.tasks.finetune import finetune as finetune
    from lmlab.tasks.loading import load_task
    from lmlab.tasks.setting_listing import settings

__version__ = "0.1.0"
__all__ = [
    "LanguageModel",
    "UserError",
    "ablate",
    "build_index",
    "compare",
    "doctor",
    "evaluate",
    "finetune",
    "inspect",
    "load",
    "load_task",
    "open_index",
    "pairs",
    "settings",
    "show_objective",
    "systems",
    "train",
    "wrap",
]

OTHER_MODULES = {
    "LanguageModel": "lmlab.language_model",
    "UserError": "lmlab.core.errors",
    "build_index": "lmlab.index_api",
    "finetune": "lmlab.tasks.finetune",
    "load_task": "lmlab.tasks.loading",
    "open_index": "lmlab.index_api",
    "settings": "lmlab.tasks.setting_listing",
}
"""Modules of the public names that are not in `lmlab.api`."""


def __getattr__(name: str) -> Any:
    """Public names, imported lazily (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'lmlab' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(OTHER_MODULES.get(name, "lmlab.api")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
