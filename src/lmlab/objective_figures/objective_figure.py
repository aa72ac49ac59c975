"""Objective figure: inputs, targets and attention masks of one text, for a system or a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tokenizers.models import WordPiece

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.errors import UserError, looks_like_path
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.figure_style import PLAIN_STYLE, FigureStyle
from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord
from lmlab.core.registry import catalogue, system_module
from lmlab.core.system import System
from lmlab.core.system_files import resolve_system
from lmlab.core.untrusted_input import check_text
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import SPECIAL_TOKENS, UNKNOWN, Vocabulary
from lmlab.data.corpus_encoding import encode_with_special_tokens
from lmlab.data.readers import Example
from lmlab.data.tokenizer_training import TRAINERS
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.inspection.inspected_models import (
    NamesOutcomes,
    NamesSpecialTokens,
    TokenNames,
    fits_window,
    tokenize_sentence,
    training_corpus,
)
from lmlab.objective_figures.figure_contents import ObjectiveContents, annotate_view
from lmlab.objective_figures.figure_layout import objective_figure_spec
from lmlab.objective_figures.view_contents import view_contents
from lmlab.plotting.figure import (
    FigureSpec,
    RenderedFigure,
    check_figure_path,
    render_figure,
    standalone_svg,
    write_figure,
)
from lmlab.plotting.notebook_figures import svg_figure
from lmlab.training.config import apply_settings
from lmlab.training.external_memory import tiny_external_memory
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.system_building import build_system, build_tiny

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectiveFigure(NotebookRecord):
    """One text under an objective, with its figure."""

    card: Card
    seed: int
    random: bool
    """Whether the view depends on the seed."""
    view: View
    contents: ObjectiveContents
    spec: FigureSpec
    style: FigureStyle = PLAIN_STYLE

    @cached_property
    def rendered(self) -> RenderedFigure:
        """The rendered figure, cached."""
        return render_figure(self.spec, self.style)

    @property
    def svg(self) -> str:
        """Standalone SVG, readable on light and dark pages."""
        return standalone_svg(self.rendered.svg)

    @property
    def png(self) -> bytes:
        return self.rendered.png

    def html_body(self) -> Html:
        """The figure."""
        return svg_figure(self.rendered.svg, self.spec.caption)

    def write(self, path: Path) -> None:
        """Write it as SVG, PNG or PDF, by file extension."""
        check_figure_path(path)
        a_pdf = path.suffix.lower() == ".pdf"
        rendered = render_figure(self.spec, self.style, pdf=True) if a_pdf else self.rendered
        write_figure(path, rendered)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PreparedText:
    """A system and a batch for it."""

    card: Card
    system: ComposedSystem
    tokenizer: Tokenizer
    batch: Batch


def show_objective(
    system: str | Path | ModuleType | TrainedModel,
    *,
    text: str | None = None,
    condition: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    style: FigureStyle = PLAIN_STYLE,
) -> ObjectiveFigure:
    """Figure of an objective's view of one text, for a zoo system by name or a run.

    A zoo system is built small and untrained over the words of the text; ## continues a word, as in
    WordPiece. The default seed is the first whose view masks something and has two targets in the
    text, or at least one.
    """
    for value in (text, condition):
        if value is not None and not check_text(value).strip():
            raise UserError("a text to show must have at least one word, got an empty text.")
    prepared = _prepare(system, text, condition, dict(settings or {}))
    sampled = _sample_view(prepared, seed)
    contents = _contents(prepared, sampled.view)
    notes = (prepared.card.paper, f"seed {sampled.seed}" if sampled.random else "")
    spec = objective_figure_spec(
        contents,
        name=f"objective-{prepared.card.name}",
        title=(
            f"{prepared.card.name}: {_summary(prepared.card)}"
            if style.title is None
            else style.title
        ),
        note="  ·  ".join(note for note in notes if note) if style.title is None else "",
    )
    return ObjectiveFigure(
        card=prepared.card,
        seed=sampled.seed,
        random=sampled.random,
        view=sampled.view,
        contents=contents,
        spec=spec,
        style=style,
    )


def _summary(card: Card) -> str:
    """The card's first line without the leading name."""
    name, colon, description = card.summary.partition(": ")
    return description if colon and len(name) < 30 else card.summary


