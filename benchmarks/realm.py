"""REALM on WordNet: masked LM loss with retrieved glosses and without, and question answering.

    python benchmarks/realm.py [--seeds 1] [--steps 2000] [--runs DIR] [--out FILE] [--set A=B]
                               [--hidden-words]

For each seed a sequence of training runs, each of --steps steps: `dpr` by the inverse cloze task on
WordNet's texts, with subwords; `realm` on the same texts with WordNet's glosses as documents,
initialised from those encoders; the same without retrieval (retrieved=0); and `realm` by spans on
WordNet's examples with a blank, from the masked run, whose document vectors are kept. Figures on
the test split: nats per masked token with the retrieved documents, with the null document alone,
and of the model without retrieval; mean retrieval utility; exact match of the removed word, by the
most probable token of both masked models (so that only words of one token can be right), by spans,
and by spans of the documents that BM25 retrieves instead of the retriever; and how often the answer
occurs in a retrieved document. With --runs the training runs are kept and resumed; a row is written
to --out when it is complete, and not measured again. With --hidden-words the span stage and all
questions are skipped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from finishing import finished

from lmlab.core.answers import Answer
from lmlab.core.batch import Batch
from lmlab.core.parts import prediction_mask
from lmlab.core.registry import system_module
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.data.corpus import open_corpus
from lmlab.data.readers import Example
from lmlab.retrieval.bm25 import LexicalIndex
from lmlab.training.config import TrainingConfig
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train

AT_ONCE = 32
STAGES: dict[str, tuple[str, str, str | None, dict[str, str]]] = {
    "inverse cloze": ("dpr", "wordnet", None, {}),
    "masked": ("realm", "wordnet", "inverse cloze", {}),
    "without retrieval": ("realm", "wordnet", "inverse cloze", {"retrieved": "0"}),
    "spans": ("realm", "wordnet-questions", "masked", {"objective": "spans"}),
}
"""System, corpus, the stage it is initialised from, and settings."""


def settings_of(system: str, given: Sequence[str]) -> dict[str, str]:
    """Those of NAME=VALUE that a stage has; realm is given all of them, so that it refuses others.

    What both have must be the same in both: realm begins with dpr's encoders.
    """
    parts = (system_module(system).Config, TrainingConfig)
    own = {spec.name for part in parts for spec in fields(part)}
    every = dict(each.split("=", 1) for each in given)
    return {k: v for k, v in every.items() if system == "realm" or k.replace("-", "_") in own}


def trained(seed: int, given: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """All stages of a seed."""
    runs: dict[str, Path] = {}
    for stage, (system, corpus, base, settings) in STAGES.items():
        if stage == "spans" and given.hidden_words:
            continue
        runs[stage] = folder / f"{stage.replace(' ', '-')}-{seed}"
        finished(
            train(
                system,
                data=corpus,
                tokenizer="wordpiece" if base is None else None,
                out=runs[stage],
                recipe="glosses",
                base=None if base is None else runs[base],
                settings=settings_of(system, given.set) | settings,
                steps=given.steps,
                seed=seed,
                resume=runs[stage].exists(),
                quiet=True,
            )
        )
        print(f"seed {seed}: {stage} is trained", flush=True)
    return runs


def rows_of(model: TrainedModel, texts: Sequence[str]) -> Iterator[Batch]:
    """Batches of texts, in order."""
    symbols = model.system.vocabulary
    assert symbols.start is not None and symbols.end is not None
    for first in range(0, len(texts), AT_ONCE):
        here = texts[first : first + AT_ONCE]
        rows = [[symbols.start, *model.tokenizer.encode(text), symbols.end] for text in here]
        yield Batch.collate(rows, pad=symbols.pad)


@torch.no_grad()
def masked_figures(run: Path, texts: Sequence[str]) -> dict[str, float]:
    """Nats per masked token with and without retrieved documents, and retrieval utility.

    The masked tokens depend on the text and a seed only, so that runs are comparable.
    """
    model = load_run(run)
    system: Any = model.system
    sums = {"nats with documents": 0.0, "nats with the null document": 0.0, "utility": 0.0}
    tokens = documents = 0
    for number, batch in enumerate(rows_of(model, texts)):
        generator = torch.Generator().manual_seed(number)
        view = system.objective.view(batch, generator=generator)
        found = system.backbone.find(view, clean=batch)
        each = system.log_probs_given_documents(view, found.numbers)
        real = (found.numbers >= 0) & (found.log_probs > -torch.inf)
        sums["nats with documents"] -= float(torch.logsumexp(found.log_probs + each, 1).sum())
        sums["nats with the null document"] -= float(each[:, 0].sum())
        sums["utility"] += float((each - each[:, :1])[real].sum())
        tokens, documents = tokens + int(prediction_mask(view).sum()), documents + int(real.sum())
    counts = {"utility": max(documents, 1)}
    return {name: total / counts.get(name, tokens) for name, total in sums.items()}


def exact_match(answers: Sequence[list[Answer]], questions: Sequence[Example]) -> float:
    pairs = zip(answers, questions, strict=True)
    # BM25 finds nothing for a question that shares no word with any document.
    return sum(bool(found) and found[0].text == asked.text for found, asked in pairs) / len(
        questions
    )


def asked(run: Path, questions: Sequence[Example]) -> float:
    """Exact match of a run's own answers."""
    system: Any = load_run(run).system
    texts = [str(each.condition) for each in questions]
    parts = [system.ask(texts[i : i + AT_ONCE]) for i in range(0, len(texts), AT_ONCE)]
    return exact_match([answer for part in parts for answer in part], questions)


