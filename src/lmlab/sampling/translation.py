"""Translation in batches by beam search, greedy, sampling or minimum Bayes risk (MBR) decoding."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.evaluation_mode import device_of
from lmlab.core.options import as_keywords, takes
from lmlab.core.protocols import require
from lmlab.core.system_protocols import StepSystem, SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import group_by_length
from lmlab.sampling.beam_search import BeamConfig, Hypothesis
from lmlab.sampling.decoding import EncodedSources
from lmlab.sampling.decoding_strategies import BeamSearch, DecodingStrategy, Greedy, Sampling
from lmlab.sampling.generation_options import (
    LENGTH_EXTRA,
    LENGTH_FACTOR,
    MBR_SAMPLES,
    TRANSLATION_BEAM_WIDTH,
    TRANSLATION_LENGTH_PENALTY,
    TRANSLATION_PRUNING,
    TranslateOptions,
)
from lmlab.sampling.lexical_constraints import (
    LexicalConstraints,
    WordBoundaries,
    encode_known_words,
    token_spellings,
    word_boundaries,
)

SOURCE_TOKENS_PER_BATCH = 8192
"""Source tokens per batch, times the hypotheses per source."""
MAX_TRANSLATION_TOKENS = 10_000
"""Upper limit of the tokens of a translation."""


@dataclass(frozen=True, kw_only=True)
class TranslationCandidate:
    """One translation of a source."""

    text: str
    log_prob: float
    """The model's log p(text | source) in nats, a given prefix and a generated end included."""
    score: float
    """Ranking score: log_prob / length^penalty, or expected utility."""
    tokens: int
    finished: bool
    """Whether the end was generated; if not, the maximum length truncated it."""
    missing: tuple[str, ...] = ()
    """Required words that are missing."""


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A source and its translations, best first."""

    source: str
    candidates: tuple[TranslationCandidate, ...]
    truncated_tokens: int = 0
    """Tokens truncated from the end of the source, beyond the model's maximum length."""

    @property
    def text(self) -> str:
        return self.candidates[0].text if self.candidates else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence per problem: a truncated source, no translation, missing words."""
        notes = []
        if self.truncated_tokens:
            notes.append(
                f"longer than the model takes, so its last {self.truncated_tokens:,} tokens "
                "were truncated"
            )
        if self.source.strip() and not self.candidates:
            notes.append("no translation was found")
        for word in dict.fromkeys(
            word for candidate in self.candidates for word in candidate.missing
        ):
            notes.append(f"{word!r} is required and was not generated; try a wider beam")
        return tuple(notes)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Utility(Protocol):
    """Utility of a text given a reference."""

    def __call__(self, text: str, reference: str) -> float: ...


class _Source(NamedTuple):
    """A source text and its ids with special tokens; no ids if it is empty."""

    number: int
    text: str
    ids: list[int]
    cut: int


@dataclass(frozen=True, kw_only=True)
class Translator:
    """Translates texts with a conditional system (one that decodes given a source).

    Texts are batched by length and returned in input order, each as it would be alone. An empty
    source has an empty translation, so lines stay aligned; one beyond the maximum length is
    truncated, which `truncated_tokens` reports. With a `utility`, candidates are ranked by their
    expected utility over all candidates (minimum Bayes risk, Kumar and Byrne 2004).
    """

    system: StepSystem
    tokenizer: TokenizerProtocol
    source_tokenizer: TokenizerProtocol
    strategy: DecodingStrategy
    best: int = 1
    """Number of translations per source, best first."""
    max_length: int | None = None
    """Maximum tokens of a translation after the prefix [default: twice the source's, plus 10]."""
    utility: Utility | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("number of texts", self.best), ("maximum length", self.max_length)):
            if value is not None and value < 1:
                raise UserError(f"the {name} must be 1 or more, got {value}.")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"a seed must be from 0 to {2**31 - 1}, got {self.seed}.")

    def translate(self, chunks: Iterable[Sequence[str]]) -> Iterator[Translation]:
        """Translations of texts that arrive in chunks, in input order."""
        retain_freed_memory()  # A step frees memory that the next one allocates again.
        number = 0
        for texts in chunks:
            sources = [self._source(text, number + offset) for offset, text in enumerate(texts, 1)]
            number += len(texts)
            yield from self._chunk(sources)

    def _source(self, text: str, number: int) -> _Source:
        """A source as the system takes it, truncated if too long."""
        tokens = self.source_tokenizer.encode(text)
        if not tokens:
            return _Source(number, text, [], 0)
        vocabulary = self.source_tokenizer.vocabulary
        # As in training: without a start token, the end token takes its position.
        first, last = vocabulary.bos, [] if vocabulary.end is None else [vocabulary.end]
        max_tokens = self._max_source_tokens(1 + len(tokens) + len(last)) - 1 - len(last)
        if max_tokens < 1:
            raise UserError("this system takes no source of a single token; build it longer.")
        return _Source(
            number, text, [first, *tokens[:max_tokens], *last], max(0, len(tokens) - max_tokens)
        )

    def _max_source_tokens(self, tokens: int) -> int:
        """The longest source length up to `tokens` that the system takes."""

        def refuses(count: int) -> bool:
            try:
                self.system.check_condition_length(count)
            except UserError:
                return True
            return False

        if not refuses(tokens):
            return tokens
        return bisect.bisect_left(range(tokens), True, key=refuses) - 1

    def _chunk(self, sources: Sequence[_Source]) -> Iterator[Translation]:
        candidates: dict[int, tuple[TranslationCandidate, ...]] = {}
        real = [source for source in sources if source.ids]
        budget = max(1, SOURCE_TOKENS_PER_BATCH // self.strategy.rows)
        for group in group_by_length([len(source.ids) for source in real], budget):
            batched = [real[index] for index in group]
            batch = Batch.collate(
                [source.ids for source in batched],
                self.system.vocabulary.pad,
                rows=[source.number for source in batched],
            )
            lengths = [
                self.max_length or LENGTH_FACTOR * len(source.ids) + LENGTH_EXTRA
                for source in batched
            ]
            encoded = EncodedSources.encode(self.system, batch.to(device_of(self.system)))
            hypotheses = self.strategy.decode(self.system, encoded, lengths, self.seed)
            for source, source_hypotheses in zip(batched, hypotheses, strict=True):
                candidates[source.number] = self._rank(
                    [self._candidate(hypothesis) for hypothesis in source_hypotheses]
                )
        for source in sources:
            source_candidates = candidates.get(source.number, ())
            yield Translation(
                source=source.text, candidates=source_candidates, truncated_tokens=source.cut
            )

    def _candidate(self, hypothesis: Hypothesis) -> TranslationCandidate:
        tokens = len(hypothesis.tokens) - hypothesis.given + hypothesis.finished
        assert hypothesis.log_prob is not None
        return TranslationCandidate(
            text=self.tokenizer.decode(list(hypothesis.tokens)),
            log_prob=hypothesis.log_prob,
            score=hypothesis.score,
            tokens=tokens,
            finished=hypothesis.finished,
            missing=tuple(map(self.tokenizer.decode, hypothesis.missing)),
        )

    def _rank(self, candidates: list[TranslationCandidate]) -> tuple[TranslationCandidate, ...]:
        if self.utility is not None:
            candidates = rank_by_expected_utility(candidates, self.utility)
        return tuple(candidates[: self.best])


TRANSLATION_METHODS: dict[str, tuple[str, ...]] = {
    "beam": ("beam", "length_penalty", "within", "ahead", "required", "banned", "prefix"),
    "greedy": (),
    "sample": ("temperature", "top_k", "top_p"),
    "mbr": ("temperature", "top_k", "top_p", "samples", "utility"),
}
"""Decoding methods, and the options that apply to each."""
ALL_METHODS = ("method", "best", "max_length", "seed")
"""Options that apply to every method."""

DEFAULT_AHEAD = 2
"""Default look-ahead in tokens of the stopping criterion: see `BeamConfig.ahead`."""


@takes(TranslateOptions)
def make_translator(
    system: SystemInfo,
    tokenizer: TokenizerProtocol,
    source_tokenizer: TokenizerProtocol,
    options: TranslateOptions,
) -> Translator:
    """The translator of a method; options that are None or empty count as not given."""
    method, best = options.method, options.best
    if method not in TRANSLATION_METHODS:
        raise unknown_name("method", method, TRANSLATION_METHODS)
    if method == "greedy" and best > 1:
        raise UserError(
            f"the method greedy gives one text per source, got {best}; use beam, sample or "
            "mbr for several."
        )
    given_options = {
        name: value
        for name, value in as_keywords(options).items()
        if name not in ALL_METHODS and value not in (None, ())
    }
    for name in given_options:
        if name not in TRANSLATION_METHODS[method]:
            raise UserError(
                f"{name.replace('_', '-')} does not apply to the method {method}; remove it."
            )
    utility = None
    if method == "mbr":
        from lmlab.scoring.translation_metrics import SentenceUtility

        utility = SentenceUtility(given_options.pop("utility", "chrf"))
    return Translator(
        system=require(system, StepSystem, "translating"),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        strategy=_make_strategy(method, best, given_options, tokenizer),
        best=best,
        max_length=options.max_length,
        utility=utility,
        seed=options.seed,
    )


def _make_strategy(
    method: str, best: int, options: dict[str, Any], tokenizer: TokenizerProtocol
) -> DecodingStrategy:
    match method:
        case "greedy":
            return Greedy()
        case "sample":
            return Sampling(rows=best, **options)
        case "mbr":
            return Sampling(rows=options.pop("samples", MBR_SAMPLES), **options)
    beam = BeamConfig(
        width=options.get("beam", TRANSLATION_BEAM_WIDTH),
        best=best,
        length_penalty=options.get("length_penalty", TRANSLATION_LENGTH_PENALTY),
        max_length=MAX_TRANSLATION_TOKENS,
        ahead=options.get("ahead", DEFAULT_AHEAD),
        within=options.get("within", TRANSLATION_PRUNING),
    )
    return BeamSearch(beam=beam, constraints=_constraints(options, tokenizer))


def _constraints(options: dict[str, Any], tokenizer: TokenizerProtocol) -> LexicalConstraints:
    """The lexical constraints of the options, as tokens."""
    banned, required = (
        tuple(token_spellings(text, tokenizer, f"{name} word") for text in options.get(name, ()))
        for name in ("banned", "required")
    )
    return LexicalConstraints(
        banned=tuple(dict.fromkeys(phrase for spellings in banned for phrase in spellings)),
        required=required,
        prefix=encode_known_words(options.get("prefix", ""), tokenizer, "prefix"),
        boundaries=word_boundaries(tokenizer) if banned or required else WordBoundaries(),
    )


def rank_by_expected_utility(
    candidates: Sequence[TranslationCandidate], utility: Utility
) -> list[TranslationCandidate]:
    """Minimum Bayes risk ranking: texts by their expected utility, best first.

    argmax_y (1/n) Σ_i u(y, y_i), y_i ~ p(· | source). Duplicates are returned once.
    """
    counts: dict[str, int] = {}
    for candidate in candidates:
        counts[candidate.text] = counts.get(candidate.text, 0) + 1
    firsts = {candidate.text: candidate for candidate in reversed(candidates)}
    expected_utility = {
        text: sum(count * utility(text, other) for other, count in counts.items()) / len(candidates)
        for text in counts
    }
    ranked = sorted(counts, key=lambda text: -expected_utility[text])
    return [replace(firsts[text], score=expected_utility[text]) for text in ranked]
