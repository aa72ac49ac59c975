"""Translating: texts written beside sources, in batches of like length, in the order they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch

from lmlab.core.allocator import keep_memory
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import Step, require
from lmlab.sampling.beam import Beam, Hypothesis, beam_search
from lmlab.sampling.constraints import Constraints
from lmlab.sampling.decode import Generated, greedy, sample
from lmlab.scoring.batching import by_budget
from lmlab.scoring.evaluating import device_of

TOKENS_AT_ONCE = 8192
"""Tokens of sources that are read together, times how many texts are written beside each."""
LONGEST = 10_000
"""Tokens beyond which nobody writes."""
LENGTH_FACTOR, LENGTH_MORE = 2, 10
"""A translation has at most so many times the tokens of its source, and so many more."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """One text written for a source."""

    text: str
    log_prob: float
    """The model's own log p(text | source), in nats, its end included where it came."""
    score: float
    """What ranked it: log_prob over length^penalty, or a mean utility."""
    tokens: int
    finished: bool
    """Whether the model ended it; if not, the greatest length cut it off."""


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A source and what was written for it, best first."""

    source: str
    written: tuple[Written, ...]

    @property
    def text(self) -> str:
        return self.written[0].text if self.written else ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Way(Protocol):
    """How texts are found for sources."""

    @property
    def rows(self) -> int:
        """Texts under way for each source."""
        ...

    def find(
        self, system: Any, sources: Batch, max_length: int, generator: torch.Generator
    ) -> list[list[Hypothesis]]:
        """For each source what was found, best first."""
        ...


@dataclass(frozen=True, kw_only=True)
class Greedily:
    """The likeliest token each time."""

    rows: int = 1

    def find(
        self, system: Any, sources: Batch, max_length: int, generator: torch.Generator
    ) -> list[list[Hypothesis]]:
        found = greedy(system, len(sources), max_length=max_length, condition=sources)
        return [[_hypothesis(each)] for each in found]


@dataclass(frozen=True, kw_only=True)
class BySearch:
    """Beam search."""

    beam: Beam = field(default_factory=lambda: Beam(width=5))
    constraints: Constraints = field(default_factory=Constraints)
    prefix: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.beam.width

    def find(
        self, system: Any, sources: Batch, max_length: int, generator: torch.Generator
    ) -> list[list[Hypothesis]]:
        beam = replace(self.beam, max_length=min(self.beam.max_length, max_length))
        return beam_search(
            system, beam, condition=sources, prefix=self.prefix, constraints=self.constraints
        )


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Texts drawn from p(text | source), as they came."""

    rows: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"at least one text must be drawn, and {self.rows} came.")

    def find(
        self, system: Any, sources: Batch, max_length: int, generator: torch.Generator
    ) -> list[list[Hypothesis]]:
        repeated = torch.arange(len(sources)).repeat_interleave(self.rows)
        found = sample(
            system,
            len(repeated),
            max_length=max_length,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            generator=generator,
            condition=sources.select(repeated.to(sources.tokens.device)),
        )
        each = iter(map(_hypothesis, found))
        return [[next(each) for _ in range(self.rows)] for _ in range(len(sources))]


