"""DPR against BM25 on WordNet: recall of the right gloss among the top retrieved.

    python benchmarks/dpr.py [--seeds 1] [--steps 1000] [--runs DIR] [--out FILE] [--set NAME=VALUE]
                             [--base RUN] [--choice few]

Questions are examples of WordNet with their word removed, of synsets that occur in no training
question; the target document is the synset's gloss, preceded by the words that it defines. `dpr` is
trained on pairs of questions and glosses (`wordnet-examples`), `dpr, inverse cloze` on WordNet's
texts alone; both by the recipe `glosses`, for --steps steps, with subwords. `dpr, hard negatives`
also has one BM25 negative per question; `dpr, one step` is the control, with nearly random vectors.
Reported is recall at 1, 5 and 20 over all 117,659 glosses, and over the 1,000 that the first test
questions ask for; --choice few skips the former, which takes a large encoder half an hour. With
--base, a run to start from, there are two more rows: `the base as it is`, and `dpr, from the base`,
which has its sizes and tokenizer and is trained as `dpr` is; `--only` without a name skips all
others. With --runs, training runs are saved and resumed; rows are written to --out as they are
measured, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finishing import finished
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.data.corpus import open_corpus
from lmlab.data.readers import Example
from lmlab.retrieval.bm25 import LexicalIndex
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Documents, gloss_documents
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

RECALL_AT = (1, 5, 20)
SUBSET_SIZE = 1000
"""Documents of the smaller collection."""
MAX_GLOSS_LENGTH = 64
"""Maximum tokens of a gloss."""
CORPORA = {
    "dpr": "wordnet-examples",
    "dpr, inverse cloze": "wordnet",
    "dpr, hard negatives": "wordnet-examples",
    "dpr, one step": "wordnet-examples",
}
UNCHANGED_BASE, FROM_BASE = "the base as it is", "dpr, from the base"
ROW_SETTINGS = {"dpr, hard negatives": {"hard_negatives": "1"}}
"""Additional settings by row."""

Search = Callable[[list[str], int], NDArray[np.int64]]
"""Maps questions to the indices of the retrieved documents, (questions, k)."""


def recalls(search: Search, documents: Documents, questions: list[Example]) -> dict[str, float]:
    """The share of questions whose document is among the first k."""
    targets = np.array([documents.numbers[str(question.name)] for question in questions])
    retrieved = search([str(question.condition) for question in questions], max(RECALL_AT))
    return {
        f"recall@{k}": float((retrieved[:, :k] == targets[:, None]).any(1).mean())
        for k in RECALL_AT
    }


def bm25_search(documents: Documents) -> Search:
    """BM25 search."""
    index = LexicalIndex.build([document.text for document in documents])
    return lambda texts, k: index.search(texts, k)[1]


def dense_search(run: Path, documents: Documents) -> Search:
    """Exact (exhaustive) nearest-neighbour search with a run's encoders."""
    model = load_run(run)
    system: Any = model.system
    with torch.no_grad():
        width = system.encode(Batch.collate([[system.vocabulary.bos]], 0)).shape[1]
    memory = DocumentMemory(
        documents, system.vocabulary, width=width, max_document_length=MAX_GLOSS_LENGTH
    )
    memory.setup_tokenizer(model.tokenizer)
    memory.embed(system.encode)

    @torch.no_grad()
    def search(texts: list[str], k: int) -> NDArray[np.int64]:
        vocabulary = system.vocabulary
        rows = [[vocabulary.start, *model.tokenizer.encode(t), vocabulary.end] for t in texts]
        batches = [
            memory.search(system.encode_queries(Batch.collate(rows[i : i + 256], 0)), k)
            for i in range(0, len(rows), 256)
        ]
        return torch.cat(batches).numpy()

    return search


def recall_figures(
    build_search: Callable[[Documents], Search],
    documents: Documents,
    questions: list[Example],
    *,
    search_all: bool,
) -> dict[str, Any]:
    """Recall over all documents (if `search_all`), and over those of the first questions."""
    names = list(dict.fromkeys(str(question.name) for question in questions))[:SUBSET_SIZE]
    subset = Documents(documents[documents.numbers[name]] for name in names)
    subset_questions = [question for question in questions if question.name in subset.numbers]
    over_all = (
        {"of all": recalls(build_search(documents), documents, questions)} if search_all else {}
    )
    return over_all | {f"of {len(subset)}": recalls(build_search(subset), subset, subset_questions)}