def _prepare(
    system: str | Path | ModuleType | TrainedModel,
    text: str | None,
    condition: str | None,
    settings: dict[str, Any],
) -> _PreparedText:
    if isinstance(system, ModuleType):
        return _prepare_zoo_system(resolve_system(system), text, condition, settings)
    if not isinstance(system, TrainedModel) and not is_run_path(str(system)):
        return _prepare_zoo_system(resolve_system(str(system)), text, condition, settings)
    if settings:
        raise UserError("--set does not apply to a run; remove it, or name a system.")
    model = system if isinstance(system, TrainedModel) else load_run(system)
    return _prepare_run(model, text, condition)


def is_run_path(name_or_path: str) -> bool:
    """Whether it is a path, existing or not; a bare system name is a system, as is a .py file."""
    if name_or_path.endswith(".py"):
        return False
    known = {name.lower() for card in catalogue().values() for name in (card.name, *card.aliases)}
    a_path = looks_like_path(name_or_path) or Path(name_or_path).exists()
    return a_path and name_or_path.lower().replace("_", "-") not in known


def _prepare_zoo_system(
    card: Card, text: str | None, condition: str | None, settings: dict[str, Any]
) -> _PreparedText:
    if condition is not None and not card.conditional:
        raise UserError(
            f"--condition does not apply to {card.name}, which has no second text; remove it."
        )
    example: Example | None = getattr(system_module(card.name), "EXAMPLE", None)
    if example is not None:
        source = example.condition if condition is None else condition
        return _prepare_zoo_texts(card, text or example.text, source, settings)
    prepared = _prepare_zoo_texts(card, text or DEFAULT_TEXT, condition, settings)
    if text is None and condition is None and _has_no_source(prepared):
        return _prepare_zoo_texts(card, DEFAULT_TRANSLATION, DEFAULT_SOURCE, settings)
    return prepared


def _prepare_zoo_texts(
    card: Card, text: str, condition: str | None, settings: dict[str, Any]
) -> _PreparedText:
    tokenizer, texts = _tokenize([space_words(words) for words in (text, condition or OTHER_TEXT)])
    pad = tokenizer.vocabulary.pad
    first, second = ([encode_with_special_tokens(tokenizer, words)] for words in texts)
    if condition is None:
        batch = Batch.collate([*first, *second], pad=pad)
    else:
        batch = Batch.collate(first, pad=pad, condition=Batch.collate(second, pad=pad))
    return _prepared_text(card, _untrained(card, tokenizer.vocabulary, settings), tokenizer, batch)


def _tokenize(texts: list[str]) -> tuple[Tokenizer, list[str]]:
    """A word tokenizer, or one of the given pieces if ## marks continuations; and the texts."""
    pieces = dict.fromkeys(piece for text in texts for piece in text.split())
    if not any(piece.startswith(CONTINUATION_PREFIX) for piece in pieces):
        return train_tokenizer("word", texts), texts
    numbers = {
        piece: number for number, piece in enumerate(dict.fromkeys([*SPECIAL_TOKENS, *pieces]))
    }
    model = WordPiece(numbers, unk_token=UNKNOWN, continuing_subword_prefix=CONTINUATION_PREFIX)
    joined = [text.replace(f" {CONTINUATION_PREFIX}", "") for text in texts]
    return Tokenizer(TRAINERS["wordpiece"].assemble(model)), joined


def _has_no_source(prepared: _PreparedText) -> bool:
    """Whether the encoder has no input, as a translator without a source."""
    sampled = _view(prepared, 0)
    if sampled.random or sampled.view.decoder is None:
        return False
    words = set(prepared.batch.tokens[0, 1:-1].tolist())
    return not words & set(sampled.view.inputs[0].flatten().tolist())


def _prepared_text(card: Card, system: System, tokenizer: Tokenizer, batch: Batch) -> _PreparedText:
    if not isinstance(system, ComposedSystem):
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
    return build_system(
        card.name,
        asdict(config),
        vocabulary,
        seed=0,
        base=base,
        memories=tiny_external_memory(card),
        components=[build_tiny(part, vocabulary) for part in card.components],
    )


