"""Verbs that read texts: score, encode, detect, link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from lmlab.core.options import Option, as_keywords, collects, takes
from lmlab.core.shared_options import no_progress
from lmlab.scoring.scoring_options import EmbeddingOptions, ScoringOptions

if TYPE_CHECKING:
    from lmlab.core.score import Score, Summary
    from lmlab.scoring.conditional import ConditionalScore
    from lmlab.scoring.entity_linking import LinkedText
    from lmlab.scoring.replaced_tokens_detection import DetectedText
    from lmlab.scoring.scorer import Scorer
    from lmlab.scoring.source_scoring import SourceScorer
    from lmlab.scoring.text_embeddings import TextEmbedding
    from lmlab.verbs.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ScoringOptions):
    """How texts are scored, and what they are conditioned on."""

    sources: Annotated[
        Iterable[str] | None,
        Option(
            "Source of each text, for translation models; one per text.",
            flag="--source",
            metavar="S",
        ),
    ] = field(default=None, kw_only=False)
    per_token: bool = True
    """Whether scores have their tokens; without them memory is constant in a text's length."""


@dataclass(frozen=True, kw_only=True)
class ContinuationOptions(ScoringOptions):
    """How continuations are scored."""

    end: Annotated[bool, Option("Also score the end-of-sequence token.")] = False
    separator: Annotated[
        str | None,
        Option(
            "Text between prefix and continuation where neither has a space there.",
            show_default="a space, nothing for character and byte models",
        ),
    ] = None


@takes(ScoringOptions)
def scorer(model: LanguageModel, options: ScoringOptions) -> Scorer:
    """A `Scorer` of this model."""
    from lmlab.scoring.scorer import Scorer

    trained = model.model
    return Scorer(trained.system, trained.tokenizer, trained.layout, **as_keywords(options))


@takes(ScoringOptions)
def source_scorer(model: LanguageModel, options: ScoringOptions) -> SourceScorer:
    """A scorer of texts conditioned on sources, without windows."""
    from lmlab.scoring.source_scoring import SourceScorer, check_takes_source

    check_takes_source(model.card)
    trained = model.model
    return SourceScorer(
        trained.system,
        trained.tokenizer,
        trained.effective_source_tokenizer,
        trained.layout,
        **as_keywords(options),
    )


@takes(ScoreOptions)
def score_stream(
    model: LanguageModel, texts: Iterable[str], options: ScoreOptions
) -> Iterator[Score]:
    """Scores of a stream of texts, one by one, in constant memory."""
    from lmlab.core.untrusted_input import check_texts, checked_texts
    from lmlab.scoring.source_scoring import pair_with_sources

    chosen, texts = as_keywords(options, ScoringOptions), checked_texts(texts)
    if options.sources is None:
        return scorer(model, **chosen).score(texts, per_token=options.per_token)
    check_texts(options.sources, "score", noun="source")
    pairs = pair_with_sources(checked_texts(options.sources), texts)
    return source_scorer(model, **chosen).score(pairs, per_token=options.per_token)


@collects(score_stream)
def score() -> None:
    """Score texts: log-probability in nats, its kind and conventions.

    With `sources`, log p(text | source) for systems conditioned on one (translators). `method`
    selects another score: simple, raw, norm (or pll), within-word (or pll-within-word), k-mask
    (with `positions`) for masked models, with `head="none"` by token embeddings; exact, bound or
    energy.

    >>> model = lmlab.load("runs/ngram")
    >>> [score] = model.score(["the cat sleeps"])
    >>> [token.token for token in score.per_token]
    ['the', 'cat', 'sleeps', '</s>']
    >>> abs(score.total - sum(token.log_prob for token in score.per_token)) < 1e-9
    True
    """