def train_run(
    name: str, seed: int, options: argparse.Namespace, folder: Path
) -> tuple[Path, float]:
    """Train or resume the run of a seed; return it and the seconds of this call."""
    base = options.base if name == FROM_BASE else None
    name_parts = [*name.split(), *([] if base is None else [base.name]), str(seed)]
    run, start = folder / "-".join(name_parts).replace(",", ""), time.perf_counter()
    finished(
        train(
            "dpr",
            data=CORPORA.get(name, "wordnet-examples"),
            tokenizer="wordpiece" if base is None else None,
            base=base,
            out=run,
            recipe="glosses",
            settings=dict(setting.split("=", 1) for setting in options.set)
            | ROW_SETTINGS.get(name, {}),
            steps=steps_of(name, options),
            seed=seed,
            resume=run.exists(),
            quiet=True,
        )
    )
    return run, time.perf_counter() - start


def steps_of(name: str, options: argparse.Namespace) -> int:
    return 1 if name == "dpr, one step" else int(options.steps)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a row; rows of a base include the name of its folder."""
    return tuple(row.get(name) for name in ("way", "base", "seed", "steps"))


def planned_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The requested rows, before they are measured."""
    rows: list[dict[str, Any]] = [{"way": "bm25"}]
    base = {} if options.base is None else {"base": options.base.name}
    rows += [{"way": UNCHANGED_BASE, **base}] if base else []
    for name in [*options.only, *([FROM_BASE] if base else [])]:
        row_base = base if name == FROM_BASE else {}
        seeds = range(options.seeds)
        rows += [
            {"way": name, **row_base, "seed": n, "steps": steps_of(name, options)} for n in seeds
        ]
    return rows


def measure_row(
    row: dict[str, Any],
    options: argparse.Namespace,
    folder: Path,
    documents: Documents,
    questions: list[Example],
) -> dict[str, Any]:
    """A planned row with its figures; trains the model if needed."""
    compute = partial(
        recall_figures, documents=documents, questions=questions, search_all=options.choice == "all"
    )
    if row["way"] == "bm25":
        return {**row, **compute(bm25_search)}
    if row["way"] == UNCHANGED_BASE:
        return {**row, **compute(partial(dense_search, options.base))}
    run, seconds = train_run(row["way"], row["seed"], options, folder)
    return {**row, **compute(partial(dense_search, run)), "training seconds": seconds}


def load_record(options: argparse.Namespace, questions: int) -> dict[str, Any]:
    """Existing measurements with the same settings, to continue."""
    record: dict[str, Any] = {"questions": questions, "settings": options.set, "rows": []}
    if options.out is None or not options.out.exists():
        return record
    earlier: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8"))
    if earlier["settings"] != options.set:
        raise SystemExit(f"{options.out} was measured with {earlier['settings']}; choose another.")
    return earlier


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=list(CORPORA), choices=list(CORPORA))
    parser.add_argument("--set", nargs="*", default=[], help="settings of dpr or of its training")
    parser.add_argument("--base", type=Path, help="run to start from, e.g. made by import-hf")
    parser.add_argument("--choice", default="all", choices=["all", "few"])
    parser.add_argument("--runs", type=Path, help="folder of the training runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    documents, questions = gloss_documents(), list(open_corpus("wordnet-examples").splits["test"])
    record = load_record(options, len(questions))
    # A row without the figures over all documents is measured again if they are requested.
    done = {key_of(row) for row in record["rows"] if options.choice == "few" or "of all" in row}
    with tempfile.TemporaryDirectory() as temporary:
        for row in planned_rows(options):
            if key_of(row) in done:
                continue
            measured_row = measure_row(
                row, options, options.runs or Path(temporary), documents, questions
            )
            others = [other for other in record["rows"] if key_of(other) != key_of(row)]
            record["rows"] = [*others, measured_row]
            print(measured_row, flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
