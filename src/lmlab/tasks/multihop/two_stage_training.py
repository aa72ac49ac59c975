"""Putting a run to questions over several hops: first the spans, then the nodes (CogQA)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from lmlab.core.atomic_files import (
    write_json,
    write_text,
)
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.data.lines import ReadingReport
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.tasks.confidence_intervals import wilson_interval
from lmlab.tasks.finetune import (
    FINETUNE_DEFAULTS,
    FinetuneResult,
    limit_training_rows,
    write_beginning,
)
from lmlab.tasks.finetune_settings import check_settings_apply
from lmlab.tasks.load_pretrained import load_pretrained
from lmlab.tasks.multihop.answer_selection import (
    answer_questions,
    multihop_metrics,
    prediction_record,
)
from lmlab.tasks.multihop.cogqa_model import (
    CogQA,
    CogQANodeTraining,
)
from lmlab.tasks.multihop.cogqa_reader import CogQAReader
from lmlab.tasks.multihop.graph_examples import (
    GraphExample,
    graph_example,
    span_examples,
)
from lmlab.tasks.multihop.graph_expansion import expand_graphs
from lmlab.tasks.multihop.multihop_batches import (
    GraphExampleBatches,
    SpanExampleBatches,
)
from lmlab.tasks.multihop.multihop_rows import (
    TASK,
    MultihopRow,
    read_multihop_rows,
)
from lmlab.tasks.multihop.node_inputs import NodeEncoder
from lmlab.tasks.multihop.paragraph_store import (
    PARAGRAPHS_FILE,
    common_names,
    paragraph_bytes,
    shared_paragraphs,
)
from lmlab.tasks.task_rows import (
    Splits,
    split_seed,
)
from lmlab.training.config import TrainingConfig, apply_settings, replace_budgets, with_budget
from lmlab.training.data_loaders import (
    BatchLoader,
    FitData,
)
from lmlab.training.distributed import make_accelerator
from lmlab.training.loop import FitJob, fit_by_gradient
from lmlab.training.reporting import Reporter
from lmlab.training.run_folder import (
    RunFolder,
    TrainedModel,
    load_weights,
)
from lmlab.training.train import check_validation_split, resumes

STAGES = ("spans", "nodes")
"""Folders of the two stages in a run's own, each with its metrics and checkpoints."""
GRAPHS_PER_BATCH = 128
FROZEN_READER_FACTOR = 8
"""Times the tokens of a batch in the second stage where the reader rests: nothing is read anew."""


def finetune_hops(
    run: Path | str,
    *,
    data: str | Path,
    out: Path | str,
    examples: int | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    errors: str = "strict",
    quiet: bool = False,
) -> FinetuneResult:
    """Make the trained `run` system 1 of CogQA, put system 2 over it, and train both.

    `data` is the built-in set wordnet-hops, a file of JSON lines, or a folder with one for each
    split; `tasks/multihop/multihop_rows.py` says what a row holds. `settings` are those of `CogQAConfig`, which
    a system may carry itself, and those of a training. Each of the two stages has the whole budget.
    """
    hop_settings, config = _settings(settings or {}, seed, epochs, steps, minutes)
    folder = RunFolder(Path(out))
    before = folder.resumed_config() if resumes(folder, resume) else None
    model = load_pretrained(run)
    hops = replace(CogQAConfig.of(model.config["system_config"]), **hop_settings)
    met = ReadingReport()
    splits = read_multihop_rows(
        data, seed=split_seed(model.config, data), errors=errors, report=met
    )
    check_validation_split(config, selects="validation" in splits)
    limit_training_rows(splits, examples)
    paragraphs = shared_paragraphs(splits)
    told = {
        "name": TASK,
        "labels": [],
        "head": True,
        "frozen": False,
        "settings": asdict(hops),
        "common": common_names(splits["train"], paragraphs),
        "data": str(data),
        "run": str(run),
    }
    if before is not None and before.get("task") != told:
        raise UserError(
            f"the run {folder.path} was begun with another task, run or data; resume it with its "
            "own, or choose another --out."
        )
    kept = {k: v for k, v in model.config.items() if k not in ("format", "lmlab")}
    described = {**kept, "seed": config.seed, "training": asdict(config), "task": told}
    others = {PARAGRAPHS_FILE: paragraph_bytes(paragraphs)}
    write_beginning(folder, model, described, begins=before is None, others=others)
    torch.manual_seed(seed)
    whole = CogQA(CogQAReader(model.system, hops))
    fitting = TwoStageTraining(whole=whole, model=model, config=config, folder=folder, quiet=quiet)
    rows = {name: [MultihopRow.of(row) for row in found] for name, found in splits.items()}
    dropped = fitting.train_reader(rows)
    fitting.train_graph_network(rows)
    folder.save_weights(whole)
    return _judge(fitting, rows, splits, dropped, met)


