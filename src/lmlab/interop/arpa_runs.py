"""ARPA import and export: third-party n-gram models as runs, and n-gram runs as ARPA files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue
from lmlab.data.corpus import Layout
from lmlab.data.tokenizer_training import word_level_tokenizer
from lmlab.data.tokenizers import Tokenizer
from lmlab.emissions.ngram_table import NgramTable
from lmlab.interop.arpa_format import (
    read_arpa,
    write_arpa,
)
from lmlab.training.config import TrainingConfig
from lmlab.training.distributed import lock_output
from lmlab.training.run_folder import (
    RunFolder,
    TrainedModel,
    build_system,
    load_run,
)


def ngram_systems() -> list[str]:
    """The names of the n-gram systems."""
    return [card.name for card in catalogue().values() if "Countable" in card.protocols]


def export_arpa(run: Path | str, path: Path | str) -> None:
    """Export an n-gram run as an ARPA file; .gz compresses it."""
    model = load_run(run)
    emission = getattr(model.system, "emission", None)
    if not isinstance(emission, NgramTable):
        raise UserError(
            f"an ARPA file holds n-gram tables, but {run} is a run of {model.card.name}; systems "
            f"that have them: {', '.join(ngram_systems())}."
        )
    tokens = [model.tokenizer.token(i) for i in range(model.tokenizer.vocabulary.size)]
    write_arpa(path, emission.tables, tokens)


def import_arpa(path: Path | str, out: Path | str) -> TrainedModel:
    """Import an ARPA file as a run of the n-gram system; text is split on white space."""
    run = RunFolder(Path(out))
    with lock_output(run.path):
        _write_run(path, run)
    return load_run(out)


def _write_run(path: Path | str, run: RunFolder) -> None:
    if run.exists():
        raise UserError(f"{run.path} already holds a run; choose another --out.")
    tables, words = read_arpa(path)
    tokenizer = Tokenizer(word_level_tokenizer({word: i for i, word in enumerate(words)}))
    name, settings = ngram_systems()[0], {"order": tables.order}
    system = build_system(name, settings, tables.vocabulary, seed=0)
    emission = system.emission
    assert isinstance(emission, NgramTable)
    emission.set_tables(tables)
    run.write_description(
        {
            "system": name,
            "size": "small",
            "recipe": None,
            "seed": 0,
            "system_config": settings,
            "vocabulary": asdict(tables.vocabulary),
            "tokenizer": tokenizer.kind,
            "layout": asdict(Layout()),
            "corpus": {"name": Path(path).name, "spec": "", "fingerprint": "", "seed": 0},
            "training": asdict(TrainingConfig()),
        },
        tokenizer,
        weights=system,
    )
