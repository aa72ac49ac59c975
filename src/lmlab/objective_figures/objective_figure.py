"""Objective figure: inputs, targets and attention masks of one text, for a system or a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers.models import WordPiece

from lmlab.core.atomic_files import telling_disk_errors, write_bytes, write_text
from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.errors import UserError, looks_like_path
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.registry import catalogue, find_system, system_module
from lmlab.core.system import Assembly, System
from lmlab.core.untrusted_input import check_text
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import SPECIAL_TOKENS, UNKNOWN, Vocabulary
from lmlab.data.readers import Example
from lmlab.data.tokenizer_training import TRAINERS
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.inspection.inspected_models import (
    NamesOutcomes,
    NamesSpecialTokens,
    TokenNames,
    encode_with_special_tokens,
    fits_window,
    tokenize_sentence,
    training_corpus,
)
from lmlab.objective_figures.figure_contents import ObjectiveContents, annotate_view
from lmlab.objective_figures.figure_layout import objective_figure_spec
from lmlab.objective_figures.view_contents import view_contents
from lmlab.plotting.figure import FigureSpec, RenderedFigure, render_figure, standalone_svg
from lmlab.training.config import apply_settings
from lmlab.training.external_memory import tiny_external_memory
from lmlab.training.run_folder import TrainedModel, build_system, build_tiny, load_run

CONTINUATION_PREFIX = "##"
"""Prefix of a word-internal piece (WordPiece)."""
DEFAULT_TEXT = "the cat sat on the mat . it was warm , so it slept there ."
"""Default text for a zoo system."""
OTHER_TEXT = "a dog barked all night ."
"""Second text of the batch, from which pair objectives (NSP) take a sentence."""
DEFAULT_SOURCE = "le chat dort sur le tapis ."
DEFAULT_TRANSLATION = "the cat sleeps on the mat ."
MAX_TOKENS = 64
"""Most tokens of a figure."""
TRIED_SEEDS = 20
"""Seeds tried until a view has enough targets, if no seed is given."""
CJK_PATTERN = re.compile(r"([\u3400-\u9fff\uf900-\ufaff\u3000-\u303f\uff00-\uffef])")
FIGURE_SUFFIXES = (".svg", ".png")


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectiveFigure:
    """One text under an objective, with its figure."""

    card: Card
    seed: int
    random: bool
    """Whether the view depends on the seed."""
    view: View
    contents: ObjectiveContents
    spec: FigureSpec

    @cached_property
    def rendered(self) -> RenderedFigure:
        """The rendered figure, cached."""
        return render_figure(self.spec)

    @property
    def svg(self) -> str:
        """Standalone SVG, readable on light and dark pages."""
        return standalone_svg(self.rendered.svg)

    @property
    def png(self) -> bytes:
        return self.rendered.png

    def write(self, path: Path) -> None:
        """Write it as SVG or PNG, by file extension."""
        check_figure_path(path)
        with telling_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".svg":
            write_text(path, self.svg)
        else:
            write_bytes(path, self.png)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PreparedText:
    """A system and a batch for it."""

    card: Card
    system: Assembly
    tokenizer: Tokenizer
    batch: Batch


def show_objective(
    system: str | Path | TrainedModel,
    *,
    text: str | None = None,
    condition: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ObjectiveFigure:
    """Figure of an objective's view of one text, for a zoo system by name or a run.

    A zoo system is built small and untrained over the words of the text; ## continues a word, as in
    WordPiece. The default seed is the first whose view masks something and has two targets in the
    text, or at least one.
    """
    for told in (text, condition):
        if told is not None and not check_text(told).strip():
            raise UserError("a text to show must have at least one word, got an empty text.")
    stage = _stage(system, text, condition, dict(settings or {}))
    drawn = _draw_view(stage, seed)
    showing = _show(stage, drawn.view)
    notes = (stage.card.paper, f"seed {drawn.seed}" if drawn.random else "")
    picture = objective_figure_spec(
        showing,
        name=f"objective-{stage.card.name}",
        title=f"{stage.card.name}: {_summary(stage.card)}",
        note="  ·  ".join(note for note in notes if note),
    )
    return ObjectiveFigure(
        card=stage.card,
        seed=drawn.seed,
        random=drawn.random,
        view=drawn.view,
        contents=showing,
        spec=picture,
    )


def check_figure_path(path: Path) -> None:
    """Reject a file extension other than .svg and .png."""
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise UserError(
            f"the figure file must end in {' or '.join(FIGURE_SUFFIXES)}, got {path.name}; "
            "the suffix selects the format."
        )
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write.")


def _summary(card: Card) -> str:
    """The card's first line without the leading name."""
    name, colon, rest = card.summary.partition(": ")
    return rest if colon and len(name) < 30 else card.summary


