"""How the variants of a comparison are trained and measured: one function for each protocol.

All are small: a text of the repository or multi30k, a network of width 64 to 128, minutes. With
`Budget.check` every training takes two steps, to see that it starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from country_documents import NETWORK, write_data
from country_documents import tokenizer as document_tokenizer
from finishing import finished

import lmlab
from lmlab.data.corpus import Layout, open_corpus
from lmlab.data.languages import recall
from lmlab.data.languages.capitals_annotated import (
    capital_questions,
    countries_with_capital_unstated,
)
from lmlab.data.tokenizers import tokenizer_for

Settings = Mapping[str, Any]
ADAMW = {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One variant of a comparison and one seed."""

    system: str
    settings: Settings
    seed: int
    folder: Path
    """For runs and texts; thrown away afterwards, as a trial takes minutes."""
    data: str = ""
    check: bool = False
    """Two steps of each training only."""

    def steps(self, count: int) -> int:
        return 2 if self.check else count

    def train(self, name: str, corpus: Any, settings: Settings, *, steps: int, **more: Any) -> Path:
        """The folder of a finished training, below the trial's."""
        return Path(self._trained(name, corpus, settings, steps, more).path)

    def held_out_loss(self, corpus: Any, settings: Settings, *, steps: int, **more: Any) -> float:
        """The held-out loss at the end of a training."""
        return float(self._trained("run", corpus, settings, steps, more).loss)

    def _trained(
        self, name: str, corpus: Any, settings: Settings, steps: int, more: dict[str, Any]
    ) -> Any:
        return finished(
            lmlab.train(
                self.system,
                data=corpus,
                out=self.folder / name,
                settings={"evaluate_every": 10**6} | dict(settings),
                steps=self.steps(steps),
                seed=self.seed,
                quiet=True,
                **more,
            )
        )

    def finetune(self, base: Path, task: str, data: Any, *, steps: int, **more: Any) -> Any:
        """The result of fine-tuning."""
        return lmlab.finetune(
            base,
            task=task,
            data=data,
            out=self.folder / f"{base.name}-{task}",
            steps=self.steps(steps),
            settings={"evaluate_every": 10**6} | more.pop("settings", {}),
            seed=self.seed,
            quiet=True,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A function that trains and measures, and its main metric."""

    description: str
    measure: Callable[[Trial], dict[str, float]]
    metric: str
    higher_is_better: bool = True
    needs_data: bool = False


# Protocols ---------------------------------------------------------------------------------------


def documents(trial: Trial) -> dict[str, float]:
    """Pre-train on documents about countries, then generate a document's country and capital."""
    texts, rows = write_data(trial.folder)
    tokenizer = str(document_tokenizer(trial.folder))
    settings = {"tokens_per_batch": 1024, **ADAMW, **NETWORK, **trial.settings}
    base = trial.train("base", str(texts), settings, steps=500, tokenizer=tokenizer)
    adafactor = settings.get("optimizer") == "adafactor"
    rate = {"optimizer": "adafactor", "learning_rate": 0.01} if adafactor else ADAMW_FINETUNING
    result = trial.finetune(
        base,
        "generate",
        rows,
        steps=150,
        examples=8 if trial.check else 300,
        settings={"tokens_per_batch": 1024} | rate,
    )
    return {name: float(result.metrics[name]) for name in ("rougeL", "exact_match")}


ADAMW_FINETUNING = {"learning_rate": 1e-3}
ENCODER = {
    **{"width": 96, "layers": 3, "heads": 4, "length": 216, "dropout": 0.1},
    **{"tokens_per_batch": 1024, "weight_decay": 0.01, **ADAMW, "learning_rate": 1e-3},
}


def glosses(trial: Trial) -> dict[str, float]:
    """Pre-train on WordNet's glosses, then classify others by part of speech from 1,000 rows."""
    path = trial.folder / "tokenizer.json"
    tokenizer_for(open_corpus("wordnet"), "bpe", size=4000).save(path)
    base = trial.train("base", "wordnet", ENCODER | trial.settings, steps=800, tokenizer=str(path))
    result = trial.finetune(base, "classify", "gloss-part-of-speech", steps=200, examples=1000)
    return {"accuracy": float(result.metrics["accuracy"])}


def stream(trial: Trial) -> dict[str, float]:
    """Held-out nats per token of key-value recall as one stream, in segments of a text and a half:
    the value asked for may stand before the segment."""
    sentences = 400 if trial.check else 20_000
    corpus = replace(
        recall.corpus(seed=trial.seed, sentences=sentences), layout=Layout(kind="contiguous")
    )
    network = {"width": 64, "layers": 2, "heads": 4, "length": 64, "dropout": 0.0}
    settings = {**network, "stream_batch_size": 32, "bptt": 12, **ADAMW, **trial.settings}
    return {"nats per token": trial.held_out_loss(corpus, settings, steps=1500)}


def translation(trial: Trial) -> dict[str, float]:
    """German to English, multi30k: held-out nats per token, without label smoothing."""
    settings = {
        **{"width": 128, "dropout": 0.2, "vocabulary_size": 4000, "tokens_per_batch": 2048},
        **{"weight_decay": 0.01, **ADAMW, "warmup_steps": 100},
        **trial.settings,
    }
    corpus = f"multi30k-de-en:{trial.data}"
    loss = trial.held_out_loss(corpus, settings, steps=1200, tokenizer="bpe")
    return {"nats per token": loss}


NETWORK_OF_QUESTIONS = {
    **{"width": 64, "layers": 2, "heads": 4, "length": 48, "document_length": 16, "dropout": 0.0},
    **{"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50, "tokens_per_batch": 512},
}


def retrieved_answers(trial: Trial) -> dict[str, float]:
    """Capitals of countries that no training question names, from documents about capitals."""
    run = trial.train(
        "run",
        "capitals-questions",
        NETWORK_OF_QUESTIONS | trial.settings,
        steps=250,
        documents="capitals",
    )
    return {"exact match": exact_match(run, trial)}


def retrieval_masks(trial: Trial) -> dict[str, float]:
    """REALM: masked words of texts, then capitals that no text states, masked: one word each."""
    settings = NETWORK_OF_QUESTIONS | {"retrieved": 3, "background_refresh": False}
    run = trial.train(
        "run", "capitals-annotated", settings | trial.settings, steps=800, documents="capitals"
    )
    questions = [
        question
        for question in capital_questions(countries_with_capital_unstated())
        if " " not in question.answer
    ]
    questions = questions[: 8 if trial.check else None]
    answered = lmlab.load(run).ask([question.text for question in questions])
    right = [
        bool(given.answers) and given.answers[0].text == question.answer
        for given, question in zip(answered, questions, strict=True)
    ]
    return {"exact match": sum(right) / len(right)}


def exact_match(run: Path, trial: Trial) -> float:
    """Share of the test questions whose first answer is right."""
    questions = list(open_corpus("capitals-questions").split("test"))[: 8 if trial.check else 76]
    answered = lmlab.load(run).ask([str(question.condition) for question in questions])
    right = [
        bool(given.answers) and given.answers[0].text == question.text
        for given, question in zip(answered, questions, strict=True)
    ]
    return sum(right) / len(right)


def features(trial: Trial) -> dict[str, float]:
    """Train on WordNet's glosses, then classify by part of speech from frozen features."""
    settings = {"width": 64, "tokens_per_batch": 1024, "min_count": 8, **ADAMW}
    base = trial.train("base", "wordnet", settings | trial.settings, steps=1000)
    result = trial.finetune(
        base,
        "classify",
        "gloss-part-of-speech",
        steps=400,
        examples=4000,
        frozen=True,
        settings={"learning_rate": 1e-2},
    )
    return {"accuracy": float(result.metrics["accuracy"])}


PROTOCOLS = {
    "documents": Protocol(
        description="ROUGE-L of country and capital after fine-tuning on 300 documents",
        measure=documents,
        metric="rougeL",
    ),
    "glosses": Protocol(
        description="accuracy of a gloss's part of speech after fine-tuning on 1,000 rows",
        measure=glosses,
        metric="accuracy",
    ),
    "stream": Protocol(
        description="nats per token of key-value recall as one stream",
        measure=stream,
        metric="nats per token",
        higher_is_better=False,
    ),
    "translation": Protocol(
        description="nats per token, German to English, 1,200 steps",
        measure=translation,
        metric="nats per token",
        higher_is_better=False,
        needs_data=True,
    ),
    "retrieved answers": Protocol(
        description="exact match of held-out capitals",
        measure=retrieved_answers,
        metric="exact match",
    ),
    "retrieval masks": Protocol(
        description="exact match of masked capitals that no text states",
        measure=retrieval_masks,
        metric="exact match",
    ),
    "features": Protocol(
        description="accuracy of a gloss's part of speech from frozen features",
        measure=features,
        metric="accuracy",
    ),
}
