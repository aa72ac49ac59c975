"""Python API: `lmlab` commands as functions (train, load, wrap, compare, inspect, doctor, ablate).

>>> import lmlab
>>> result = lmlab.train("ngram", data="capitals", out="runs/capitals", quiet=True)
>>> model = lmlab.load("runs/capitals")
>>> [score] = model.score(["中国的首都是北京"])
>>> score.kind, score.tokens, score.convention.end
('exact', 9, True)
>>> [text] = model.sample(1, prefix="中国的首都", method="greedy")
>>> text.text.startswith("中国的首都")
True
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.manifest import verification
from lmlab.core.registry import catalogue
from lmlab.data.corpus import Corpus
from lmlab.interop.load_model import is_hub_checkpoint, load_model
from lmlab.interop.module_wrapper import NO_TRAINING_HISTORY, wrap_module
from lmlab.language_model import LanguageModel
from lmlab.reports.comparison_files import comparison_writer
from lmlab.sampling.translation_evaluation import (
    TranslationEvaluation,
    ValidationBleu,
    evaluate_translators,
    unique_model_names,
)
from lmlab.scoring.comparison_records import Comparison
from lmlab.scoring.minimal_pairs import MinimalPairsComparison, compare_minimal_pairs
from lmlab.scoring.model_comparison import compare_models
from lmlab.shared_corpus import shared_corpus
from lmlab.training.distributed import lock_output
from lmlab.training.run_folder import TrainedModel
from lmlab.training.train import TrainingResult
from lmlab.training.train import train as train_system

if TYPE_CHECKING:
    from lmlab.diagnosis.findings import Examination
    from lmlab.experiments.ablation import Ablation
    from lmlab.inspection.inspect_model import Inspection
    from lmlab.objective_figures.objective_figure import ObjectiveFigure
    from lmlab.tasks.finetuned_model import FinetunedModel


@wraps(train_system)
def train(*arguments: Any, **options: Any) -> TrainingResult:
    """`lmlab.training.train.train`, with BLEU as the scorer if checkpoints are selected by it."""
    return train_system(*arguments, **{"judge": ValidationBleu, **options})


def load(run: Path | str, *, verify: bool = True) -> LanguageModel:
    """Load a trained model from a run's folder, ready to score and generate.

    A folder in Hugging Face format (config.json, model.safetensors, tokenizer.json) works too: it
    is converted on each load and nothing is written; `transformers` loads architectures that lmlab
    does not know.

    A run's files are checked against the hashes in manifest.json, which detects damage, not
    forgery; `verify=False` skips that. Non-finite weights are always rejected.

    >>> lmlab.load("runs/ngram").card.family
    'counting'
    """
    with verification(verify):
        return LanguageModel(load_model(run))


def load_answerer(run: Path | str) -> LanguageModel | FinetunedModel:
    """Load a run for question answering: it has `ask_stream`, whatever its task."""
    from lmlab.tasks.loading import is_task_run, load_task

    return load_task(run) if is_task_run(run) else load(run)


def wrap(
    module: torch.nn.Module,
    tokenizer: Any,
    *,
    kind: Literal["causal", "masked"] = "causal",
    name: str | None = None,
    window: int | None = None,
    count_end: bool = True,
    **symbols: str | int | None,
) -> LanguageModel:
    """Wrap any torch module as a model: scored, sampled, compared, inspected like a run.

    `module` maps ids (B, T) to logits (B, T, V), as a tensor or as `.logits`, of the next token
    (`causal`) or of masked tokens (`masked`). It gets an attention_mask if its forward takes one;
    if padding changes its scores, texts are batched by equal length. `tokenizer` is one of lmlab,
    tokenizers or transformers, or any object with encode, decode and vocab_size. `symbols` are the
    special tokens start, end, unknown, mask and pad by spelling or id, None for missing ones;
    default the tokenizer's own. Without a start token, the end token starts a text (GPT-2).
    `count_end` says whether the end token is predicted and counted, `window` is the maximum input
    length in tokens, and `name` the name in tables.

    Padding, start and mask are never predicted, as everywhere in lmlab: probabilities are
    renormalised over the other tokens. The module is not copied, and its training mode is restored
    after each call.

    >>> from types import SimpleNamespace
    >>> letters = " abcdefghijklmnopqrstuvwxyz."
    >>> characters = SimpleNamespace(
    ...     vocab_size=len(letters),
    ...     encode=lambda text: [letters.index(letter) for letter in text],
    ...     decode=lambda ids: "".join(letters[id] for id in ids),
    ... )
    >>> uniform = torch.nn.Embedding.from_pretrained(torch.zeros(28, 28))
    >>> model = lmlab.wrap(uniform, characters, end=".")
    >>> [score] = model.score(["a cat"])
    >>> score.kind, score.tokens, round(score.total, 3)  # 6 · log 1/28
    ('exact', 6, -19.993)
    """
    return LanguageModel(
        wrap_module(
            module,
            tokenizer,
            kind=kind,
            name=name,
            window=window,
            count_end=count_end,
            symbols=symbols,
        )
    )


def compare(
    runs: Sequence[Path | str | LanguageModel],
    *,
    data: str | Path | Corpus | None = None,
    split: str = "test",
    out: Path | str | None = None,
    seed: int = 0,
    errors: str | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Compare trained models on one split, with tests of their differences.

    `data` defaults to their training corpus. `out` also writes the comparison: a report (.html), a
    table (.md, .tex) or its numbers (.json).

    >>> comparison = lmlab.compare(["runs/window", "runs/ngram"], out="report.html")
    >>> [(row.name, row.kind, row.regret > 0) for row in comparison.rows]
    [('ngram', 'exact', True), ('window', 'exact', True)]
    """
    _check_list(runs, "compare")
    write = None if out is None else comparison_writer(Path(out))
    models = _trained_models(runs)
    corpus = data if isinstance(data, Corpus) else shared_corpus(models, data, errors)
    comparison = compare_models(models, corpus, split, seed=seed, progress=progress)
    if write is not None:
        write(comparison, models)
    return comparison


