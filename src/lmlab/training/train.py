"""Training of a zoo system on a corpus, new or resumed: the function behind `lmlab train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from accelerate import Accelerator

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.card import Card
from lmlab.core.devices import find_precision
from lmlab.core.errors import UserError
from lmlab.core.failure_record import recording_failure
from lmlab.core.options import takes
from lmlab.core.system import NATS_PER_TOKEN, System
from lmlab.core.system_files import resolve_system
from lmlab.core.tracking_options import check_trackers
from lmlab.data.corpus import Corpus
from lmlab.data.corpus_encoding import EntityNumbering, corpus_entities
from lmlab.data.raw_text import raw_text_warning
from lmlab.training.config import TrainingConfig
from lmlab.training.corpus_setup import RunTokenizers, open_training_corpus, prepare_tokenizers
from lmlab.training.data_loaders import TrainingData, training_data
from lmlab.training.distributed import (
    check_distribution,
    exclusive_output,
    main_process_first,
    make_accelerator,
    on_chosen_device,
    place_training,
)
from lmlab.training.external_memory import ExternalMemory, resolve_external_memory
from lmlab.training.fitters import FITTERS
from lmlab.training.loop import FitJob, FitResult, ValidationMetric
from lmlab.training.run_folder import RunFolder
from lmlab.training.setting_records import DEFAULT_SIZE
from lmlab.training.system_building import build_system
from lmlab.training.trackers import Trackers
from lmlab.training.train_options import TrainOptions
from lmlab.training.trainees import begin_with_predecessor, make_trainee
from lmlab.training.training_logs import Reporter
from lmlab.training.training_messages import announce, announce_origins, final_message
from lmlab.training.training_origins import TrainingOrigins, resolve_origins
from lmlab.training.training_plan import (
    TrainingPlan,
    check_required_inputs,
    check_resumable,
    describe_run,
    make_training_plan,
    objective_setting,
    resumed_plan,
    system_vocabulary,
)
from lmlab.training.validation import held_out_bptt

if TYPE_CHECKING:
    from lmlab.training.train_options import MetricFactory


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Result of a training."""

    path: Path
    """The run's folder."""
    reason: str
    """budget, early, pruned, interrupted, or nothing (it was finished before)."""
    steps: int
    epochs: int
    seconds: float
    loss: float | None
    """The last held-out loss; None where there is no held-out split."""
    best: float | None
    """The validation loss of the selected weights; None without a validation split."""
    parameters: int
    unit: str = NATS_PER_TOKEN
    """Unit of the losses."""
    loss_is_comparable: bool = True
    """Whether training losses compare with held-out ones; else they are of another kind."""


