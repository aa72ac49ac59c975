"""Multi-hop question answering (CogQA, Ding et al. 2019) as a task: two stages, a graph, a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from lmlab.core.errors import UserError
from lmlab.data.lines import ReadingReport
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.models.cogqa import CogQA, CogQAReader
from lmlab.tasks.confidence_intervals import TaskMetrics, wilson_interval
from lmlab.tasks.finetune_job import (
    FinetuneJob,
    FinetuneResult,
    evaluation_split,
    write_evaluation,
)
from lmlab.tasks.finetuned_model import load_base
from lmlab.tasks.multihop.answer_selection import (
    MultihopAnswer,
    answer_questions,
    multihop_metrics,
)
from lmlab.tasks.multihop.multihop_model import MultihopModel
from lmlab.tasks.multihop.multihop_rows import (
    FIELDS,
    TASK_NAME,
    MultihopRow,
    MultihopRowChecker,
    read_multihop_rows,
)
from lmlab.tasks.multihop.paragraph_store import (
    PARAGRAPHS_FILE,
    common_names,
    paragraph_bytes,
    shared_paragraphs,
)
from lmlab.tasks.multihop.two_stage_training import TwoStageTraining
from lmlab.tasks.task import Row, Splits, Task
from lmlab.training.config import apply_settings
from lmlab.training.distributed import make_accelerator
from lmlab.training.run_folder import RunFolder, TrainedModel, load_weights


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
            CogQAConfig.from_settings(model.config["system_config"]), job.settings
        )
        paragraphs = shared_paragraphs(splits)
        described = job.describe(
            model,
            self,
            settings=asdict(settings),
            common=common_names(splits["train"], paragraphs),
        )
        job.write_run(model, described, {PARAGRAPHS_FILE: paragraph_bytes(paragraphs)})
        torch.manual_seed(job.config.seed)
        training = TwoStageTraining(
            system=CogQA(CogQAReader(model.system, settings)),
            tokenizer=model.tokenizer,
            config=job.config,
            folder=job.folder,
            quiet=job.quiet,
        )
        rows = {
            name: [MultihopRow.from_row(row) for row in split] for name, split in splits.items()
        }
        dropped = training.train_reader(rows)
        training.train_graph_network(rows)
        job.folder.save_weights(training.system)
        split = evaluation_split(rows)
        answers = answer_questions(training.system, training.encoder, rows[split])
        result = job.result(
            self,
            _measured(rows[split], answers),
            split=split,
            rows={name: len(each) for name, each in rows.items()},
            truncated=0,
            dropped=dropped,
        )
        records = [each.record(row) for each, row in zip(answers, splits[split], strict=True)]
        return write_evaluation(job, result, records)

    @classmethod
    def load(cls, run: RunFolder, config: Mapping[str, Any]) -> MultihopModel:
        described = config["task"]
        base, tokenizer = load_base(run, config)
        system = CogQA(CogQAReader(base, CogQAConfig.from_settings(described["settings"])))
        load_weights(system, run)
        return MultihopModel(
            task=cls(),
            system=system.eval(),
            tokenizer=tokenizer,
            path=run.path,
            common=tuple(described.get("common", ())),
        )


def _measured(rows: Sequence[MultihopRow], answers: Sequence[MultihopAnswer]) -> TaskMetrics:
    """Metrics of answers and paths, with Wilson's intervals for those over all rows."""
    metrics, count = multihop_metrics(rows, answers), len(answers)
    intervals = {
        name: wilson_interval(round(metrics[name] * count), count)
        for name in ("answer", "path", "joint", "reached")
    }
    return TaskMetrics(metrics=metrics, intervals=intervals, warnings=())