def _settings(
    settings: Mapping[str, Any],
    seed: int,
    epochs: int | None,
    steps: int | None,
    minutes: float | None,
) -> tuple[dict[str, Any], TrainingConfig]:
    """Settings of the task, parsed, and the training's."""
    own = {each.name for each in fields(CogQAConfig)}
    normal = {key.strip().replace("-", "_"): value for key, value in settings.items()}
    hops = apply_settings(CogQAConfig(), {k: v for k, v in normal.items() if k in own})
    changed = {key: getattr(hops, key) for key in normal if key in own}
    of_training = {k: v for k, v in normal.items() if k not in own}
    see = f"lmlab settings --task {TASK}"
    config = replace(
        apply_settings(FINETUNE_DEFAULTS, replace_budgets(of_training), see), seed=seed
    )
    check_settings_apply(config, TASK)
    budget = {"epochs": epochs, "steps": steps, "minutes": minutes}
    config = with_budget(config, beside=of_training, **budget)
    return changed, config


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStageTraining:
    """The two stages of one training."""

    whole: CogQA
    model: TrainedModel
    config: TrainingConfig
    folder: RunFolder
    quiet: bool = False

    @property
    def encoder(self) -> NodeEncoder:
        reader = self.whole.reader
        return NodeEncoder(self.model.tokenizer, reader.vocabulary, reader.longest)

    def train_reader(self, rows: Mapping[str, Sequence[MultihopRow]]) -> int:
        """System 1 learns spans; gives how many inputs were left out, their spans cut away."""
        encoder, pad, dropped = self.encoder, self.whole.vocabulary.pad, 0
        sources: dict[str, BatchLoader] = {}
        for name, found in rows.items():
            examples, cut = span_examples(found, encoder)
            dropped += cut
            if examples:
                sources[name] = SpanExampleBatches(
                    examples, self.config, pad, shuffle=name == "train"
                )
        self._fit(self.whole.reader, sources, STAGES[0])
        return dropped

    def train_graph_network(self, rows: Mapping[str, Sequence[MultihopRow]]) -> None:
        """System 2 learns on the right graphs and on those that system 1 grows by itself."""
        pad, config = self.whole.vocabulary.pad, self.config
        if not self.whole.settings.together:
            config = replace(
                config, tokens_per_batch=FROZEN_READER_FACTOR * config.tokens_per_batch
            )
        sources: dict[str, BatchLoader] = {}
        every: list[GraphExample] = []
        for name in ("train", "validation"):
            if found := self.graphs(rows.get(name, ())):
                sources[name] = GraphExampleBatches(
                    found, config, pad, first=len(every), shuffle=name == "train"
                )
                every += found
        if "train" not in sources:
            raise UserError("no question has an answer that its graph can lead to; check the rows.")
        self._fit(CogQANodeTraining(self.whole, every), sources, STAGES[1])
        self.whole.reader.requires_grad_(True)

    def graphs(self, rows: Sequence[MultihopRow]) -> list[GraphExample]:
        """The right graph of each row, and the one that grows, if the answer is in it."""
        encoder, found = self.encoder, []
        for low in range(0, len(rows), GRAPHS_PER_BATCH):
            some = rows[low : low + GRAPHS_PER_BATCH]
            for row, grown in zip(
                some, expand_graphs(self.whole.reader, encoder, some), strict=True
            ):
                both = (graph_example(row, encoder), graph_example(row, encoder, grown))
                found += [each for each in both if each is not None]
        return found if self.whole.settings.together else self._read(found)

    def _read(self, examples: Sequence[GraphExample]) -> list[GraphExample]:
        """With the meanings of all nodes, which change no more where the reader is at rest."""
        unread = [
            each for example in examples if example.semantics is None for each in example.inputs
        ]
        seen = iter(self.whole.reader.find(unread))
        return [
            each
            if each.semantics is not None
            else replace(each, semantics=torch.stack([next(seen).semantics for _ in each.inputs]))
            for each in examples
        ]

    def _fit(self, system: System, sources: Mapping[str, BatchLoader], stage: str) -> None:
        fit_stage(
            system,
            sources,
            folder=RunFolder(self.folder.path / stage),
            config=self.config,
            unit="nats a paragraph" if stage == STAGES[0] else "nats an answer",
            told=f"stage {1 + STAGES.index(stage)} of {len(STAGES)}: {stage}",
            quiet=self.quiet,
        )


