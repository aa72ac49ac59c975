"""System under test: one tiny training for each system, shared by all of its checks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmlab.conformance.assertions import assert_that, lacks
from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.protocols import LogProb, Step
from lmlab.core.registry import find_system
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import open_corpus
from lmlab.scoring.mixing import HeldOutText, mix_models
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train

STEPS = 60
SETTINGS = {
    "learning_rate": "0.02",
    "schedule": "constant",
    "tokens_per_batch": "512",
    "weight_decay": "0",
    "log_every": "1",
}
MAX_LENGTH = 5
"""Tokens after the start token in the enumerable space."""
TEXTS = ("a a a b", "b", "a b a b b b a", "b b a zzz a")
"""Texts of several lengths in the words of the tiny corpus, one with an unknown word."""
SPLITS = {"train": (600, 0), "valid": (60, 1), "test": (200, 2)}
"""Lines and seed of each split of the tiny corpus."""
KNOWLEDGE = {
    "entities": "A\tthe first\tb a\nB\tthe second\ta b\nAB\tboth\ta b b\nAA\ttwice\ta a\n",
    "aliases": "a\tA\t3\na\tAA\nb\tB\t2\nb\tAB\na b\tAB\na a\tAA\na a\tA\n",
    "facts": "AB\tbegins with\tA\nAB\tends with\tB\nA\tis in\tAB\nA\tis in\tAA\n",
}
"""Letters and pairs of them as entities; some words name two of them."""


def sample_lines(count: int, seed: int) -> list[str]:
    """Sentences of a and b in which a letter repeats itself nine times in ten: a bigram sees it."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        words = [str(generator.choice(["a", "b"]))]
        while generator.random() > 0.25 and len(words) < 12:
            same = generator.random() < 0.9
            words.append(words[-1] if same else {"a": "b", "b": "a"}[words[-1]])
        lines.append(" ".join(words))
    return lines