@torch.no_grad()
def read_from_bm25(run: Path, questions: Sequence[Example]) -> float:
    """Exact match of the same reader with the documents of BM25, weighted equally."""
    model = load_run(run)
    system: Any = model.system
    index = LexicalIndex.build([document.text for document in system.documents])
    found: list[list[Answer]] = []
    for first in range(0, len(questions), AT_ONCE):
        texts = [str(each.condition) for each in questions[first : first + AT_ONCE]]
        scores, numbers = index.search(texts, system.retriever.retrieved)
        shares = torch.log_softmax(torch.from_numpy(scores.copy()), 1)
        retrieved = RetrievedDocuments(
            numbers=torch.from_numpy(numbers.copy()).long(), log_probs=shares
        )
        found += system.answers_from_documents(system.encode_questions(texts), retrieved)
    return exact_match(found, questions)


@torch.no_grad()
def answer_found(run: Path, questions: Sequence[Example]) -> dict[str, float]:
    """Retrieval recall of the answer, by the run and by BM25."""
    system: Any = load_run(run).system
    index = LexicalIndex.build([document.text for document in system.documents])
    counts = {"spans": 0, "spans, BM25": 0}
    for first in range(0, len(questions), AT_ONCE):
        some = questions[first : first + AT_ONCE]
        texts = [str(each.condition) for each in some]
        found = {
            "spans": system.retrieve(system.encode_questions(texts)).numbers.tolist(),
            "spans, BM25": index.search(texts, system.retriever.retrieved)[1].tolist(),
        }
        for way, rows in found.items():
            for each, numbers in zip(some, rows, strict=True):
                read = [f" {system.documents[n].text} " for n in numbers if n >= 0]
                counts[way] += any(f" {each.text} " in text for text in read)
    return {way: count / len(questions) for way, count in counts.items()}


def figures(
    runs: dict[str, Path], texts: Sequence[str], questions: Sequence[Example]
) -> dict[str, Any]:
    """The figures of one seed."""
    row: dict[str, Any] = {}
    for stage in ("masked", "without retrieval"):
        row[stage] = masked_figures(runs[stage], texts)
    if "spans" not in runs:
        return row
    row["exact match"] = {
        stage: asked(runs[stage], questions) for stage in ("masked", "without retrieval", "spans")
    }
    row["exact match"]["spans, BM25"] = read_from_bm25(runs["spans"], questions)
    row["answer found"] = answer_found(runs["spans"], questions)
    return row


def spread(split: Any, count: int) -> list[Example]:
    """`count` examples of a split, evenly spaced: nouns come first and adverbs last."""
    every = list(split)
    return every[:: max(1, len(every) // count)][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--test", type=int, default=1000, help="number of test texts and questions")
    parser.add_argument("--set", nargs="*", default=[], help="settings of realm; dpr takes its own")
    parser.add_argument("--runs", type=Path, help="folder of the training runs")
    parser.add_argument("--hidden-words", action="store_true", help="no spans, no questions")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    texts = [each.text for each in spread(open_corpus("wordnet").splits["test"], given.test)]
    questions = spread(open_corpus("wordnet-questions").splits["test"], given.test)
    told = {"texts": len(texts), "questions": len(questions), "settings": given.set}
    told["hidden words"] = given.hidden_words
    rows: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        before = json.loads(given.out.read_text(encoding="utf-8"))
        rows = before.pop("rows")
        if before != told:
            raise SystemExit(f"{given.out} was measured with {before}; choose another.")
    done = {(row["seed"], row["steps"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in (seed for seed in range(given.seeds) if (seed, given.steps) not in done):
            runs = trained(seed, given, given.runs or Path(temporary))
            found = figures(runs, texts, questions)
            rows.append({"seed": seed, "steps": given.steps, **found})
            print(rows[-1], flush=True)
            if given.out is not None:
                record = json.dumps({**told, "rows": rows}, indent=1)
                given.out.write_text(record + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