def fit_stage(
    system: System,
    sources: Mapping[str, BatchLoader],
    *,
    folder: RunFolder,
    config: TrainingConfig,
    unit: str,
    told: str,
    quiet: bool = False,
) -> None:
    """Train a system on the batches of `train`, watched on those of a held-out split; its best
    weights are kept in the folder, and are its own in the end."""
    accelerator = make_accelerator()
    if accelerator.num_processes > 1:
        raise UserError(f"the task {TASK} is trained by one process, as a graph can't be parted.")
    folder.create()
    held = next((name for name in ("validation", "test") if name in sources), None)
    data = FitData(
        train=sources["train"],
        held_out=None if held is None else sources[held],
        held_out_split=held,
    )
    reporter = Reporter(folder.metrics, config, quiet=quiet, unit=unit)
    reporter.tell(told)
    outcome = fit_by_gradient(
        FitJob(
            system=system.to(accelerator.device),
            data=data,
            config=config,
            run=folder,
            accelerator=accelerator,
            reporter=reporter,
        )
    )
    outcome.check_complete(folder)
    folder.verify()
    load_weights(system, folder)
    system.eval()


def _judge(
    fitting: TwoStageTraining,
    rows: Mapping[str, Sequence[MultihopRow]],
    splits: Splits,
    dropped: int,
    met: ReadingReport,
) -> FinetuneResult:
    """Answer the test rows, write what was answered, and say how right it is."""
    split = next(name for name in ("test", "validation", "train") if rows.get(name))
    found = answer_questions(fitting.whole, fitting.encoder, rows[split])
    lines = [
        json.dumps(prediction_record(row, answer), ensure_ascii=False)
        for row, answer in zip(splits[split], found, strict=True)
    ]
    write_text(fitting.folder.path / "predictions.jsonl", "\n".join(lines) + "\n")
    metrics, count = multihop_metrics(rows[split], found), len(found)
    shares = {name: metrics[name] for name in ("answer", "path", "joint", "reached")}
    result = FinetuneResult(
        path=fitting.folder.path,
        task=TASK,
        labels=(),
        rows={name: len(each) for name, each in rows.items()},
        cut=0,
        dropped=dropped,
        metrics=metrics,
        intervals={
            name: wilson_interval(round(each * count), count) for name, each in shares.items()
        },
        split=split,
        skipped=met.empty_rows + met.bad_rows,
    )
    write_json(fitting.folder.path / "evaluation.json", result.as_dict())
    return result
