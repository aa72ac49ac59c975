"""`LanguageModel`: a trained model that scores, embeds, links, detects and generates texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.core.score import Score, Summary, summarise
from lmlab.core.untrusted_input import check_texts, checked_texts
from lmlab.scoring.conditional import ConditionalScore, conditional_scores, with_separator
from lmlab.scoring.minimal_pairs import MinimalPairsReport, score_minimal_pair_files
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.source_scoring import SourceScorer, check_takes_source, pair_with_sources
from lmlab.text_generation import TextGenerator

if TYPE_CHECKING:
    from lmlab.core.capture import Capture
    from lmlab.scoring.entity_linking import LinkedText
    from lmlab.scoring.replaced_tokens_detection import DetectedText
    from lmlab.scoring.text_embeddings import TextEmbedding


class LanguageModel(TextGenerator):
    """A trained model, from `lmlab.load(run)` or `lmlab.wrap(module, tokenizer)`."""

    def scorer(self, **options: Any) -> Scorer:
        """A `Scorer` of this model, with options such as `window=`, `stride=`, `cut=`."""
        return Scorer(self.model.system, self.model.tokenizer, self.model.layout, **options)

    def source_scorer(self, **options: Any) -> SourceScorer:
        """A scorer of texts conditioned on sources, without windows."""
        check_takes_source(self.card)
        model = self.model
        return SourceScorer(
            model.system, model.tokenizer, model.effective_source_tokenizer, model.layout, **options
        )

    def score(
        self, texts: Sequence[str], sources: Sequence[str] | None = None, **options: Any
    ) -> list[Score]:
        """Log-probability of each text, by token, in nats; options as of a `Scorer`.

        With `sources`, log p(text | source) for systems conditioned on one (translators). `method`
        selects another score: simple, raw, norm (or pll), within-word (or pll-within-word), k-mask
        (with `positions`) for masked models, with `head="none"` by token embeddings; exact, bound
        or energy.

        >>> model = lmlab.load("runs/ngram")
        >>> [score] = model.score(["the cat sleeps"])
        >>> [token.token for token in score.per_token]
        ['the', 'cat', 'sleeps', '</s>']
        >>> abs(score.total - sum(token.log_prob for token in score.per_token)) < 1e-9
        True
        """
        check_texts(texts, "score")
        if sources is not None:
            check_texts(sources, "score", noun="source")
        return list(self.score_stream(texts, sources, **options))

    def score_stream(
        self,
        texts: Iterable[str],
        sources: Iterable[str] | None = None,
        *,
        per_token: bool = True,
        **options: Any,
    ) -> Iterator[Score]:
        """Scores of a stream of texts, one by one, in constant memory."""
        texts = checked_texts(texts)
        if sources is None:
            return self.scorer(**options).score(texts, per_token=per_token)
        pairs = pair_with_sources(checked_texts(sources), texts)
        return self.source_scorer(**options).score(pairs, per_token=per_token)

    def score_given(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        end: bool = False,
        separator: str | None = "",
        **options: Any,
    ) -> Iterator[ConditionalScore]:
        """log p(continuation | prefix) of each pair, one by one; see `conditional_scores`.

        `separator` joins the two if neither has a space there; None is a space, but empty for
        character models. `end` also scores the end token. `options` as of `score`.

        >>> model = lmlab.load("runs/ngram")
        >>> [score] = model.score_given([("the cat", " sleeps")])
        >>> score.kind, [token.token for token in score.per_token]
        ('exact', ['sleeps'])
        """
        if separator is None:
            separator = "" if self.tokenizer.kind == "char" else " "
        joined = ((p, with_separator(p, c, separator)) for p, c in pairs)
        return conditional_scores(self.scorer(**options), joined, end=end)

    def summary(
        self, texts: Iterable[str], sources: Iterable[str] | None = None, **options: Any
    ) -> Summary:
        """Perplexity, nats per token and bits per character over all texts.

        >>> summary = lmlab.load("runs/ngram").summary(["the cat sleeps", "a dog sees mary"])
        >>> summary.tokens, round(summary.nats_per_token, 6) == round(-summary.total / 9, 6)
        (9, True)
        """
        return summarise(self.score_stream(texts, sources, per_token=False, **options))

    def pairs(
        self, *files: Path | str, progress: Callable[[int], None] = lambda tokens: None
    ) -> MinimalPairsReport:
        """Accuracy on minimal pairs, JSON lines of `sentence_good` and `sentence_bad` (BLiMP).

        `progress` is called with the number of tokens scored so far.

        >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
        >>> _ = open("agreement.jsonl", "w").write(json.dumps(row))
        >>> lmlab.load("runs/ngram").pairs("agreement.jsonl").overall.accuracy
        1.0
        """
        return score_minimal_pair_files(self.scorer(progress=progress), files)

    def link(self, texts: Sequence[str]) -> list[LinkedText]:
        """Entity linking: the mentions of each text and their entities, for systems with `Link`."""
        check_texts(texts, "link")
        return list(self.link_stream(texts))

    def link_stream(self, texts: Iterable[str]) -> Iterator[LinkedText]:
        """The same for a stream of texts, one by one, in constant memory."""
        from lmlab.scoring.entity_linking import link_entities

        return link_entities(self.system, self.tokenizer, self.model.layout, checked_texts(texts))

    def encode(self, texts: Sequence[str], **options: Any) -> list[TextEmbedding]:
        """Embed texts: a vector per text, or per token with `per_token`; see `encode_stream`.

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
        check_texts(texts, "encode")
        return list(self.encode_stream(texts, **options))

    def encode_stream(self, texts: Iterable[str], **options: Any) -> Iterator[TextEmbedding]:
        """Embed a stream of texts, one by one, in bounded memory.

        `options` are those of `lmlab.scoring.text_embeddings.TextEmbedder`: `per_token`; `layer` (0
        the embeddings, -1 the last layer; default the system's own vectors); `pooling` (own, mean,
        max, last, first). For all systems with hidden states.
        """
        from lmlab.scoring.text_embeddings import TextEmbedder

        model = self.model
        embedder = TextEmbedder(
            model.system,
            model.effective_source_tokenizer,
            model.layout,
            name=model.card.name,
            **options,
        )
        return embedder.encode(checked_texts(texts))

    def detect(self, texts: Sequence[str]) -> list[DetectedText]:
        """Replaced token detection: each token's probability of being replaced (ELECTRA).

        >>> _ = lmlab.train(
        ...     "electra", data="grammar", out="runs/electra", size="tiny", steps=2, quiet=True
        ... )
        >>> [detected] = lmlab.load("runs/electra").detect(["the dog sleeps"])
        >>> [(token.token, 0 < token.probability < 1) for token in detected.tokens]
        [('the', True), ('dog', True), ('sleeps', True)]
        """
        check_texts(texts, "detect")
        return list(self.detect_stream(texts))

    def detect_stream(self, texts: Iterable[str], **options: Any) -> Iterator[DetectedText]:
        """The same for a stream of texts, one by one, in bounded memory."""
        from lmlab.scoring.replaced_tokens_detection import detect_texts

        model = self.model
        return detect_texts(
            model.system, model.tokenizer, model.layout, checked_texts(texts), **options
        )

    def capture_internals(self, text: str, source: str | None = None) -> dict[str, Capture]:
        """Activations on a text by name: each layer's attention, sublayer outputs, hidden states.

        A `Capture` has values (a tensor with a batch of one), axes (the meaning of its dimensions)
        and a sentence on how to read it. Masked models get the unmasked text; `source` is a
        translator's.

        >>> _ = lmlab.train(
        ...     "gpt", data="grammar", out="runs/inside", size="tiny", steps=2, quiet=True
        ... )
        >>> captures = lmlab.load("runs/inside").capture_internals("the dog sleeps")
        >>> captures["layer 1 attention"].axes
        ('batch', 'head', 'time', 'source')
        """
        # Lazy import: it loads matplotlib.
        from lmlab.inspection.capture_collection import collect_text_captures

        return collect_text_captures(self.model, text, source)