@takes(ContinuationOptions)
def score_given(
    model: LanguageModel, pairs: Iterable[tuple[str, str]], options: ContinuationOptions
) -> Iterator[ConditionalScore]:
    """log p(continuation | prefix) of each pair, one by one; see `conditional_scores`.

    `separator` joins the two if neither has a space there; the default is a space, but empty for
    character and byte models. `end` also scores the end token.

    >>> model = lmlab.load("runs/ngram")
    >>> [score] = model.score_given([("the cat", " sleeps")])
    >>> score.kind, [token.token for token in score.per_token]
    ('exact', ['sleeps'])
    """
    from lmlab.data.text_codecs import CHARACTER_KINDS
    from lmlab.scoring.conditional import conditional_scores, with_separator

    separator = options.separator
    if separator is None:
        separator = "" if model.tokenizer.kind in CHARACTER_KINDS else " "
    joined = ((p, with_separator(p, c, separator)) for p, c in pairs)
    chosen = as_keywords(options, ScoringOptions)
    return conditional_scores(scorer(model, **chosen), joined, end=options.end)


@takes(ScoreOptions)
def summary(model: LanguageModel, texts: Iterable[str], options: ScoreOptions) -> Summary:
    """Perplexity, nats per token, bits per character and per byte over all texts.

    >>> summary = lmlab.load("runs/ngram").summary(["the cat sleeps", "a dog sees mary"])
    >>> summary.tokens, round(summary.nats_per_token, 6) == round(-summary.total / 9, 6)
    (9, True)
    """
    from lmlab.core.score import summarise

    chosen = as_keywords(replace(options, per_token=False))
    return summarise(score_stream(model, texts, **chosen))


@takes(EmbeddingOptions)
def encode_stream(
    model: LanguageModel, texts: Iterable[str], options: EmbeddingOptions
) -> Iterator[TextEmbedding]:
    """Embed a stream of texts, one by one, in bounded memory."""
    from lmlab.core.untrusted_input import checked_texts
    from lmlab.scoring.text_embeddings import TextEmbedder

    trained = model.model
    embedder = TextEmbedder(
        trained.system,
        trained.effective_source_tokenizer,
        trained.layout,
        trained.card.name,
        **as_keywords(options),
    )
    return embedder.encode(checked_texts(texts))


@collects(encode_stream)
def encode() -> None:
    """Encode texts as vectors: hidden states of any layer, per text or per token.

    For all systems with hidden states.

    >>> _ = lmlab.train(
    ...     "gpt", data="grammar", out="runs/vectors", size="tiny", steps=2, quiet=True
    ... )
    >>> model = lmlab.load("runs/vectors")
    >>> [encoded] = model.encode(["the dog sleeps"], layer=-1, pooling="mean")
    >>> encoded.vector.shape
    (16,)
    >>> [encoded] = model.encode(["the dog sleeps"], per_token=True)
    >>> encoded.tokens, encoded.token_vectors.shape
    (('<s>', 'the', 'dog', 'sleeps', '</s>'), (5, 16))
    """


def detect_stream(
    model: LanguageModel, texts: Iterable[str], *, progress: Callable[[int], None] = no_progress
) -> Iterator[DetectedText]:
    """Replaced token detection on a stream of texts, one by one, in bounded memory."""
    from lmlab.core.untrusted_input import checked_texts
    from lmlab.scoring.replaced_tokens_detection import detect_texts

    trained, checked = model.model, checked_texts(texts)
    return detect_texts(
        trained.system, trained.tokenizer, trained.layout, checked, progress=progress
    )


@collects(detect_stream)
def detect() -> None:
    """Detect replaced tokens (ELECTRA): each token's probability of not being the original.

    >>> _ = lmlab.train(
    ...     "electra", data="grammar", out="runs/electra", size="tiny", steps=2, quiet=True
    ... )
    >>> [detected] = lmlab.load("runs/electra").detect(["the dog sleeps"])
    >>> [(token.token, 0 < token.probability < 1) for token in detected.tokens]
    [('the', True), ('dog', True), ('sleeps', True)]
    """


def link_stream(model: LanguageModel, texts: Iterable[str]) -> Iterator[LinkedText]:
    """Entity linking of a stream of texts, one by one, in constant memory."""
    from lmlab.core.untrusted_input import checked_texts
    from lmlab.scoring.entity_linking import link_entities

    trained = model.model
    return link_entities(trained.system, trained.tokenizer, trained.layout, checked_texts(texts))


@collects(link_stream)
def link() -> None:
    """Link entities: find the mentions of a text and their entities, by a run with knowledge."""
