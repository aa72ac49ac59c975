"""Models from runs, Hub folders and torch modules, and the corpus that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmlab.core.compute_options import PrecisionName, computing_with, given_compute
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import check_path
from lmlab.verbs.language_model import LanguageModel

if TYPE_CHECKING:
    from lmlab.data.corpus import Corpus
    from lmlab.training.run_folder import TrainedModel

    GivenModel: TypeAlias = Path | str | LanguageModel
    from torch import nn

    from lmlab.tasks.finetuned_model import FinetunedModel


def check_list(runs: object, verb: str) -> None:
    """A UserError for a single run where a verb takes several."""
    if isinstance(runs, (str, Path)) or not isinstance(runs, Iterable):
        got = "a single one" if isinstance(runs, (str, Path)) else type(runs).__name__
        raise UserError(f"runs of {verb} must be a list, got {got}; put it in a list.")


def trained_model(run: GivenModel) -> TrainedModel:
    """The trained model of a `LanguageModel`, or of a run's path."""
    from lmlab.interop.load_model import load_model

    if isinstance(run, LanguageModel):
        return run.model
    check_path(run, "a run")
    return load_model(run)


def trained_models(runs: Sequence[GivenModel]) -> list[TrainedModel]:
    """The trained model of each run."""
    return [trained_model(run) for run in runs]


def shared_corpus(
    models: Sequence[TrainedModel], data: str | Path | None, errors: str | None
) -> Corpus:
    """The given corpus, or the one that all models were trained on.

    A model's training corpus is split as in training; otherwise its test split would contain
    training texts.
    """
    from lmlab.data.corpus import open_corpus

    if data is not None:
        trained = [model.config.corpus for model in models]
        seeds = {corpus.seed for corpus in trained if corpus.spec == str(data)}
        if len(seeds) > 1:
            raise UserError(f"these runs divided {data} by different seeds, so no split is unseen.")
        return open_corpus(data, errors=errors or "strict", seed=seeds.pop() if seeds else 0)
    by_fingerprint = {model.config.corpus.fingerprint: model.config.corpus for model in models}
    by_fingerprint.pop("", None)  # an imported model does not know its corpus, and fits any
    if not by_fingerprint:
        raise UserError(
            "these models were not trained here; give the corpus to compare them on by --data."
        )
    if len(by_fingerprint) != 1:
        names = ", ".join(sorted({corpus.spec for corpus in by_fingerprint.values()}))
        raise UserError(
            f"these runs were trained on different corpora ({names}); choose one by --data."
        )
    [(fingerprint, trained_on)] = by_fingerprint.items()
    decode_errors = errors or trained_on.decode_errors
    try:
        corpus = open_corpus(trained_on.spec, errors=decode_errors, seed=trained_on.seed)
    except UserError as error:
        raise UserError(
            f"the training corpus of the runs can't be read ({str(error).rstrip('.')}); give "
            "its path by --data."
        ) from error
    if corpus.fingerprint() != fingerprint:
        raise UserError(
            f"{trained_on.spec} has changed since the runs were trained on it; give the "
            "corpus to compare them on by --data."
        )
    return corpus


def load(
    run: Path | str,
    *,
    system: Path | str | ModuleType | None = None,
    language: str | None = None,
    verify: bool = True,
    device: str | None = None,
    precision: PrecisionName | None = None,
    threads: int | None = None,
) -> LanguageModel:
    """Load a trained model from a run's folder, ready to score and generate.

    A folder in Hugging Face format (config.json, model.safetensors, tokenizer.json) works too: it
    is converted on each load and nothing is written; `transformers` loads architectures that lmlab
    does not know.

    The run of a system in a file of your own needs that file or module again, as `system`: a run
    does not contain code, and nothing that it names is executed.

    `language` is that of the texts, for a system with language embeddings (xlm).

    A run's files are checked against the hashes in manifest.json, which detects damage, not
    forgery; `verify=False` skips that. Non-finite weights are always rejected.

    `device` is auto (a CUDA GPU if there is one, else the CPU), cpu, cuda, cuda:1 or mps; where the
    run was trained does not matter. `precision` is that of Transformer and recurrent layers, and
    every score's convention says it. `threads` is the CPU's number of threads in this process.

    >>> lmlab.load("runs/ngram").card.family
    'counting'
    """
    from lmlab.core.manifest import verification
    from lmlab.core.protocols import Multilingual, require
    from lmlab.core.system_files import register
    from lmlab.interop.load_model import load_model

    check_path(run, "a run")
    if system is not None:
        register(system)
    with verification(verify), computing_with(given_compute(device, precision, threads)):
        model = LanguageModel(load_model(run))
    if language is not None:
        require(model.system, Multilingual, "--language").use_language(language)
    return model


def load_answerer(run: Path | str) -> LanguageModel | FinetunedModel:
    """Load a run for question answering: it has `ask_stream`, whatever its task."""
    from lmlab.tasks.loading import is_task_run, load_task

    return load_task(run) if is_task_run(run) else load(run)


def wrap(
    module: nn.Module,
    tokenizer: Any,
    *,
    kind: Literal["causal", "masked"] = "causal",
    name: str | None = None,
    window: int | None = None,
    count_end: bool = True,
    allow_leaks: bool = False,
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
    length in tokens, and `name` the name in tables. A causal module that sees later tokens is
    refused, unless `allow_leaks`, for `lmlab.doctor`: its scores are then of kind pseudo.

    Padding, start and mask are never predicted, as everywhere in lmlab: probabilities are
    renormalised over the other tokens. The module is not copied, and its training mode is restored
    after each call.

    >>> import torch
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
    from lmlab.interop.module_wrapper import wrap_module

    return LanguageModel(
        wrap_module(
            module,
            tokenizer,
            kind=kind,
            name=name,
            window=window,
            count_end=count_end,
            allow_leaks=allow_leaks,
            symbols=symbols,
        )
    )