def _stage(
    system: str | Path | TrainedModel,
    text: str | None,
    condition: str | None,
    settings: dict[str, Any],
) -> _PreparedText:
    if not isinstance(system, TrainedModel) and not is_run_path(str(system)):
        return _zoo_stage(find_system(str(system)), text, condition, settings)
    if settings:
        raise UserError("--set does not apply to a run; remove it, or name a system.")
    model = system if isinstance(system, TrainedModel) else load_run(system)
    return _run_stage(model, text, condition)


def is_run_path(named: str) -> bool:
    """Whether it is a path, existing or not; a bare system name is a system."""
    known = {name.lower() for card in catalogue().values() for name in (card.name, *card.aliases)}
    a_path = looks_like_path(named) or Path(named).exists()
    return a_path and named.lower().replace("_", "-") not in known


def _zoo_stage(
    card: Card, text: str | None, condition: str | None, settings: dict[str, Any]
) -> _PreparedText:
    if condition is not None and not card.conditional:
        raise UserError(
            f"--condition does not apply to {card.name}, which has no second text; remove it."
        )
    example: Example | None = getattr(system_module(card.name), "EXAMPLE", None)
    if example is not None:
        given = example.condition if condition is None else condition
        return _zoo_texts(card, text or example.text, given, settings)
    stage = _zoo_texts(card, text or DEFAULT_TEXT, condition, settings)
    if text is None and condition is None and _reads_nothing(stage):
        return _zoo_texts(card, DEFAULT_TRANSLATION, DEFAULT_SOURCE, settings)
    return stage


def _zoo_texts(
    card: Card, text: str, condition: str | None, settings: dict[str, Any]
) -> _PreparedText:
    tokenizer, texts = _tokenised([space_words(each) for each in (text, condition or OTHER_TEXT)])
    pad = tokenizer.vocabulary.pad
    first, second = ([encode_with_special_tokens(tokenizer, each)] for each in texts)
    if condition is None:
        batch = Batch.collate([*first, *second], pad=pad)
    else:
        batch = Batch.collate(first, pad=pad, condition=Batch.collate(second, pad=pad))
    return _staged(card, _untrained(card, tokenizer.vocabulary, settings), tokenizer, batch)


def _tokenised(texts: list[str]) -> tuple[Tokenizer, list[str]]:
    """A word tokeniser, or one of the given pieces if ## marks continuations; and the texts."""
    pieces = dict.fromkeys(piece for text in texts for piece in text.split())
    if not any(piece.startswith(CONTINUATION_PREFIX) for piece in pieces):
        return train_tokenizer("word", texts), texts
    numbers = {
        piece: number for number, piece in enumerate(dict.fromkeys([*SPECIAL_TOKENS, *pieces]))
    }
    model = WordPiece(numbers, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUATION_PREFIX)
    whole = [text.replace(f" {CONTINUATION_PREFIX}", "") for text in texts]
    return Tokenizer(TRAINERS["wordpiece"].assemble(model)), whole


def _reads_nothing(stage: _PreparedText) -> bool:
    """Whether the encoder has no input, as a translator without a source."""
    found = _view(stage, 0)
    if found.random or found.view.decoder is None:
        return False
    words = set(stage.batch.tokens[0, 1:-1].tolist())
    return not words & set(found.view.inputs[0].flatten().tolist())


def _staged(card: Card, system: System, tokenizer: Tokenizer, batch: Batch) -> _PreparedText:
    if not isinstance(system, Assembly):
        raise UserError(
            f"{card.name} has no objective with positions: it gives a probability to the text "
            "as a whole, so there is no view to plot."
        )
    system.setup_tokenizer(tokenizer)
    return _PreparedText(card=card, system=system, tokenizer=tokenizer, batch=batch)


def space_words(text: str) -> str:
    """Words separated by spaces, each Chinese character a word."""
    return " ".join(CJK_PATTERN.sub(r" \1 ", text).split())


def _untrained(card: Card, vocabulary: Vocabulary, settings: dict[str, Any]) -> System:
    """The small size: tiny ones may mask more than the paper, for quick tests."""
    normal = {key.strip().replace("-", "_"): value for key, value in settings.items()}
    config = apply_settings(
        system_module(card.name).SIZES["small"], normal, f"lmlab settings {card.name}"
    )
    base = build_tiny(card.base, vocabulary) if card.base else None
    memories = tiny_external_memory(card)
    return build_system(card.name, asdict(config), vocabulary, seed=0, base=base, memories=memories)


