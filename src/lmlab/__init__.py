"""lmlab: a laboratory for language models.

Train, score, sample and compare, as `lmlab --help` does, on objects:

    lmlab.train("lstm", data="capitals", out="runs/lstm")
    model = lmlab.load("runs/lstm")
    model.score(["中国的首都是北京"])
    model.sample(3, seed=0)
    lmlab.compare(["runs/lstm", "runs/ngram"])
    lmlab.wrap(module, tokenizer).score(["anybody's torch module"])

The imports below are the table of public names; docs/python.md says which command is which. The
modules of `lmlab.verbs` are light: this package imports neither torch nor anything else slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from lmlab.core.errors import UserError as UserError
from lmlab.serve.serving import serve as serve
from lmlab.verbs.benchmarks import bench as bench
from lmlab.verbs.catalogue import find as find
from lmlab.verbs.catalogue import register as register
from lmlab.verbs.catalogue import settings as settings
from lmlab.verbs.catalogue import systems as systems
from lmlab.verbs.configuration import read_config as read_config
from lmlab.verbs.conformance import conformance as conformance
from lmlab.verbs.diagnosis import ablate as ablate
from lmlab.verbs.diagnosis import doctor as doctor
from lmlab.verbs.diagnosis import inspect as inspect
from lmlab.verbs.diagnosis import show_objective as show_objective
from lmlab.verbs.evaluation import compare as compare
from lmlab.verbs.evaluation import pairs as pairs
from lmlab.verbs.generation import evaluate as evaluate
from lmlab.verbs.language_model import LanguageModel as LanguageModel
from lmlab.verbs.large_files import encode_file as encode_file
from lmlab.verbs.large_files import fill_file as fill_file
from lmlab.verbs.large_files import score_file as score_file
from lmlab.verbs.large_files import translate_file as translate_file
from lmlab.verbs.loading import load as load
from lmlab.verbs.loading import wrap as wrap
from lmlab.verbs.mixing import mix as mix
from lmlab.verbs.resources import data_describe as data_describe
from lmlab.verbs.resources import data_list as data_list
from lmlab.verbs.resources import export_arpa as export_arpa
from lmlab.verbs.resources import export_hf as export_hf
from lmlab.verbs.resources import export_words as export_words
from lmlab.verbs.resources import import_arpa as import_arpa
from lmlab.verbs.resources import import_hf as import_hf
from lmlab.verbs.resources import index_build as index_build
from lmlab.verbs.resources import index_info as index_info
from lmlab.verbs.resources import index_search as index_search
from lmlab.verbs.resources import open_index as open_index
from lmlab.verbs.resources import words as words
from lmlab.verbs.runs import runs as runs
from lmlab.verbs.runs import runs_diff as runs_diff
from lmlab.verbs.runs import runs_rm as runs_rm
from lmlab.verbs.runs import runs_show as runs_show
from lmlab.verbs.runs import runs_tag as runs_tag
from lmlab.verbs.score_tables import score as score
from lmlab.verbs.score_tables import score_stream as score_stream
from lmlab.verbs.sweeps import sweep as sweep
from lmlab.verbs.training import demo as demo
from lmlab.verbs.training import finetune as finetune
from lmlab.verbs.training import load_task as load_task
from lmlab.verbs.training import predict as predict
from lmlab.verbs.training import train as train


def _prepare_session() -> None:
    from lmlab.verbs.notebook_session import in_ipython, shorten_warnings

    if in_ipython():
        shorten_warnings()


_prepare_session()
del _prepare_session

if not TYPE_CHECKING:  # a checker knows the names above alone

    def __getattr__(name: str) -> Any:
        """The verbs of plug-ins, imported when they are asked for."""
        from lmlab.core.plugins import find_plugin_verb

        verb = None if name.startswith("_") else find_plugin_verb(name, set(globals()))
        if verb is None:
            raise AttributeError(f"module 'lmlab' has no attribute {name!r}")
        return verb

    _NAMES = [n for n, v in globals().items() if getattr(v, "__module__", "").startswith("lmlab.")]

    def __dir__() -> list[str]:
        """The public names and the verbs of plug-ins, which interactive shells complete."""
        from lmlab.core.plugins import plugin_verbs

        verbs = plugin_verbs(set(globals())).usable
        return sorted([*_NAMES, *(name.replace("-", "_") for name in verbs), "__version__"])