@on_chosen_device
@exclusive_output
@takes(TrainOptions)
def train(system: str | Path | ModuleType, options: TrainOptions) -> TrainingResult:
    """Train `system` on the corpus `data` into the folder `out`, and return the result.

    `system` is a name, the path of a Python file or a module; see `lmlab.register`. With `resume`,
    a training that was stopped (by a kill, Ctrl-C, or a smaller budget) continues bit-exactly;
    settings not given are the run's. (A schedule over the budget, such as cosine, follows the
    larger one from there on, and `average` takes only validations made since.) See `RunFolder` for
    the files written. A `base` of the same system is trained further, with its settings and its
    tokenizer, see `continued_training`. The settings of an `encoder` are the defaults of the
    system's; so are those of a `base` of another system whose weights are copied (dpr, realm) and
    of a `predecessor` (see `module_replacing`). For a `teacher` see `distillation`.
    """
    retain_freed_memory()
    track = check_trackers(options.track)
    run, accelerator = RunFolder(Path(options.out)), make_accelerator()
    card = resolve_system(system)
    memory_specs: Mapping[str, str | None]
    memory_specs = {"documents": options.documents, "knowledge": options.knowledge}
    check_required_inputs(card, base=options.base, encoder=options.encoder, **memory_specs)
    overrides = dict(options.settings or {}) | objective_setting(card, options.objective)
    overrides |= options.training_settings()
    budget = {"epochs": options.epochs, "steps": options.steps, "minutes": options.minutes}
    resumed = run.resumed_config() if resumes(run, options.resume) else None
    accelerator.wait_for_everyone()  # all have checked before the first one writes
    origins = resolve_origins(card, options, overrides, resumed, run)
    if resumed is None:
        plan = make_training_plan(
            card,
            options.size or origins.size or DEFAULT_SIZE,
            options.recipe,
            overrides,
            budget,
            options.seed or 0,
            origins.settings_models,
            origins.continued_record,
        )
    else:
        plan = resumed_plan(
            resumed, card, options.size, options.recipe, overrides, budget, options.seed
        )
    origins.check_option_settings(plan.training)
    if origins.continued is None:
        recorded = {} if resumed is None else resumed.memories
        memories = resolve_external_memory(card, memory_specs, recorded, run.memory)
    else:
        memories, memory_specs = origins.continued.memories, origins.continued.memory_specs
    find_precision(plan.training.precision, accelerator.device)  # raises before slow work
    opened = open_training_corpus(
        options.data, resumed, plan.training, seed=options.data_seed, errors=options.errors
    )
    _check_select_by(plan, opened.corpus)

    with main_process_first(accelerator):
        run.create()  # fail on an unwritable folder before anything takes time
        tokenizers = prepare_tokenizers(
            run,
            resumed,
            opened.training_corpus,
            plan.training,
            origins.tokenizer_model,
            origins.continued,
            texts=options.tokenizer,
            sources=options.source_tokenizer,
        )
        description = describe_run(
            plan, opened, tokenizers, origins=origins, memories=memories.describe(memory_specs)
        )
        if resumed is not None:
            check_resumable(resumed, description, run)
        prepared = training_data(
            opened.training_corpus,
            tokenizers.texts,
            plan.training,
            progress=not options.quiet,
            source_tokenizer=tokenizers.sources,
            entities=_entity_numbering(card, memories, opened.training_corpus),
        )
    _check_data(prepared, plan, accelerator)
    model = _build_model(plan, opened.corpus, tokenizers, prepared, origins, memories)
    check_distribution(
        model.fitting, plan.training, alone=options.teacher is None and options.predecessor is None
    )
    place_training(model, plan.training, accelerator)
    for other in origins.models:
        other.system.to(accelerator.device)
    if model.needs_mixed_lengths:
        prepared = prepared.with_mixed_lengths()
    if prepared.carries_state:
        bptt = held_out_bptt(model, prepared.train, plan.training, accelerator.device)
        prepared = prepared.with_held_out_bptt(bptt)
    trainee = make_trainee(model, origins, plan.training, prepared).to(accelerator.device)
    metric = _selection_metric(plan, opened.corpus, tokenizers, options.metric)
    if accelerator.is_main_process:
        run.write_description(  # no user error is raised after this
            description,
            tokenizers.texts,
            source_tokenizer=tokenizers.sources,
            memories=memories,
            new_run=resumed is None,
            device=accelerator.device,
        )
    reporter = Reporter(
        run.metrics,
        plan.training,
        quiet=options.quiet,
        silent=not accelerator.is_main_process,
        trackers=Trackers(track, run.path, _tracked_settings(plan, options)),
        unit=model.loss_unit,
        compares=trainee.loss_is_comparable,
    )
    if accelerator.is_main_process and not options.quiet:
        announce_origins(reporter, origins, prepared)
        texts = opened.corpus.vocabulary_texts()
        warning = raw_text_warning(texts, tokenizers.texts, lowercase=plan.training.lowercase)
        if warning and resumed is None:
            reporter.print_message(warning)
        announce(reporter, trainee, prepared, plan, accelerator, resumed=resumed is not None)
    if model.fitting == "counting" and any(value is not None for value in budget.values()):
        reporter.print_message(
            f"{card.name} is fitted by one pass of counting; the budget has no effect"
        )
    job = FitJob(
        system=model,
        trainee=trainee,
        data=prepared,
        config=plan.training,
        run=run,
        accelerator=accelerator,
        reporter=reporter,
        metric=metric,
        stopping_rule=options.stopping_rule,
    )
    with recording_failure(run.path, writes=accelerator.is_main_process):
        outcome = FITTERS[model.fitting](job)
    result = _result(outcome, run, job)
    reporter.print_message(final_message(outcome, run, result, reporter.unit))
    return result


def _tracked_settings(plan: TrainingPlan, options: TrainOptions) -> dict[str, object]:
    """What trackers record of a run."""
    own = {"system": plan.card.name, "size": plan.size, "data": str(options.data)}
    return {**own, **asdict(plan.system_config), **asdict(plan.training)}


def _entity_numbering(
    card: Card, memories: ExternalMemory, corpus: Corpus
) -> EntityNumbering | None:
    """The entity numbering of mentions: the system's knowledge base, or the corpus's annotation."""
    if memories.knowledge is None and card.uses_annotated_mentions:
        return corpus_entities(corpus)
    return memories.knowledge