@dataclass(frozen=True, eq=False)
class Workspace:
    """A folder with the tiny corpus, what systems need besides, and their tiny trainings."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the systems under test, over those of size tiny."""
    tested: dict[str, SystemUnderTest] = field(default_factory=dict)
    """The systems trained so far, by name."""

    @cached_property
    def corpus(self) -> Path:
        """A corpus of two words with three splits."""
        corpus = self.folder / "ab"
        corpus.mkdir()
        for split, (count, seed) in SPLITS.items():
            text = "\n".join(sample_lines(count, seed)) + "\n"
            (corpus / f"{split}.txt").write_text(text, encoding="utf-8")
        return corpus

    @cached_property
    def documents(self) -> Path:
        """Documents in the words of the corpus, so that a retriever can distinguish them."""
        path = self.folder / "documents.txt"
        lines = dict.fromkeys(sample_lines(40, seed=3))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @cached_property
    def knowledge(self) -> Path:
        """A knowledge base of what the corpus speaks of."""
        knowledge = self.folder / "letters"
        knowledge.mkdir()
        for name, text in KNOWLEDGE.items():
            (knowledge / f"{name}.tsv").write_text(text, encoding="utf-8")
        return knowledge

    def base(self, name: str) -> Path:
        """A tiny run of a system that others are built on, trained once."""
        run = self.folder / f"base-{name}"
        return run if run.exists() else self.train(name, run, settings={})

    def train(
        self,
        name: str,
        out: Path,
        *,
        steps: int = STEPS,
        resume: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> Path:
        """A tiny run. An iteration of EM goes over all the text: it takes epochs, at most ten."""
        card = find_system(name)
        if card.components:
            return self.mix(card, out)
        result = train(
            name,
            data=str(self.corpus),
            out=out,
            size="tiny",
            settings=SETTINGS | dict(self.settings if settings is None else settings),
            steps=steps if card.fitting in ("gradient", "words", "cooccurrence") else None,
            epochs=min(steps, 10) if card.fitting == "em" else None,
            quiet=True,
            resume=resume,
            base=self.base(card.base) if card.base else None,
            knowledge=str(self.knowledge) if "knowledge" in card.needs else None,
            documents=str(self.documents) if "documents" in card.needs else None,
        )
        if result.reason == "interrupted":  # by Ctrl-C, which also stops the checks
            raise KeyboardInterrupt
        return out

    def mix(self, card: Card, out: Path) -> Path:
        """A mixture of tiny runs of the systems that its card names, tuned on the validation
        split."""
        models = [load_run(self.base(name)) for name in card.components]
        corpus = open_corpus(str(self.corpus))
        text = HeldOutText(
            corpus=corpus, split="validation", spec=str(self.corpus), label="validation"
        )
        mix_models(models, card.components, out=out, held_out=text)
        return out

    def system(self, name: str) -> SystemUnderTest:
        """A system after its tiny training, which is done once."""
        if name not in self.tested:
            with one_thread():
                run = self.train(name, self.folder / "runs" / find_system(name).name)
                model = load_run(run)
            self.tested[name] = SystemUnderTest(
                card=find_system(name), model=model, run=run, workspace=self
            )
        return self.tested[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class SystemUnderTest:
    """A system after its tiny training, and what the checks need besides."""

    card: Card
    model: TrainedModel
    run: Path
    workspace: Workspace

    @property
    def system(self) -> System:
        return self.model.system

    @property
    def vocabulary(self) -> Vocabulary:
        return self.system.vocabulary

    @property
    def end(self) -> int:
        """The end token, which ends every text of the tiny corpus."""
        assert self.vocabulary.end is not None
        return self.vocabulary.end

    @property
    def scorer(self) -> LogProb:
        if isinstance(self.system, LogProb):
            return self.system
        raise lacks(self.system, "LogProb")

    @property
    def stepper(self) -> Step:
        if isinstance(self.system, Step):
            return self.system
        raise lacks(self.system, "Step")

    @property
    def sentences(self) -> list[list[int]]:
        """The ids of some texts of several lengths, with start and end token."""
        encode = self.model.tokenizer.encode
        return [[self.vocabulary.bos, *encode(text), self.end] for text in TEXTS]

    def show(self, tokens: Iterable[int]) -> str:
        """Tokens as their strings, in quotes."""
        return repr(" ".join(self.model.tokenizer.token(token) for token in tokens))

    def train_again(self, out: Path, *, steps: int = STEPS, resume: bool = False) -> Path:
        """Another tiny run of the same system, new or resumed."""
        return self.workspace.train(self.card.name, out, steps=steps, resume=resume)

    def batch(self, texts: Iterable[Iterable[int]], source: list[int] | None = None) -> Batch:
        """Token sequences as a batch, all conditioned on the source if there is one."""
        batch = Batch.collate([list(text) for text in texts], pad=self.vocabulary.pad)
        if source is None:
            return batch
        sources = Batch.collate([source] * len(batch), pad=self.vocabulary.pad)
        return replace(batch, condition=sources)

    def pairs(self, sources: list[list[int]], texts: list[list[int]]) -> Batch:
        """Texts, each conditioned on its own source."""
        return replace(self.batch(texts), condition=self.batch(sources))

    @torch.no_grad()
    def totals(self, batch: Batch) -> Tensor:
        """(B,) log-probabilities of whole texts, in float64."""
        return self.scorer.log_prob(batch).totals.double()

    def enumerate_space(self) -> tuple[Batch, Batch]:
        """All complete sequences of at most MAX_LENGTH tokens, and all unfinished ones."""
        never = (*self.vocabulary.unpredictable, self.end)
        inner = [i for i in range(self.vocabulary.size) if i not in never]
        assert_that(
            2 <= len(inner) <= 5,
            f"{len(inner)} tokens can be predicted: too many or few to enumerate",
        )
        start = self.vocabulary.bos
        complete = [
            [start, *body, self.end]
            for length in range(MAX_LENGTH)
            for body in itertools.product(inner, repeat=length)
        ]
        unfinished = [[start, *body] for body in itertools.product(inner, repeat=MAX_LENGTH)]
        return self.batch(complete), self.batch(unfinished)

    def probabilities(self, source: list[int] | None = None) -> dict[tuple[int, ...], float]:
        """Of every text of the enumerable space, complete or not, by its tokens after the start."""
        result: dict[tuple[int, ...], float] = {}
        for batch in self.enumerate_space():
            conditioned = batch
            if source is not None:
                sources = self.batch([source] * len(batch))
                conditioned = replace(batch, condition=sources)
            lengths, totals = batch.lengths.tolist(), self.totals(conditioned)
            for tokens, length, total in zip(batch.tokens.tolist(), lengths, totals, strict=True):
                result[tuple(tokens[1:length])] = total.exp().item()
        return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: faster for tiny tensors, and with the same numbers on any machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def with_replaced_token(tokens: Tensor, position: int) -> Tensor:
    """The tokens (1, T), or vectors (1, T, D), with another one at a position."""
    changed = tokens.clone()
    if changed.is_floating_point():
        changed[0, position] += 1
        return changed
    changed[0, position] = 5 if changed[0, position] != 5 else 6
    return changed


def masked_each(tested: SystemUnderTest, sentence: list[int]) -> tuple[Batch, Tensor]:
    """Copies of a sentence, in each of which another position is masked."""
    positions = list(range(1, len(sentence)))
    batch = tested.batch([sentence] * len(positions))
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[range(len(positions)), positions] = True
    return batch, masked
