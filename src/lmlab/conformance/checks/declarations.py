"""Checks of what a system declares and shows: card, settings, captures, vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.conformance.assertions import assert_close, assert_that, lacks
from lmlab.conformance.check import DoesNotApply, Failure, check
from lmlab.conformance.system_under_test import SystemUnderTest, with_replaced_token
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import (
    PROTOCOLS,
    Encode,
    EncodeTokens,
    Energy,
    Fill,
    LogProbs,
    Step,
    Vectors,
)
from lmlab.core.registry import imported_card, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import open_corpus
from lmlab.data.tokenizers import tokenizer_for
from lmlab.inspection.inspected_models import collate_sentences, tokenize_sentence
from lmlab.scoring.text_embeddings import EncodeLayers, LayerStates, TextEmbedder, TextEmbedding
from lmlab.training.config import TrainingConfig, apply_settings
from lmlab.training.data_loaders import training_data
from lmlab.training.system_building import build_tiny


@check(
    "card",
    "The card names exactly the protocols that the system satisfies, and the kind of its scores.",
    law="matches its card",
)
def card_matches_system(tested: SystemUnderTest) -> None:
    card, imported = tested.card, imported_card(tested.card.name)
    assert_that(
        card == imported,
        f"the card as read from its file differs from the imported one: {imported}",
    )
    has = {name for name, protocol in PROTOCOLS.items() if isinstance(tested.system, protocol)}
    wrong = sorted(has ^ set(card.protocols))
    assert_that(
        not wrong,
        f"the card names {sorted(card.protocols)} and it satisfies {sorted(has)}: {wrong}",
        protocol=", ".join(wrong),
    )
    if "LogProb" not in has:
        return
    kind = tested.scorer.log_prob(tested.batch(tested.sentences)).kind
    assert_that(kind == card.kind, f"the card says that log_prob is {card.kind}, and it is {kind}")


CHANGED = 5
"""The position whose token is replaced, so that others precede and follow it."""


@check(
    "scorer-kind",
    "The scores of tokens and texts come about as the system's class declares (scorer_kind).",
    law="matches its card",
    protocol="LogProb",
)
@torch.no_grad()
def scores_are_of_the_declared_kind(tested: SystemUnderTest) -> None:
    kind, system = tested.system.scorer_kind, tested.system
    batch = tested.batch([tested.sentences[2]])
    scored = _log_probs(tested, batch)
    declared = f"scorer_kind is {kind}"
    for score_kind, needed in (("pseudo", "masked"), ("reconstruction", "reconstruction")):
        agrees = (scored.kind == score_kind) == (kind == needed)
        assert_that(agrees, f"{declared}, and log_prob is {scored.kind}")
    for protocol, needed in ((Energy, "energy"), (Step, "left-to-right")):
        agrees = not isinstance(system, protocol) or kind == needed
        assert_that(agrees, f"{declared}, and the system has {protocol.__name__}")
    changed = replace(batch, tokens=with_replaced_token(batch.tokens, CHANGED))
    before = slice(0, CHANGED - 1)
    first, second = scored.per_token[0][before], _log_probs(tested, changed).per_token[0][before]
    if kind == "left-to-right":
        what = f"{declared}, and a token at position {CHANGED} changes the score of one before it"
        assert_close(second, first, what, atol=1e-5, first=1)
    elif kind == "reconstruction":
        what = f"{declared}, and no token before position {CHANGED} depends on the one there"
        assert_that(not torch.allclose(second, first, atol=1e-6), what, position=CHANGED)
    elif kind == "masked":
        what = f"{declared}, and a token's score is not its log-probability given all the others"
        filled = _filled_log_probs(tested, batch)
        assert_close(scored.per_token[0], filled, what, atol=1e-4, first=1)
    else:
        what = f"{declared}, and all of a text's score is divided among its tokens"
        assert_that(scored.per_sequence is not None, what)
        has_energy = kind != "energy" or isinstance(system, Energy)
        assert_that(has_energy, f"{declared}, and the system lacks Energy")


def _log_probs(tested: SystemUnderTest, batch: Batch) -> LogProbs:
    """From one seed, for systems whose scores are estimates."""
    return tested.scorer.log_prob(batch, generator=torch.Generator().manual_seed(0))


def _filled_log_probs(tested: SystemUnderTest, batch: Batch) -> Tensor:
    """(T - 1,) of the tokens of one text, each masked by itself; 0 at the end token."""
    system, [row] = tested.system, batch.tokens.tolist()
    if not isinstance(system, Fill):
        raise lacks(system, "Fill")
    log_probs = torch.zeros(len(row) - 1)
    for position, token in enumerate(row[1:-1], 1):
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[0, position] = True
        filled = system.fill(batch, masked, generator=torch.Generator().manual_seed(0))
        log_probs[position - 1] = filled.log_probs[0, token]
    return log_probs


@check(
    "setting-ranges",
    "Every number among the settings has a range, and a value beyond it is a UserError.",
    law="matches its card",
)
def numeric_settings_have_ranges(tested: SystemUnderTest) -> None:
    """So that an absurd value never reaches torch."""
    module = system_module(tested.card.name)
    base = module.SIZES["base"]
    values = {field.name: getattr(base, field.name) for field in fields(module.Config)}
    numbers: dict[str, Mapping[str, Any]] = {
        field.name: field.metadata
        for field in fields(module.Config)
        if isinstance(values[field.name], (int, float)) and not isinstance(values[field.name], bool)
    }
    without_range = [name for name, metadata in numbers.items() if not metadata]
    assert_that(
        not without_range,
        f"settings without a range in their metadata: {without_range}",
        setting=", ".join(without_range),
    )
    for name in numbers:
        try:
            apply_settings(base, {name: "-7"})
        except UserError as error:
            named = name in str(error)
            assert_that(named, f"the error of {name}=-7 does not name it: {error}", setting=name)
        else:
            raise Failure(f"{name}=-7 is accepted, expected a UserError", where={"setting": name})


@cache
def longest_lengths(corpus: str) -> tuple[int, int]:
    """Tokens of the longest text of a corpus, and of what a text is given."""
    opened = open_corpus(corpus)
    data = training_data(opened, tokenizer_for(opened, None), TrainingConfig(), progress=False)
    return data.max_length, data.max_source_length


@check(
    "card-corpus",
    "It can be trained on the corpus that its card names, at every size.",
    law="matches its card",
)
def accepts_its_card_corpus(tested: SystemUnderTest) -> None:
    if tested.card.base:
        raise DoesNotApply("its texts are as long as those of its base, which is trained first")
    longest, longest_condition = longest_lengths(tested.card.corpus)
    system = build_tiny(tested.card.name, Vocabulary(size=40))
    system.check_length(longest)
    system.check_condition_length(longest_condition)
    needed = 0 if system.window is None else longest
    for size, config in system_module(tested.card.name).SIZES.items():
        length = getattr(config, "length", None)
        assert_that(
            length is None or length >= needed - 1,
            f"{tested.card.name} of size {size} reads {length} tokens, and the longest text of its "
            f"card's corpus has {longest}",
            size=size,
        )


TOLERANCE = 1e-4
SENTENCE = "a b b a"
LAYOUT_WORDS = re.compile(r"\b(rows?|columns?)\b", re.IGNORECASE)
"""Words for the layout of a figure: a capture may be plotted either way."""
TEXTS = ["a a a b", "b", "a b a b b b a", "a a b"]
Vector = NDArray[Any]


@check(
    "captures",
    "Captured internal values are within the range, and have the sums, that they declare.",
    law="shows what it declares",
    exemptions=("source",),  # an image is not made of words
)
def captures_are_within_their_declared_range(tested: SystemUnderTest) -> None:
    system = tested.system
    condition = SENTENCE if tested.card.conditional else None
    batch = collate_sentences(system, [tokenize_sentence(tested.model, SENTENCE, condition)])
    with evaluation_mode(system), torch.random.fork_rng():
        torch.manual_seed(0)
        captures = system.capture_internals(batch)
    for name, capture in captures.items():
        layout_word = LAYOUT_WORDS.search(capture.caption)
        assert_that(
            not layout_word,
            f"the caption of {name} says where it is drawn: {capture.caption!r}",
            capture=name,
        )
        values = capture.values.double()
        finite = values[values.isfinite()]
        low, high = capture.range
        outside = finite[(finite < low - TOLERANCE) | (finite > high + TOLERANCE)].tolist()
        what = f"{name} is declared to be within {low} … {high}, got {outside[:3]}"
        assert_that(not outside, what, capture=name)
        if capture.sums_to_one:
            sums = values.nan_to_num().sum(capture.axes.index(capture.sums_to_one))
            # Nothing at all where nothing is predicted.
            wrong = sums[(sums.abs() >= TOLERANCE) & ((sums - 1).abs() >= TOLERANCE)].tolist()
            what = f"{name} does not sum to 1 over {capture.sums_to_one}: {wrong[:3]}"
            assert_that(not wrong, what, capture=name)


def _embed(tested: SystemUnderTest, texts: Sequence[str], **options: Any) -> list[TextEmbedding]:
    model = tested.model
    embedder = TextEmbedder(
        model.system, model.effective_source_tokenizer, model.layout, tested.card.name, **options
    )
    return list(embedder.encode(texts))


def _assert_refused(tested: SystemUnderTest, said: str, **options: Any) -> None:
    """What does not apply to the system is refused by a UserError that says so."""
    try:
        _embed(tested, TEXTS, **options)
    except UserError as error:
        assert_that(
            re.search(said, str(error)), f"{options} is refused by {str(error)!r}, without {said!r}"
        )
    else:
        raise Failure(f"encoding with {options} was expected to raise a UserError: {said}")


def _skip_without_vectors(tested: SystemUnderTest) -> list[TextEmbedding]:
    """Embeddings of all texts; a system without hidden states says so in a UserError."""
    try:
        return _embed(tested, TEXTS)
    except UserError as error:
        name = tested.card.name
        what = f"the error does not begin with the system's name: {error}"
        assert_that(str(error).startswith(f"{name} "), what)
        raise DoesNotApply(str(error).rstrip(".")) from error


def _assert_equal_vectors(
    measured: Vector | None, expected: Vector | None, what: str, atol: float = 1e-5
) -> None:
    assert measured is not None and expected is not None
    assert_that(
        measured.shape == expected.shape and np.allclose(measured, expected, rtol=1e-7, atol=atol),
        f"{what} differ: shapes {measured.shape} and {expected.shape}"
        + (
            f", by {np.abs(measured - expected).max():.3g}"
            if measured.shape == expected.shape
            else ""
        ),
    )


@check(
    "text-vectors",
    "The vector of a text is finite, does not depend on the other texts of the batch, and differs "
    "between texts.",
    law="does not depend on the batch",
)
def text_vectors_do_not_depend_on_the_batch(tested: SystemUnderTest) -> None:
    together = _skip_without_vectors(tested)
    for text, encoded in zip(TEXTS, together, strict=True):
        what = f"the vector of {text!r}"
        assert_that(encoded.text == text, f"{what} comes with the text {encoded.text!r}", text=text)
        vector = encoded.vector
        assert_that(
            vector is not None and vector.ndim == 1,
            f"{what} is {vector}, expected one dimension",
            text=text,
        )
        assert vector is not None
        assert_that(np.isfinite(vector).all(), f"{what} is not finite: {vector}", text=text)
        [alone] = _embed(tested, [text])
        _assert_equal_vectors(vector, alone.vector, f"{what} with others and alone")
    first, third = together[0].vector, together[2].vector
    assert first is not None and third is not None
    apart = np.abs(first - third).max()
    assert_that(apart > 1e-6, f"{TEXTS[0]!r} and {TEXTS[2]!r} have one and the same vector")


def _assert_token_records(encoded: TextEmbedding) -> None:
    """The tokens of "a a a b", their characters, and which of them are special."""
    assert_that(encoded.tokens[1:5] == ("a", "a", "a", "b"), f"the tokens are {encoded.tokens}")
    spans = ((0, 1), (2, 3), (4, 5), (6, 7))
    assert_that(encoded.spans[1:5] == spans, f"the tokens' characters are {encoded.spans}")
    ordinary = [i for i, special in enumerate(encoded.special) if not special]
    what = f"the tokens {ordinary} are marked as ordinary, not 1 to 4"
    assert_that(ordinary == [1, 2, 3, 4], what)


@check(
    "layer-vectors",
    "Every layer has a vector for each token, layers count from both ends, and the last one is the "
    "system's own.",
    law="shows what it declares",
)
def every_layer_has_a_vector_for_each_token(tested: SystemUnderTest) -> None:
    system, name = tested.system, tested.card.name
    _skip_without_vectors(tested)
    if isinstance(system, Encode) and not isinstance(system, EncodeTokens):
        for option in ({"per_token": True}, {"layer": 0}, {"pooling": "mean"}):
            _assert_refused(tested, f"does not apply to {name}", **option)
        return
    own = _embed(tested, TEXTS, per_token=True)
    _assert_token_records(own[0])
    try:
        depth = LayerStates(system, name, 0).depth
    except UserError as error:
        _assert_refused(tested, f"{name}: it has no layers", layer=0)
        raise DoesNotApply("it has no layers") from error
    for layer in range(depth + 1):
        _check_layer(tested, own, layer, depth)
    for wrong in (depth + 1, -depth - 2):
        _assert_refused(tested, f"between {-depth - 1} and {depth}", layer=wrong)


def _check_layer(
    tested: SystemUnderTest, own: Sequence[TextEmbedding], layer: int, depth: int
) -> None:
    result = _embed(tested, TEXTS, per_token=True, layer=layer)
    below = _embed(tested, TEXTS, per_token=True, layer=layer - depth - 1)
    for one, other, text in zip(result, below, own, strict=True):
        assert one.token_vectors is not None
        rows, tokens = one.token_vectors.shape[0], len(text.tokens)
        assert_that(
            rows == tokens == len(one.tokens),
            f"layer {layer} has {rows} vectors for the {tokens} tokens of {text.text!r}",
            layer=layer,
            text=text.text,
        )
        counted = f"layers {layer} and {layer - depth - 1}, which are one,"
        _assert_equal_vectors(one.token_vectors, other.token_vectors, counted, atol=0)
    if layer == 0:
        # What a token is embedded as knows nothing of the other tokens before its position.
        first, again = result[0].token_vectors, result[3].token_vectors
        assert first is not None and again is not None
        _assert_equal_vectors(first[1], again[1], "embeddings of the first token in two texts")
    if layer == depth and not isinstance(tested.system, EncodeLayers):
        for last, text in zip(result, own, strict=True):
            what = f"the last layer and the system's own vectors of {text.text!r}"
            _assert_equal_vectors(last.token_vectors, text.token_vectors, what)


@check(
    "word-vectors",
    "Every token has a finite vector, and two words have different ones.",
    law="learns",
    protocol="Vectors",
)
@torch.no_grad()
def every_word_has_a_vector(tested: SystemUnderTest) -> None:
    if not isinstance(tested.system, Vectors):
        raise lacks(tested.system, "Vectors")
    vectors, size = tested.system.vectors(), tested.vocabulary.size
    assert_that(
        vectors.ndim == 2 and len(vectors) == size,
        f"vectors have the shape {tuple(vectors.shape)}, expected ({size}, width)",
    )
    wrong = (~vectors.isfinite()).any(1).nonzero().flatten().tolist()
    assert_that(not wrong, f"the vectors of the tokens {wrong} have numbers that are not finite")
    first, second = (tested.model.tokenizer.encode(word)[0] for word in "ab")
    assert_that(not torch.equal(vectors[first], vectors[second]), "a and b have the same vector")