def _build_model(
    plan: TrainingPlan,
    corpus: Corpus,
    tokenizers: RunTokenizers,
    data: TrainingData,
    origins: TrainingOrigins,
    memories: ExternalMemory,
) -> System:
    """Build the system of a plan, set up with the tokenizer and the data."""
    vocabulary, continued = system_vocabulary(tokenizers.texts, corpus), origins.continued
    if continued is not None:
        continued.check_vocabulary(vocabulary)
    for base in origins.models:
        base.check_tokenizer(tokenizers.texts, tokenizers.sources)
        base.check_vocabulary(vocabulary)
    model = build_system(
        plan.card.name,
        asdict(plan.system_config),
        vocabulary,
        seed=plan.training.seed,
        base=None if origins.base is None else origins.base.system,
        encoder=None if origins.encoder is None else origins.encoder.system,
        source=None if tokenizers.sources is None else tokenizers.sources.vocabulary,
        memories=memories,
    )
    model.check_length(data.max_length)
    model.check_condition_length(data.max_source_length)
    if continued is not None:
        continued.load_weights(model)
        model.begin_continued()
    model.setup_tokenizer(tokenizers.texts)
    model.setup_data(*data.flat())
    begin_with_predecessor(model, origins)
    if continued is not None:
        continued.restore_parameters(model)
    return model


def _check_select_by(plan: TrainingPlan, corpus: Corpus) -> None:
    """A UserError where `select_by` does not apply to this training."""
    select_by, translates = plan.training.select_by, corpus.layout.kind == "pairs"
    if select_by != "loss" and not (plan.card.conditional and translates):
        raise UserError(
            f"select_by={select_by} applies only to translation models on a parallel corpus; "
            "remove it to select weights by the loss."
        )


def _selection_metric(
    plan: TrainingPlan, corpus: Corpus, tokenizers: RunTokenizers, make_metric: MetricFactory | None
) -> ValidationMetric | None:
    """The validation metric to select weights by, where it is not the loss."""
    if plan.training.select_by == "loss":
        return None
    assert make_metric is not None, "select_by needs a metric factory"
    return make_metric(corpus, tokenizers.texts, tokenizers.sources or tokenizers.texts)


def resumes(run: RunFolder, resume: bool) -> bool:
    """Whether an existing run is resumed; it is never overwritten."""
    if run.exists() and not resume:
        raise UserError(
            f"{run.path} already holds a run, which is not overwritten; continue with "
            "--resume, or choose another --out."
        )
    return run.exists()


def _check_data(data: TrainingData, plan: TrainingPlan, accelerator: Accelerator) -> None:
    config = plan.training
    if data.dataset.layout.kind == "pairs" and not plan.card.conditional:
        raise UserError(
            f"a parallel corpus does not apply to {plan.card.name}, which takes no source "
            "texts; give a corpus of single texts."
        )
    world, contiguous = accelerator.num_processes, data.dataset.layout.kind == "contiguous"
    if contiguous and config.stream_batch_size % world:
        raise UserError(
            f"stream_batch_size must be a multiple of the number of processes, {world}, got "
            f"{config.stream_batch_size}; give one by --set stream_batch_size=…"
        )
    check_validation_split(config, selects=data.has_validation)


def check_validation_split(config: TrainingConfig, *, selects: bool) -> None:
    """A UserError where a setting needs a validation split and none `selects`."""
    dependent = [name for name in ("patience",) if getattr(config, name)]
    dependent += ["schedule=plateau"] if config.schedule == "plateau" else []
    dependent += ["select_by=bleu"] if config.select_by == "bleu" else []
    dependent += ["average"] if config.average else []
    if dependent and not selects:
        raise UserError(
            f"{' and '.join(dependent)} needs a validation split, which this corpus does not "
            "have; remove it, or give a folder with a valid* file."
        )


def _result(outcome: FitResult, run: RunFolder, job: FitJob) -> TrainingResult:
    progress, system, data = outcome.progress, job.system, job.data
    best = progress.best if system.fitting == "gradient" and data.has_validation else outcome.loss
    return TrainingResult(
        path=run.path,
        reason=outcome.reason,
        steps=progress.step,
        epochs=progress.epoch,
        seconds=progress.seconds,
        loss=outcome.loss,
        best=best if data.has_validation else None,
        parameters=system.parameter_count,
        unit=system.loss_unit,
        loss_is_comparable=job.optimised.loss_is_comparable,
    )