class Utility(Protocol):
    """How good a text is where another one is right."""

    def __call__(self, text: str, reference: str) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Translator:
    """Translates texts with one system that writes beside a source.

    Texts are read ahead, gathered by length and given back in their order; one that is empty gets
    an empty translation, so that lines stay beside each other. With a `utility` the texts that
    the way finds are ranked by what they are worth on average where each of the others is right
    (minimum Bayes risk, Kumar and Byrne 2004).
    """

    system: Any
    tokenizer: Any
    source_tokenizer: Any
    way: Way
    best: int = 1
    """How many texts are given for each source, best first."""
    max_length: int | None = None
    """Most tokens of a translation; twice those of its source and ten more where none."""
    utility: Utility | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.system, Step, "translating")
        for what, value in (("number of texts", self.best), ("greatest length", self.max_length)):
            if value is not None and value < 1:
                raise UserError(f"the {what} must be 1 or more, and {value} came.")

    def translate(self, chunks: Iterable[Sequence[str]]) -> Iterator[Translation]:
        """Translations of texts that come some at a time, in their order."""
        keep_memory()  # A step frees what the next one asks for again.
        generator = torch.Generator().manual_seed(self.seed)
        number = 0
        for texts in chunks:
            encoded = [self._source(text, number + place) for place, text in enumerate(texts, 1)]
            number += len(texts)
            yield from self._chunk(texts, encoded, generator)

    def _source(self, text: str, number: int) -> list[int]:
        """The ids of a source between its symbols; of an empty one none."""
        inner = self.source_tokenizer.encode(text)
        if not inner:
            return []
        vocabulary = self.source_tokenizer.vocabulary
        symbols = [vocabulary.start], [vocabulary.end]
        first, last = ([id for id in each if id is not None] for each in symbols)
        ids = [*first, *inner, *last]
        try:
            self.system.check_condition_length(len(ids))
        except UserError as error:
            raise UserError(f"text {number}: {error}") from error
        return ids

    def _chunk(
        self, texts: Sequence[str], encoded: list[list[int]], generator: torch.Generator
    ) -> Iterator[Translation]:
        found: dict[int, tuple[Written, ...]] = {}
        real = [place for place, ids in enumerate(encoded) if ids]
        budget = max(1, TOKENS_AT_ONCE // self.way.rows)
        for group in by_budget([len(encoded[place]) for place in real], budget):
            rows = [encoded[real[index]] for index in group]
            sources = Batch.from_sequences(rows, self.system.vocabulary.pad)
            longest = LENGTH_FACTOR * sources.tokens.shape[1] + LENGTH_MORE
            hypotheses = self.way.find(
                self.system,
                sources.to(device_of(self.system)),
                self.max_length or longest,
                generator,
            )
            for index, each in zip(group, hypotheses, strict=True):
                found[real[index]] = self._ranked([self._written(one) for one in each])
        for place, text in enumerate(texts):
            yield Translation(source=text, written=found.get(place, ()))

    def _written(self, hypothesis: Hypothesis) -> Written:
        tokens = len(hypothesis.tokens) - hypothesis.given + hypothesis.finished
        assert hypothesis.log_prob is not None
        return Written(
            text=self.tokenizer.decode(list(hypothesis.tokens)),
            log_prob=hypothesis.log_prob,
            score=hypothesis.score,
            tokens=tokens,
            finished=hypothesis.finished,
        )

    def _ranked(self, written: list[Written]) -> tuple[Written, ...]:
        if self.utility is not None:
            written = by_mean_utility(written, self.utility)
        return tuple(written[: self.best])


METHODS: dict[str, tuple[str, ...]] = {
    "beam": ("beam", "length_penalty", "within", "ahead", "required", "banned", "prefix"),
    "greedy": (),
    "sample": ("temperature", "top_k", "top_p"),
    "mbr": ("temperature", "top_k", "top_p", "samples", "utility"),
}
"""The ways to translate, and which options each has a use for."""
BEAM_WIDTH, SAMPLES = 5, 16
LENGTH_PENALTY = 1.0
"""Of a search for a translation: by log p alone short ones win that leave most of a source out."""

AHEAD = 2
"""Tokens that a longer translation is believed to gain by: see `Beam.ahead`."""
WITHIN = 4.0
"""Nats behind the best open hypothesis at which others are dropped: see `Beam.within`."""


def make_translator(
    system: Any,
    tokenizer: Any,
    source_tokenizer: Any,
    *,
    method: str = "beam",
    best: int = 1,
    max_length: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Translator:
    """A translator by the name of its method; options that are None count as not given."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in given:
        if name not in METHODS[method]:
            raise UserError(
                f"the method {method} has no use for {name.replace('_', '-')}; leave it out."
            )
    utility = None
    if method == "mbr":
        from lmlab.scoring.translations import SentenceUtility

        utility = SentenceUtility(given.pop("utility", "chrf"))
    return Translator(
        system=system,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        way=_way(method, best, given, tokenizer),
        best=best,
        max_length=max_length,
        utility=utility,
        seed=seed,
    )


def _way(method: str, best: int, given: dict[str, Any], tokenizer: Any) -> Way:
    match method:
        case "greedy":
            return Greedily()
        case "sample":
            return Drawn(rows=best, **given)
        case "mbr":
            return Drawn(rows=given.pop("samples", SAMPLES), **given)
    beam = Beam(
        width=given.get("beam", BEAM_WIDTH),
        best=best,
        length_penalty=given.get("length_penalty", LENGTH_PENALTY),
        max_length=LONGEST,
        ahead=given.get("ahead", AHEAD),
        within=given.get("within", WITHIN),
    )
    phrases = {
        name: tuple(_known(text, tokenizer, f"{name} word") for text in given.get(name, ()))
        for name in ("required", "banned")
    }
    prefix = _known(given.get("prefix", ""), tokenizer, "prefix")
    return BySearch(beam=beam, constraints=Constraints(**phrases), prefix=prefix)


def _known(text: str, tokenizer: Any, what: str) -> tuple[int, ...]:
    """The tokens of what a translation must or must not hold, all of which it could write."""
    tokens = tuple(tokenizer.encode(text))
    if tokenizer.vocabulary.unknown in tokens:
        raise UserError(
            f"the {what} {text!r} holds what the model has no token for, so it is never written; "
            "leave it out."
        )
    return tokens


def by_mean_utility(written: Sequence[Written], utility: Utility) -> list[Written]:
    """Texts with what each is worth on average where each of all was right, the best first.

    argmax_y (1/n) Σ_i u(y, y_i): y_i drawn from p(· | source). Equal texts are told once.
    """
    counts: dict[str, int] = {}
    for each in written:
        counts[each.text] = counts.get(each.text, 0) + 1
    firsts = {each.text: each for each in reversed(written)}
    worth = {
        text: sum(count * utility(text, other) for other, count in counts.items()) / len(written)
        for text in counts
    }
    ranked = sorted(counts, key=lambda text: -worth[text])
    return [replace(firsts[text], score=worth[text]) for text in ranked]


def _hypothesis(each: Generated) -> Hypothesis:
    assert each.log_prob is not None
    return Hypothesis(
        tokens=each.tokens,
        log_prob=each.log_prob,
        finished=each.finished,
        given=each.given,
        score=each.log_prob,
    )