def pairs(
    runs: Sequence[Path | str | LanguageModel],
    files: Sequence[Path | str],
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda tokens: None,
) -> MinimalPairsComparison:
    """Accuracy of several models on the same minimal pairs, with intervals of their differences.

    `progress` is called with the number of tokens scored so far.

    >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
    >>> _ = open("agreement.jsonl", "w").write(json.dumps(row))
    >>> comparison = lmlab.pairs(["runs/ngram", "runs/window"], ["agreement.jsonl"])
    >>> [(name, report.overall.pairs) for name, report in comparison.reports.items()]
    [('ngram', 1), ('window', 1)]
    """
    if isinstance(runs, (str, Path)) or isinstance(files, (str, Path)):
        raise UserError("pairs takes lists of runs and of files; put each in a list.")
    models = [run if isinstance(run, LanguageModel) else load(run) for run in runs]
    if not models:
        raise UserError("no model given; name at least one.")
    names = unique_model_names([model.path for model in models])
    reports = {
        name: model.pairs(*files, progress=progress)
        for name, model in zip(names, models, strict=True)
    }
    return compare_minimal_pairs(reports, seed=seed)


def evaluate(
    runs: Sequence[Path | str | LanguageModel],
    *,
    data: str | Path | None = None,
    errors: str | None = None,
    **options: Any,
) -> TranslationEvaluation:
    """Evaluate translations of a parallel corpus by sacreBLEU, all runs on the same texts.

    `data` defaults to the corpus the runs were trained or fine-tuned on; options are those of
    `evaluate_translators` (split, metrics, limit …) and of decoding (method, beam …).
    """
    from lmlab.tasks.finetune import evaluation_corpus

    _check_list(runs, "evaluate")
    models = _trained_models(runs)
    spec = None if data is None else str(data)
    corpus = evaluation_corpus(models, spec, lambda subset: shared_corpus(subset, spec, errors))
    return evaluate_translators(unique_model_names(models), corpus, **options)


def inspect(
    runs: Sequence[Path | str | LanguageModel],
    *,
    texts: Sequence[str] = (),
    words: Sequence[str] = (),
    out: Path | str | None = None,
    progress: Callable[[str], None] = lambda title: None,
) -> Inspection:
    """Inspect trained models: figures as SVG, PNG and an HTML page; several models are compared.

    `texts` are the sentences shown and `words` those whose neighbours are shown; both default to
    the run's own. `out` is a folder, by default the figures folder of a single run.

    >>> inspection = lmlab.inspect(["runs/window"], texts=["the cat sleeps"], out="figures")
    >>> [figure.name for figure in inspection.figures if figure.text]
    ['surprisal', 'view']
    """
    from lmlab.inspection.inspect_model import inspect_models

    _check_list(runs, "inspect")
    if isinstance(texts, str) or isinstance(words, str):
        raise UserError("inspect takes lists of texts and words; put a single one in a list.")
    folder = None if out is None else Path(out)
    return inspect_models(
        _trained_models(runs), out=folder, texts=texts, words=words, progress=progress
    )


def _check_list(runs: object, command: str) -> None:
    if isinstance(runs, (str, Path)):
        raise UserError(f"runs of {command} must be a list, got a single one; put it in a list.")