def _prepare_run(model: TrainedModel, text: str | None, condition: str | None) -> _PreparedText:
    if condition is not None and not model.card.conditional:
        raise UserError(
            f"--condition does not apply to {model.card.name}, which has no second text; remove it."
        )
    if text is None:
        example = _corpus_example(model)
        text = example.text
        if condition is None and model.card.conditional:
            condition = example.condition
    pad = model.system.vocabulary.pad
    condition_batch = None
    if condition is not None:
        condition_batch = Batch.collate(
            [encode_with_special_tokens(model.tokenizer, condition)], pad=pad
        )
    rows = [tokenize_sentence(model, text).ids]
    if condition_batch is None and model.system.vocabulary.end is not None:
        rows += [tokenize_sentence(model, other).ids for other in _second_text(model, text)]
    batch = Batch.collate(rows, pad=pad, condition=condition_batch)
    return _prepared_text(model.card, model.system, model.tokenizer, batch)


def _corpus_example(model: TrainedModel) -> Example:
    """A held-out text of the run's corpus of medium length."""
    examples = _corpus_examples(model)
    if not examples:
        raise UserError(f"the training corpus of {model.path} is missing; give a text by --text.")
    good = (example for example in examples if 8 <= len(model.tokenizer.encode(example.text)) <= 16)
    return next(good, examples[0])


def _corpus_examples(model: TrainedModel) -> list[Example]:
    corpus = training_corpus(model)
    return [] if corpus is None else list(corpus.split("validation").first(200))


def _second_text(model: TrainedModel, text: str) -> list[str]:
    """Another text of the run's corpus that fits the model, if there is one."""
    others = (example.text for example in _corpus_examples(model) if example.text != text)
    fitting = (other for other in others if fits_window(model, tokenize_sentence(model, other)))
    return list(islice(fitting, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class _SampledView:
    view: View
    seed: int
    random: bool


def _sample_view(prepared: _PreparedText, seed: int | None) -> _SampledView:
    """The view with this seed, or the first that masks something and has two targets, or one."""
    tokens = int(prepared.batch.lengths[0])
    if tokens > MAX_TOKENS:
        raise UserError(
            f"a figure has room for {MAX_TOKENS} tokens, got {tokens}; give a shorter text."
        )
    prepared.system.check_length(tokens)
    first = _view(prepared, seed or 0)
    if seed is not None or not first.random:
        return first
    best, best_score = first, 0
    for candidate_seed in range(TRIED_SEEDS):
        candidate = _view(prepared, candidate_seed)
        # A target that is kept unchanged by chance does not illustrate the objective.
        score = 2 * _masks_tokens(prepared, candidate.view) + min(_target_count(candidate.view), 2)
        if score > best_score:
            best, best_score = candidate, score
        if best_score == 4:
            break
    return best


def _masks_tokens(prepared: _PreparedText, view: View) -> bool:
    """Whether some token is replaced in the input, or masked from its prediction."""
    return bool(_contents(prepared, view).styles & {"hidden", "mask", "changed"})


def _contents(prepared: _PreparedText, view: View) -> ObjectiveContents:
    """Contents of a view, named by the system's parts and its tokenizer."""
    objective, emission = prepared.system.objective, prepared.system.emission
    names = TokenNames(
        token=prepared.tokenizer.token,
        vocabulary=prepared.tokenizer.vocabulary,
        symbols=objective.symbols if isinstance(objective, NamesSpecialTokens) else {},
        outcomes=emission.outcomes if isinstance(emission, NamesOutcomes) else (),
    )
    return view_contents(view, prepared.batch, names, annotate_view(prepared.system, view))


def _view(prepared: _PreparedText, seed: int) -> _SampledView:
    system, generator = prepared.system, torch.Generator().manual_seed(seed)
    before = generator.get_state()
    with evaluation_mode(system):
        batch = prepared.batch.to(device_of(system))
        view = system.objective.view(batch, generator=generator)
    random = not torch.equal(before, generator.get_state())
    return _SampledView(view=view, seed=seed, random=random)


def _target_count(view: View) -> int:
    """Number of targets."""
    targets = view.prediction_view.targets
    return 0 if targets is None else int((targets[0] != NO_TARGET).sum())
