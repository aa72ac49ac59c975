"""Multi-hop QA task (CogQA, Ding et al. 2019): two-stage fit, loading, answers with their paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from lmlab.core.answers import Answer, Evidence
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.data.lines import ReadingReport
from lmlab.layers.span_pointers import CogQAConfig
from lmlab.models.cogqa import CogQA, CogQAReader
from lmlab.sampling.question_answering import AnsweredQuestion, QuestionAnswerer
from lmlab.tasks.confidence_intervals import TaskMetrics, wilson_interval
from lmlab.tasks.finetune_job import FinetuneJob, FinetuneResult, evaluation_split, write_evaluation
from lmlab.tasks.finetuned_model import FinetunedModel, load_base
from lmlab.tasks.multihop.answer_selection import MultihopAnswer, answer_questions, multihop_metrics
from lmlab.tasks.multihop.cognitive_graph import NodeEncoder
from lmlab.tasks.multihop.multihop_rows import (
    FIELDS,
    TASK_NAME,
    MultihopQuestion,
    MultihopRow,
    MultihopRowChecker,
    read_multihop_rows,
)
from lmlab.tasks.multihop.paragraph_store import (
    PARAGRAPHS_FILE,
    common_names,
    load_paragraphs,
    paragraph_bytes,
    shared_paragraphs,
    start_entities,
)
from lmlab.tasks.multihop.two_stage_training import TwoStageTraining
from lmlab.tasks.task import Row, Splits, Task
from lmlab.training.config import apply_settings
from lmlab.training.distributed import make_accelerator
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel, load_weights


@dataclass(frozen=True, kw_only=True, eq=False)
class MultihopModel(FinetunedModel):
    """CogQA with the paragraphs of its run."""

    has_graph: ClassVar[bool] = True
    system: CogQA
    common: tuple[str, ...] = ()
    """Names that are common question words rather than entities."""

    @property
    def base(self) -> System:
        return self.system.base

    @cached_property
    def paragraphs(self) -> Mapping[str, str]:
        """The paragraphs of the training data, by entity."""
        return load_paragraphs(self.path)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {name.lower(): name for name in self.paragraphs}

    @cached_property
    def _encoder(self) -> NodeEncoder:
        reader = self.system.reader
        return NodeEncoder(self.tokenizer, reader.vocabulary, reader.longest)

    def answer(self, question: str) -> MultihopAnswer:
        """The answer to a bare question about entities in the run's paragraphs."""
        return self.predict_with_details([{"question": question}])[0]

    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The answer to each question (`Ask`); its evidence are the hops with their clues."""
        if answers > 1:
            raise UserError(
                f"answers must be 1 for the task {self.task.name}, which gives one answer to a "
                f"question, got {answers}."
            )
        rows = [{"question": question} for question in questions]
        return [
            [_with_evidence(answer)] if answer.answer else []
            for answer in self.predict_with_details(rows)
        ]

    def ask_stream(
        self, chunks: Iterable[Sequence[str]], **options: Any
    ) -> Iterator[AnsweredQuestion]:
        for name in ("documents", "knowledge", "facts"):
            if options.pop(name, None):
                raise UserError(
                    f"{name} does not apply to the task {self.task.name}, which uses the "
                    "paragraphs of its run; use lmlab predict for rows with paragraphs."
                )
        return QuestionAnswerer(system=self, tokenizer=self.tokenizer, **options).ask(chunks)

    def check(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for number, row in enumerate(rows, start=1):
            self._question(number, row)

    def predict_with_details(self, rows: Sequence[Mapping[str, Any]]) -> list[MultihopAnswer]:
        """The answer to each row, of which only question, start and paragraphs are used.

        Without `start` entities are found in the question, without `paragraphs` those of the run
        are used.
        """
        questions = [self._question(number, row) for number, row in enumerate(rows, start=1)]
        return answer_questions(self.system, self._encoder, questions)

    def _question(self, number: int, row: Mapping[str, Any]) -> MultihopQuestion:
        text = row.get("question")
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"row {number} of {self.task.name} needs a question.")
        given = row.get("paragraphs")
        if given is not None and not isinstance(given, Mapping):
            raise UserError(
                f"row {number} of {self.task.name}: paragraphs must be an object of texts."
            )
        paragraphs = self.paragraphs if given is None else given
        start = row.get("start")
        if start is None:
            names = self._names if given is None else {name.lower(): name for name in given}
            start = start_entities(text, names, self.common)
        if not start:
            raise UserError(
                f"the question {text!r} names no entity that has a paragraph; give start and "
                "paragraphs in a row, or ask about an entity of the training data."
            )
        return MultihopQuestion(text=text, start=tuple(map(str, start)), paragraphs=paragraphs)


def _with_evidence(answer: MultihopAnswer) -> Answer:
    """An answer whose evidence are the hops of its path."""
    probabilities = answer.graph.step_probabilities()
    evidence = tuple(
        Evidence(name=f"{origin} → {target}", text=clue, probability=probabilities[origin, target])
        for (origin, target), (_, clue) in zip(answer.path, answer.evidence, strict=True)
    )
    return Answer(text=answer.answer, log_prob=math.log(answer.probability), evidence=evidence)


class MultihopQA(Task):
    """Multi-hop QA: the pretrained model is the encoder of CogQA's reader, system 1.

    Each of the two training stages has the whole budget. The settings are those of `CogQAConfig`,
    which a pretrained model may have in its own.
    """

    name = TASK_NAME
    fields: ClassVar[Mapping[str, str]] = FIELDS
    lists: ClassVar[tuple[str, ...]] = ("start", "path")
    text_field = "question"
    settings_type: ClassVar[type[Any]] = CogQAConfig
    options = frozenset()

    @classmethod
    def input_fields(cls) -> list[str]:
        """Without `start`, which is found in the question if missing."""
        return ["question"]

    @classmethod
    def check_row(cls, row: Any) -> Row:
        return MultihopRowChecker().check_row(row)

    @classmethod
    def text(cls, row: Mapping[str, Any]) -> str:
        return str(row["question"])

    @classmethod
    def read_rows(
        cls, data: str | Path, *, seed: int, errors: str, report: ReadingReport
    ) -> Splits:
        return read_multihop_rows(data, seed=seed, errors=errors, report=report)

    @classmethod
    def from_rows(cls, rows: Sequence[Row], model: TrainedModel) -> Self:
        return cls()

    def fit(self, model: TrainedModel, splits: Splits, job: FinetuneJob) -> FinetuneResult:
        if make_accelerator().num_processes > 1:
            raise UserError(f"the task {self.name} needs a single process; run it without others.")
        settings = apply_settings(
            CogQAConfig.from_settings(model.config.system_config), job.settings
        )
        paragraphs = shared_paragraphs(splits)
        config = job.describe(
            model, self, settings=asdict(settings), common=common_names(splits["train"], paragraphs)
        )
        job.write_run(model, config, {PARAGRAPHS_FILE: paragraph_bytes(paragraphs)})
        torch.manual_seed(job.config.seed)
        training = TwoStageTraining(
            system=CogQA(CogQAReader(model.system, settings)),
            tokenizer=model.tokenizer,
            config=job.config,
            folder=job.folder,
            quiet=job.quiet,
            track=job.track,
        )
        rows = {
            name: [MultihopRow.from_row(row) for row in split] for name, split in splits.items()
        }
        dropped = training.train_reader(rows)
        training.train_graph_network(rows)
        job.folder.save_weights(training.system.state_dict())
        split = evaluation_split(rows)
        answers = answer_questions(training.system, training.encoder, rows[split])
        result = job.result(
            self,
            _metrics(rows[split], answers),
            split=split,
            rows={name: len(subset) for name, subset in rows.items()},
            truncated=0,
            dropped=dropped,
        )
        records = [subset.record(row) for subset, row in zip(answers, splits[split], strict=True)]
        return write_evaluation(job, result, records)

    @classmethod
    def load(cls, run: RunFolder, config: RunConfig) -> MultihopModel:
        assert config.task is not None, "load_task has checked it"
        details = config.task.details
        base, tokenizer = load_base(run, config)
        system = CogQA(CogQAReader(base, CogQAConfig.from_settings(details["settings"])))
        load_weights(system, run)
        return MultihopModel(
            task=cls(),
            system=system.eval(),
            tokenizer=tokenizer,
            path=run.path,
            common=tuple(details.get("common", ())),
        )


def _metrics(rows: Sequence[MultihopRow], answers: Sequence[MultihopAnswer]) -> TaskMetrics:
    """Metrics of answers and paths, with Wilson's intervals for those over all rows."""
    metrics, count = multihop_metrics(rows, answers), len(answers)
    intervals = {
        name: wilson_interval(round(metrics[name] * count), count)
        for name in ("answer", "path", "joint", "reached")
    }
    return TaskMetrics(metrics=metrics, intervals=intervals, warnings=())