def _trained_models(runs: Sequence[Path | str | LanguageModel]) -> list[TrainedModel]:
    return [run.model if isinstance(run, LanguageModel) else load_model(run) for run in runs]


def show_objective(
    system: str | Path | LanguageModel,
    *,
    text: str | None = None,
    condition: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
) -> ObjectiveFigure:
    """Plot a training objective on one text: inputs, targets and attention mask.

    A zoo system is built small over the words of the text, with `settings`; `condition` is what the
    text is conditioned on (a source). `out` also writes the figure, as .svg or .png.

    >>> figure = lmlab.show_objective("bert", text="the cat sat on the mat", seed=0, out="bert.svg")
    >>> [matrix.name for matrix in figure.contents.matrices]
    ['attention mask']
    """
    from lmlab.objective_figures.objective_figure import show_objective as show
    from lmlab.plotting.figure import check_figure_path

    if out is not None:
        check_figure_path(Path(out))
    subject: str | Path | TrainedModel
    if isinstance(system, LanguageModel):
        subject = system.model
    else:
        subject = load_model(system) if is_hub_checkpoint(Path(system)) else system
    figure = show(subject, text=text, condition=condition, seed=seed, settings=settings)
    if out is not None:
        figure.write(Path(out))
    return figure


def doctor(
    run: Path | str | LanguageModel,
    *,
    data: str | Path | Corpus | None = None,
    out: Path | str | None = None,
) -> Examination:
    """Diagnose a training run of any system: list what a healthy run would not have.

    Needs a training history, so it does not apply to imported models. `data` gives the corpus's
    location if it has moved; `out` is a folder for the loss figure with baselines.

    >>> examination = lmlab.doctor("runs/ngram")
    >>> examination.healthy, [level.name for level in examination.levels]
    (True, ['uniform', 'unigram', 'bigram', 'trigram', 'entropy'])
    """
    from lmlab.diagnosis.examination import examine_run

    if isinstance(run, LanguageModel) and not run.model.stored:
        raise UserError(NO_TRAINING_HISTORY.format(name=run.model.name))
    if isinstance(run, LanguageModel):
        run = run.path
    elif is_hub_checkpoint(Path(run)):
        raise UserError(NO_TRAINING_HISTORY.format(name=run))
    examination = examine_run(run, data=data)
    if out is not None:
        from lmlab.diagnosis.loss_figure import write_loss_figure

        write_loss_figure(examination, Path(out))
    return examination


def ablate(
    system: str,
    *,
    data: str | Path,
    out: Path | str,
    switches: str | Sequence[Sequence[int | str]] | None = None,
    each: bool = False,
    pairs: bool = False,
    seeds: int = 3,
    epochs: int | None = None,
    at: Sequence[int] = (),
    size: str | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    tokenizer: str | None = None,
    jobs: int = 1,
    quiet: bool = False,
) -> Ablation:
    """Ablation study: train a system whole and with terms switched off, and compare the losses.

    `switches` are sets of numbers or names, "4;0,4,5" or [[4], [0, 4, 5]]; `each` takes every
    switch by itself (the default), `pairs` every two. What is off in `settings` is off in every
    row. Losses are reported after the epochs `at`, default the last. Trainings are runs in
    out/runs; finished ones are not repeated, and interrupted ones resume.

    >>> ablation = lmlab.ablate("gru-minimal", data="grammar", out="terms", switches="4;0,4",
    ...                         size="tiny", seeds=1, epochs=1, quiet=True)
    >>> sorted(row.terms for row in ablation.rows)
    ['0 gate-input, 4 candidate-hidden', '4 candidate-hidden', 'intact']
    """
    from lmlab.experiments.ablation import plan_ablation
    from lmlab.experiments.ablation_runs import run_ablation
    from lmlab.experiments.ablation_tables import write_ablation_tables

    plan = plan_ablation(
        system,
        data=str(data),
        switches=switches,
        each=each,
        pairs=pairs,
        seeds=seeds,
        epochs=epochs,
        at=at,
        size=size,
        settings=settings or {},
        tokenizer=tokenizer,
        recipe=recipe,
    )
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, got {jobs}.")

    def report(sentence: str) -> None:
        if not quiet:
            print(sentence, file=sys.stderr, flush=True)

    with lock_output(Path(out)):
        ablation = run_ablation(plan, Path(out), jobs=jobs, quiet=quiet, report=report)
        write_ablation_tables(ablation)
    return ablation


def systems() -> list[Card]:
    """The cards of all systems, by name.

    >>> "lstm" in [card.name for card in lmlab.systems()]
    True
    """
    return list(catalogue().values())
