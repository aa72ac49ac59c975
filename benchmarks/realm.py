"""REALM on WordNet: masked LM loss with retrieved glosses and without, and question answering.

    python benchmarks/realm.py [--seeds 1] [--steps 2000] [--runs DIR] [--out FILE] [--set A=B]
                               [--hidden-words]

Per seed four training runs of --steps steps each: `dpr` by the inverse cloze task on
WordNet's texts, with subwords; `realm` on the same texts with WordNet's glosses as documents,
initialised from those encoders; the same without retrieval (retrieved=0); and `realm` with span
extraction on WordNet's cloze questions, initialised from the masked run, whose document embeddings
are reused. Metrics on the test split: nats per masked token with the retrieved documents, with the
null document alone, and of the model without retrieval; mean retrieval utility; exact match of the
removed word, by the most probable token of both masked models (so that only words of one token can
be correct), by spans, and by spans of BM25's documents instead of the retriever's; and retrieval
recall of the answer. With --runs the training runs are saved and resumed; a row is written to --out
when it is complete, and not measured again. With --hidden-words the span stage and all questions
are skipped.
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

BATCH_SIZE = 32
STAGES: dict[str, tuple[str, str, str | None, dict[str, str]]] = {
    "inverse cloze": ("dpr", "wordnet", None, {}),
    "masked": ("realm", "wordnet", "inverse cloze", {}),
    "without retrieval": ("realm", "wordnet", "inverse cloze", {"retrieved": "0"}),
    "spans": ("realm", "wordnet-questions", "masked", {"objective": "spans"}),
}
"""System, corpus, the stage it is initialised from, and settings."""


def settings_of(system: str, assignments: Sequence[str]) -> dict[str, str]:
    """Those of NAME=VALUE that a system has; realm gets all, so that it rejects unknown ones.

    Settings of both must be equal in both, since realm is initialised from dpr's encoders.
    """
    parts = (system_module(system).Config, TrainingConfig)
    names = {spec.name for part in parts for spec in fields(part)}
    values = dict(assignment.split("=", 1) for assignment in assignments)
    return {k: v for k, v in values.items() if system == "realm" or k.replace("-", "_") in names}


def train_stages(seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Train all stages of a seed; their run folders."""
    runs: dict[str, Path] = {}
    for stage, (system, corpus, base, settings) in STAGES.items():
        if stage == "spans" and options.hidden_words:
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
                settings=settings_of(system, options.set) | settings,
                steps=options.steps,
                seed=seed,
                resume=runs[stage].exists(),
                quiet=True,
            )
        )
        print(f"seed {seed}: {stage} is trained", flush=True)
    return runs


def text_batches(model: TrainedModel, texts: Sequence[str]) -> Iterator[Batch]:
    """Batches of texts, in order."""
    vocabulary = model.system.vocabulary
    assert vocabulary.start is not None and vocabulary.end is not None
    for first in range(0, len(texts), BATCH_SIZE):
        chunk = texts[first : first + BATCH_SIZE]
        rows = [[vocabulary.start, *model.tokenizer.encode(text), vocabulary.end] for text in chunk]
        yield Batch.collate(rows, pad=vocabulary.pad)


@torch.no_grad()
def masked_lm_metrics(run: Path, texts: Sequence[str]) -> dict[str, float]:
    """Nats per masked token with and without retrieved documents, and retrieval utility.

    The masked tokens depend on the text and a seed only, so that runs are comparable.
    """
    model = load_run(run)
    system: Any = model.system
    sums = {"nats with documents": 0.0, "nats with the null document": 0.0, "utility": 0.0}
    tokens = documents = 0
    for number, batch in enumerate(text_batches(model, texts)):
        generator = torch.Generator().manual_seed(number)
        view = system.objective.view(batch, generator=generator)
        retrieved = system.backbone.find(view, clean=batch)
        log_probs = system.log_probs_given_documents(view, retrieved.numbers)
        real = (retrieved.numbers >= 0) & (retrieved.log_probs > -torch.inf)
        sums["nats with documents"] -= float(
            torch.logsumexp(retrieved.log_probs + log_probs, 1).sum()
        )
        sums["nats with the null document"] -= float(log_probs[:, 0].sum())
        sums["utility"] += float((log_probs - log_probs[:, :1])[real].sum())
        tokens, documents = tokens + int(prediction_mask(view).sum()), documents + int(real.sum())
    counts = {"utility": max(documents, 1)}
    return {name: total / counts.get(name, tokens) for name, total in sums.items()}


def exact_match(answers: Sequence[list[Answer]], questions: Sequence[Example]) -> float:
    pairs = zip(answers, questions, strict=True)
    # BM25 retrieves nothing for a question that shares no word with any document.
    return sum(
        bool(predicted) and predicted[0].text == question.text for predicted, question in pairs
    ) / len(questions)


