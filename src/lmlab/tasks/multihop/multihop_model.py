"""A run that was put to questions over several hops: loaded again, and asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lmlab.core.answers import Answer, Evidence
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.tasks.multihop.answer_selection import (
    MultihopAnswer,
    answer_questions,
)
from lmlab.tasks.multihop.cogqa_model import CogQA
from lmlab.tasks.multihop.cogqa_reader import CogQAReader
from lmlab.tasks.multihop.multihop_rows import (
    TASK,
    MultihopQuestion,
)
from lmlab.tasks.multihop.node_inputs import NodeEncoder
from lmlab.tasks.multihop.paragraph_store import (
    load_paragraphs,
    start_entities,
)
from lmlab.training.external_memory import load_external_memory
from lmlab.training.run_config import stored_model_guard
from lmlab.training.run_folder import (
    RunFolder,
    build_from_config,
    load_weights,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MultihopModel:
    """CogQA with its paragraphs, ready to answer."""

    system: CogQA
    tokenizer: Tokenizer
    path: Path
    common: tuple[str, ...] = ()
    """Names that are words of asking."""

    @cached_property
    def paragraphs(self) -> Mapping[str, str]:
        """What the run keeps of what it was trained on, by entity."""
        return load_paragraphs(self.path)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {name.lower(): name for name in self.paragraphs}

    @cached_property
    def _encoder(self) -> NodeEncoder:
        reader = self.system.reader
        return NodeEncoder(self.tokenizer, reader.vocabulary, reader.longest)

    def answer(self, question: str) -> MultihopAnswer:
        """The answer to a bare question about entities that the run has paragraphs of."""
        return self.predict([{"question": question}])[0]

    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The answer to each question (`Ask`); it rests on the sentences that were stepped over."""
        if answers > 1:
            raise UserError(
                f"a run of the task {TASK} finds one answer to a question, and {answers} were "
                "asked for; ask for one."
            )
        found = self.predict([{"question": question} for question in questions])
        return [[_told(each)] if each.answer else [] for each in found]

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[MultihopAnswer]:
        """The answer to each row; of what a row has only question, start and paragraphs are used.

        Without `start` entities are looked for in the question, without `paragraphs` those of the
        run are read.
        """
        asked = [self._question(number, row) for number, row in enumerate(rows, start=1)]
        return answer_questions(self.system, self._encoder, asked)

    def _question(self, number: int, row: Mapping[str, Any]) -> MultihopQuestion:
        text = row.get("question")
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"row {number} of {TASK} needs a question.")
        own = row.get("paragraphs")
        if own is not None and not isinstance(own, Mapping):
            raise UserError(f"row {number} of {TASK}: paragraphs is an object of texts by entity.")
        paragraphs = self.paragraphs if own is None else own
        start = row.get("start")
        if start is None:
            names = self._names if own is None else {name.lower(): name for name in own}
            start = start_entities(text, names, self.common)
        if not start:
            raise UserError(
                f"the question {text!r} names no entity that there is a paragraph of; give start "
                "and paragraphs in a row, or ask about one of those the run was trained on."
            )
        return MultihopQuestion(text=text, start=tuple(map(str, start)), paragraphs=paragraphs)


def _told(found: MultihopAnswer) -> Answer:
    """An answer over hops as any other: steps are what was looked up."""
    likely = found.graph.step_probabilities()
    evidence = tuple(
        Evidence(name=f"{origin} → {target}", text=clue, probability=likely[origin, target])
        for (origin, target), (_, clue) in zip(found.path, found.evidence, strict=True)
    )
    return Answer(text=found.answer, log_prob=math.log(found.probability), evidence=evidence)


def is_hops(path: Path | str) -> bool:
    """Whether a run was put to questions over several hops."""
    return bool(RunFolder(Path(path)).read_config().get("task", {}).get("name") == TASK)


def load_hops(path: Path | str) -> MultihopModel:
    """The model of a run's folder."""
    run = RunFolder(Path(path))
    config = run.read_config()
    told = config.get("task", {})
    if told.get("name") != TASK:
        raise UserError(f"{run.path} was not put to the task {TASK}; see lmlab finetune --help.")
    run.verify()
    if not run.tokenizer.exists():
        raise UserError(f"the run {run.path} has lost its tokenizer.json.")
    tokenizer, memories = Tokenizer.load(run.tokenizer), load_external_memory(config, run.memory)
    with stored_model_guard(run.path, run.weights):
        base = build_from_config(config, Vocabulary(**config["vocabulary"]), memories)
        if memories.given():
            base.setup_tokenizer(tokenizer)
        system = CogQA(CogQAReader(base, CogQAConfig.of(told["settings"])))
    load_weights(system, run)
    return MultihopModel(
        system=system.eval(),
        tokenizer=tokenizer,
        path=run.path,
        common=tuple(told.get("common", ())),
    )