def _run_stage(model: TrainedModel, text: str | None, condition: str | None) -> _PreparedText:
    if condition is not None and not model.card.conditional:
        raise UserError(
            f"--condition does not apply to {model.card.name}, which has no second text; remove it."
        )
    if text is None:
        example = _own_example(model)
        text = example.text
        if condition is None and model.card.conditional:
            condition = example.condition
    pad = model.system.vocabulary.pad
    given = None
    if condition is not None:
        given = Batch.collate([encode_with_special_tokens(model.tokenizer, condition)], pad=pad)
    rows = [tokenize_sentence(model, text).ids]
    if given is None and model.system.vocabulary.end is not None:
        rows += [tokenize_sentence(model, other).ids for other in _company(model, text)]
    batch = Batch.collate(rows, pad=pad, condition=given)
    return _staged(model.card, model.system, model.tokenizer, batch)


def _own_example(model: TrainedModel) -> Example:
    """A held-out text of the run's corpus of medium length."""
    found = _own_examples(model)
    if not found:
        raise UserError(f"the training corpus of {model.path} is missing; give a text by --text.")
    good = (each for each in found if 8 <= len(model.tokenizer.encode(each.text)) <= 16)
    return next(good, found[0])


def _own_examples(model: TrainedModel) -> list[Example]:
    corpus = training_corpus(model)
    return [] if corpus is None else list(corpus.split("validation").first(200))


def _company(model: TrainedModel, text: str) -> list[str]:
    """Another text of the run's corpus that fits the model, if there is one."""
    others = (each.text for each in _own_examples(model) if each.text != text)
    fitting = (other for other in others if fits_window(model, tokenize_sentence(model, other)))
    return list(islice(fitting, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class _SampledView:
    view: View
    seed: int
    random: bool


def _draw_view(stage: _PreparedText, seed: int | None) -> _SampledView:
    """The view with this seed, or the first that masks something and has two targets, or one."""
    tokens = int(stage.batch.lengths[0])
    if tokens > MAX_TOKENS:
        raise UserError(
            f"a figure has room for {MAX_TOKENS} tokens, got {tokens}; give a shorter text."
        )
    stage.system.check_length(tokens)
    first = _view(stage, seed or 0)
    if seed is not None or not first.random:
        return first
    best, most = first, 0
    for each in range(TRIED_SEEDS):
        tried = _view(stage, each)
        # A target that is kept unchanged by chance does not illustrate the objective.
        worth = 2 * _hides(stage, tried.view) + min(_asked(tried.view), 2)
        if worth > most:
            best, most = tried, worth
        if most == 4:
            break
    return best


def _hides(stage: _PreparedText, view: View) -> bool:
    """Whether some token is replaced in the input, or masked from its prediction."""
    return bool(_show(stage, view).styles & {"hidden", "mask", "changed"})


def _show(stage: _PreparedText, view: View) -> ObjectiveContents:
    """Contents of a view, named by the system's parts and its tokeniser."""
    objective, emission = stage.system.objective, stage.system.emission
    names = TokenNames(
        token=stage.tokenizer.token,
        vocabulary=stage.tokenizer.vocabulary,
        symbols=objective.symbols if isinstance(objective, NamesSpecialTokens) else {},
        outcomes=emission.outcomes if isinstance(emission, NamesOutcomes) else (),
    )
    return view_contents(view, stage.batch, names, annotate_view(stage.system, view))


def _view(stage: _PreparedText, seed: int) -> _SampledView:
    system, generator = stage.system, torch.Generator().manual_seed(seed)
    before = generator.get_state()
    try:
        with evaluation_mode(system):
            batch = stage.batch.to(device_of(system))
            view = system.objective.view(batch, generator=generator)
    except TypeError as error:
        if "does not define view" not in str(error):
            raise
        raise UserError(
            f"the objective of {stage.card.name} is no view of a text ({error}), so there is "
            "nothing to plot."
        ) from error
    random = not torch.equal(before, generator.get_state())
    return _SampledView(view=view, seed=seed, random=random)


def _asked(view: View) -> int:
    """Number of targets."""
    targets = view.prediction_view.targets
    return 0 if targets is None else int((targets[0] != NO_TARGET).sum())