def run_exact_match(run: Path, questions: Sequence[Example]) -> float:
    """Exact match of a run's answers, with its own retriever."""
    system: Any = load_run(run).system
    texts = [str(question.condition) for question in questions]
    batches = [system.ask(texts[i : i + BATCH_SIZE]) for i in range(0, len(texts), BATCH_SIZE)]
    return exact_match([answer for batch in batches for answer in batch], questions)


@torch.no_grad()
def bm25_exact_match(run: Path, questions: Sequence[Example]) -> float:
    """Exact match of a run's span extraction from BM25's documents, weighted by their scores."""
    model = load_run(run)
    system: Any = model.system
    index = LexicalIndex.build([document.text for document in system.documents])
    answers: list[list[Answer]] = []
    for first in range(0, len(questions), BATCH_SIZE):
        texts = [str(question.condition) for question in questions[first : first + BATCH_SIZE]]
        scores, numbers = index.search(texts, system.retriever.retrieved)
        log_probs = torch.log_softmax(torch.from_numpy(scores.copy()), 1)
        retrieved = RetrievedDocuments(
            numbers=torch.from_numpy(numbers.copy()).long(), log_probs=log_probs
        )
        answers += system.answers_from_documents(system.encode_questions(texts), retrieved)
    return exact_match(answers, questions)


@torch.no_grad()
def answer_recall(run: Path, questions: Sequence[Example]) -> dict[str, float]:
    """Retrieval recall of the answer, by the run and by BM25."""
    system: Any = load_run(run).system
    index = LexicalIndex.build([document.text for document in system.documents])
    counts = {"spans": 0, "spans, BM25": 0}
    for first in range(0, len(questions), BATCH_SIZE):
        chunk = questions[first : first + BATCH_SIZE]
        texts = [str(question.condition) for question in chunk]
        retrieved = {
            "spans": system.retrieve(system.encode_questions(texts)).numbers.tolist(),
            "spans, BM25": index.search(texts, system.retriever.retrieved)[1].tolist(),
        }
        for retriever, rows in retrieved.items():
            for question, numbers in zip(chunk, rows, strict=True):
                documents = [f" {system.documents[n].text} " for n in numbers if n >= 0]
                counts[retriever] += any(f" {question.text} " in text for text in documents)
    return {retriever: count / len(questions) for retriever, count in counts.items()}


def seed_metrics(
    runs: dict[str, Path], texts: Sequence[str], questions: Sequence[Example]
) -> dict[str, Any]:
    """All metrics of one seed."""
    row: dict[str, Any] = {}
    for stage in ("masked", "without retrieval"):
        row[stage] = masked_lm_metrics(runs[stage], texts)
    if "spans" not in runs:
        return row
    row["exact match"] = {
        stage: run_exact_match(runs[stage], questions)
        for stage in ("masked", "without retrieval", "spans")
    }
    row["exact match"]["spans, BM25"] = bm25_exact_match(runs["spans"], questions)
    row["answer found"] = answer_recall(runs["spans"], questions)
    return row


def evenly_spaced(split: Any, count: int) -> list[Example]:
    """`count` examples of a split, evenly spaced: nouns come first and adverbs last."""
    examples = list(split)
    return examples[:: max(1, len(examples) // count)][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--test", type=int, default=1000, help="number of test texts and questions")
    parser.add_argument(
        "--set", nargs="*", default=[], help="settings of realm, NAME=VALUE; dpr gets those it has"
    )
    parser.add_argument("--runs", type=Path, help="save training runs in this folder")
    parser.add_argument(
        "--hidden-words", action="store_true", help="skip the span stage and the questions"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    texts = [
        example.text
        for example in evenly_spaced(open_corpus("wordnet").splits["test"], options.test)
    ]
    questions = evenly_spaced(open_corpus("wordnet-questions").splits["test"], options.test)
    header = {"texts": len(texts), "questions": len(questions), "settings": options.set}
    header["hidden words"] = options.hidden_words
    rows: list[dict[str, Any]] = []
    if options.out is not None and options.out.exists():
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
        rows = earlier.pop("rows")
        if earlier != header:
            raise SystemExit(f"{options.out} was measured with {earlier}; choose another --out.")
    done = {(row["seed"], row["steps"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in (seed for seed in range(options.seeds) if (seed, options.steps) not in done):
            runs = train_stages(seed, options, options.runs or Path(temporary))
            metrics = seed_metrics(runs, texts, questions)
            rows.append({"seed": seed, "steps": options.steps, **metrics})
            print(rows[-1], flush=True)
            if options.out is not None:
                record = json.dumps({**header, "rows": rows}, indent=1)
                options.out.write_text(record + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
