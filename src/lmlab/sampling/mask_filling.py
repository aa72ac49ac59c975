"""Mask filling: predictions at the masks of a text, through the fill protocols of a system.

`Fill` gives the distribution of a token at each mask, the other masks unknown, and by the chain
rule all masks jointly; `JointFill` gives the joint distribution directly (MASS has only this).
`Infill` generates blanks of unknown length, by sampling or by a search aligned on positions
(`infill_search.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.limits import check_limit
from lmlab.core.protocols import Fill, Infill, InfillDecoder, JointFill, Step, require, systems_with
from lmlab.core.score import ScoreKind
from lmlab.data.batches import pad_rows
from lmlab.inference.decoding import GeneratedSequence, next_distribution
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.sampling.decoding import sample_sequences
from lmlab.sampling.infill_search import InfillSearch
from lmlab.sampling.joint_fill import (
    JointFillResult,
    chain_rule_kind,
    fill_by_chain_rule,
    fill_by_joint_distribution,
    sample_by_chain_rule,
    samples_without_special_tokens,
    top_without_special_tokens,
    without_special_tokens,
)
from lmlab.sampling.prompts import MaskedText, mask_token_id, parse_masked_text

BEAM_FACTOR = 8
"""Factor by which infilling widens the beam: the text after a blank decides what fits in it."""
UNFINISHED_NOTE = (
    "No answer reached its end; allow more by --max-length, or search by a wider --beam."
)


@dataclass(frozen=True, kw_only=True)
class FillOption:
    """One prediction for a mask."""

    text: str
    pieces: tuple[str, ...]
    """Its tokens as the vocabulary spells them, which distinguishes word-initial from continuation
    tokens (Ġm and m, m and ##m)."""
    log_prob: float
    """The system's log-probability in nats. Special tokens are excluded without renormalising, so
    options need not sum to one."""
    probability: float
    """exp(log_prob)."""
    share: float | None = None
    """With given candidates: its probability normalised over all candidates."""


@dataclass(frozen=True, kw_only=True)
class MaskedPosition:
    """The predictions for one mask, the other masks unknown."""

    start: int
    end: int
    """Characters [start, end) of the mask."""
    options: tuple[FillOption, ...]
    """Best first."""


@dataclass(frozen=True, kw_only=True)
class FillCandidate:
    """A joint prediction for all masks of a text."""

    answers: tuple[str, ...]
    pieces: tuple[tuple[str, ...], ...]
    """The tokens of each answer, as the vocabulary spells them."""
    text: str
    """The text with the answers filled in; continuation tokens are joined without a space."""
    log_prob: float
    """The system's log-probability in nats of all that was generated."""
    tokens: int
    """Number of tokens of all answers."""
    finished: bool = True
    """Whether the end was generated; if not, the maximum length truncated the last answer."""


@dataclass(frozen=True, kw_only=True)
class FilledText:
    """A masked text with its predictions, per mask or joint."""

    text: str
    masks: tuple[MaskedPosition, ...] = ()
    """Independent predictions per mask."""
    candidates: tuple[FillCandidate, ...] = ()
    """Joint predictions, best first or in sampling order."""
    kind: ScoreKind | None = None
    """Kind of the joint log-probabilities: exact, or pseudo if the chained conditionals need not
    belong to one distribution. None for blanks and single masks."""
    order: str | None = None
    """Factorisation order of the masks; pseudo log-probabilities depend on it."""
    note: str | None = None
    """Notes for the user: unknown words, truncated answers."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class MaskFiller:
    """Fills masks with one system; texts are streamed one by one, in constant memory."""

    system: Any
    tokenizer: Any
    layout: Any
    top: int = 5
    """Number of options per mask, or of fillings per text."""
    beam: int = 8
    """Beam width for joint filling; at least `top`."""
    max_length: int = 20
    """Maximum tokens in all blanks of a text, if their lengths are unknown."""

    def __post_init__(self) -> None:
        for what, value in (
            ("number of fillings", self.top),
            ("beam width", self.beam),
            ("maximum length", self.max_length),
        ):
            if value < 1:
                raise UserError(f"the {what} must be 1 or more, got {value}.")
        check_limit("beam", self.beam, called="the beam width")
        check_limit("texts", self.top, called="the number of fillings")
        check_limit("length", self.max_length, called="the maximum length")

    def tokens(self, texts: Iterable[str], *, among: Sequence[str] = ()) -> Iterator[FilledText]:
        """The most probable tokens of each mask independently; one pass per text.

        `among` restricts them to these candidates.
        """
        require(self.system, Fill, "filling in tokens")
        candidates = {text: self._one_token(text) for text in among}
        for text in texts:
            read = parse_masked_text(text, self.tokenizer)
            log_probs = self._at_gaps([self._row(read)], self._places(read))[0]
            options = [self._options(each, candidates) for each in log_probs]
            yield _gap_by_gap(read, options)

    def fill_jointly(
        self, texts: Iterable[str], *, generator: torch.Generator | None = None
    ) -> Iterator[FilledText]:
        """Joint filling of all masks: the most probable tokens, or samples (with a generator).

        Uses the system's joint distribution if it has `JointFill`; else the chain rule log p(a) =
        Σ_i log p(a_i | text, a_<i) from left to right, one pass per mask. This is exact if the
        conditionals belong to one distribution (an HMM); a masked model's need not, so the kind is
        pseudo.
        """
        if not isinstance(self.system, JointFill):
            require(self.system, Fill, "filling in tokens")
        for text in texts:
            read = parse_masked_text(text, self.tokenizer)
            found = self._together(self._row(read), self._places(read), generator)
            fillings = [
                self._filling(read, [(answer,) for answer in answers], log_prob)
                for answers, log_prob in found.answers
            ]
            notes = " ".join(note for note in (read.note, found.note) if note)
            yield FilledText(
                text=text,
                candidates=tuple(fillings),
                kind=found.kind,
                order=found.order,
                note=notes or None,
            )

    def _together(
        self, row: list[int], places: list[int], generator: torch.Generator | None
    ) -> JointFillResult:
        symbols = self.tokenizer.symbols
        if isinstance(self.system, JointFill):
            joint = partial(
                fill_by_joint_distribution, self.system, row, places, generator=generator
            )
            ask = (
                top_without_special_tokens if generator is None else samples_without_special_tokens
            )
            return ask(joint, symbols, self.top)
        kind = chain_rule_kind(self.system, len(places))
        if generator is not None:
            draw = partial(sample_by_chain_rule, self._at_gaps, row, places, kind=kind)
            return samples_without_special_tokens(
                partial(draw, generator=generator), symbols, self.top
            )
        return fill_by_chain_rule(
            self._at_gaps, row, places, kind=kind, symbols=symbols, beam=self.beam, count=self.top
        )

    def infill(
        self, texts: Iterable[str], *, generator: torch.Generator | None = None
    ) -> Iterator[FilledText]:
        """Fill blanks of any length: the best of a search, or samples (with a generator)."""
        require(self.system, Infill, "filling in blanks of unknown length")
        for text in texts:
            read = parse_masked_text(text, self.tokenizer)
            with evaluation_mode(self.system):
                fillings = self._written(read, generator)
            notes = [read.note] if read.note else []
            if not any(each.finished for each in fillings):
                notes.append(UNFINISHED_NOTE)
            yield FilledText(text=text, candidates=tuple(fillings), note=" ".join(notes) or None)

    def rank_infills(self, texts: Iterable[str], among: Sequence[str]) -> Iterator[FilledText]:
        """Cloze ranking: candidates of any length for the one blank of each text.

        Classification by verbalisers (Du et al. 2022; Schick and Schütze 2021).
        """
        require(self.system, Infill, "filling in blanks of unknown length")
        candidates = [tuple(self.tokenizer.encode(text)) for text in among]
        for text in texts:
            read = parse_masked_text(text, self.tokenizer)
            if len(read.spans) != 1:
                raise UserError(
                    "candidates apply only to texts with one blank, got one with "
                    f"{len(read.spans)}."
                )
            with evaluation_mode(self.system):
                writer = self._writer(read, len(candidates))
                rows = [writer.linearise_fillings(i, [ids]) for i, ids in enumerate(candidates)]
                log_probs = generated_log_probs(writer, rows)
            options = _ranked(list(among), list(map(self._pieces, candidates)), log_probs)
            yield _gap_by_gap(read, [options[: self.top]])

    def fill(
        self,
        texts: Iterable[str],
        *,
        joint: bool = False,
        blanks: bool = False,
        among: Sequence[str] = (),
        generator: torch.Generator | None = None,
    ) -> Iterator[FilledText]:
        """Fill by the requested method; by default tokens if the system predicts them, else blanks.

        `generator` samples blanks, or tokens jointly, instead of searching for the best.
        """
        check_can_fill(self.system)
        if among and not isinstance(self.system, (Fill, Infill)):
            raise UserError(
                "--among does not apply to a system that generates all masks together; remove it."
            )
        # Systems with neither single-mask distributions nor blanks of any length (MASS).
        joint = joint or not isinstance(self.system, (Fill, Infill))
        drawn = generator is not None and not joint
        blanks = blanks or drawn or not isinstance(self.system, (Fill, JointFill))
        if joint and among:
            raise UserError("candidates do not apply to joint filling; remove one of them.")
        if among and generator is not None:
            raise UserError("candidates do not apply to sampling; remove one of them.")
        if blanks:
            if among:
                return self.rank_infills(texts, among)
            return self.infill(texts, generator=generator)
        if joint:
            return self.fill_jointly(texts, generator=generator)
        return self.tokens(texts, among=among)

    # Tokens --------------------------------------------------------------------------------------

    def _at_gaps(self, rows: Sequence[Sequence[int]], places: Sequence[int]) -> Tensor:
        """(rows, positions, V) log-probabilities at masked positions of rows of equal length."""
        batch = pad_rows(rows, self.system)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[:, list(places)] = True
        with evaluation_mode(self.system):
            # Fixed seed: systems with Monte Carlo estimates sample from this.
            found = self.system.fill(batch, masked, generator=torch.Generator().manual_seed(0))
        log_probs: Tensor = found.log_probs.double().cpu()
        if log_probs.isnan().any():
            raise UserError(
                "this model gives probabilities that are NaN: its training diverged; train "
                "it again with a lower learning rate."
            )
        return log_probs.view(len(rows), len(places), -1)

    def _options(self, log_probs: Tensor, candidates: dict[str, int]) -> tuple[FillOption, ...]:
        if candidates:
            values = log_probs[list(candidates.values())].tolist()
            spelled = [(self.tokenizer.token(id),) for id in candidates.values()]
            return _ranked(list(candidates), spelled, values)[: self.top]
        log_probs = without_special_tokens(log_probs, self.tokenizer.symbols)
        best = log_probs.topk(min(self.top, len(log_probs)))
        return tuple(
            FillOption(
                text=self._spelled([id]),
                pieces=(self.tokenizer.token(id),),
                log_prob=value,
                probability=math.exp(value),
            )
            for id, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            if value > -math.inf
        )

    def _one_token(self, text: str) -> int:
        ids = self.tokenizer.encode(text)
        if len(ids) != 1 or ids[0] == self.tokenizer.vocabulary.unknown:
            pieces = f"{len(ids)} tokens" if len(ids) != 1 else "unknown"
            raise UserError(
                f"a candidate for a mask must be one token of the vocabulary, and {text!r} is "
                f"{pieces}; give others, or use a system that fills in blanks of any length."
            )
        return int(ids[0])

    # Blanks --------------------------------------------------------------------------------------

    def _written(self, read: MaskedText, generator: torch.Generator | None) -> list[FillCandidate]:
        """The best distinct fillings, or samples in their order."""
        rows = 1 if generator is None else self.top
        writer = self._writer(read, rows)
        # Tokens generated besides the answers, and the end token.
        beside = len(writer.linearise_fillings(0, [()] * len(read.spans))) + 1
        most = beside + self.max_length
        if self.system.window is not None:
            most = min(most, self.system.window)
        if generator is not None:
            drawn = sample_sequences(writer, rows, max_length=most, generator=generator)
            return [self._answered(read, writer, each) for each in drawn]
        search = InfillSearch(
            decoder=writer,
            blanks=len(read.spans),
            width=BEAM_FACTOR * max(self.beam, self.top),
            best=self.top,
            max_tokens=most - beside,
        )
        return _unlike([self._answered(read, writer, each) for each in search()])

    def _answered(
        self, read: MaskedText, writer: InfillDecoder, written: GeneratedSequence
    ) -> FillCandidate:
        # All rows hold the same text, so the first one's blanks apply to all.
        answers = writer.answers(0, written.tokens)
        assert written.log_prob is not None, "what is written token by token has a log_prob"
        return self._filling(read, answers, written.log_prob, finished=written.finished)

    def _writer(self, read: MaskedText, rows: int) -> InfillDecoder:
        """The decoder of a text's blanks, for `rows` parallel rows."""
        writer: InfillDecoder = self.system.infill_decoder(
            pad_rows([self._row(read)] * rows, self.system)
        )
        return writer

    # Texts ---------------------------------------------------------------------------------------

    def _row(self, read: MaskedText) -> list[int]:
        """The input row of a text, with the mask token at its masks."""
        vocabulary = self.system.vocabulary
        gap = mask_token_id(self.tokenizer)
        # A system with `Fill` alone ignores the tokens at masks, so any token will do.
        in_gap = vocabulary.pad if gap is None else gap
        contiguous = self.layout.kind == "contiguous"
        first = vocabulary.end if contiguous or vocabulary.start is None else vocabulary.start
        tail = [vocabulary.end] if self.layout.end and vocabulary.end is not None else []
        row = [first, *read.with_mask(in_gap), *tail]
        self.system.check_length(len(row))
        return row

    def _places(self, read: MaskedText) -> list[int]:
        """The positions of the masks in the row."""
        return [place for place, id in enumerate(read.ids, 1) if id is None]

    def _filling(
        self,
        read: MaskedText,
        answers: Sequence[Sequence[int]],
        log_prob: float,
        *,
        finished: bool = True,
    ) -> FillCandidate:
        return FillCandidate(
            answers=tuple(map(self._spelled, answers)),
            pieces=tuple(map(self._pieces, answers)),
            text=self._filled(read, answers),
            log_prob=log_prob,
            tokens=sum(map(len, answers)),
            finished=finished,
        )

    def _filled(self, read: MaskedText, answers: Sequence[Sequence[int]]) -> str:
        """The text with the answers; continuation tokens are joined to the word before them."""
        written: list[str] = []
        joined: list[bool] = []
        before: list[int] = []
        following = iter(answers)
        for id in read.ids:
            if id is not None:
                before = [id]
                continue
            answer = next(following)
            whole, first = (self.tokenizer.decode(ids) for ids in ([*before, *answer], before))
            # In character-level tokenisers a space is a token like any other.
            close = self.tokenizer.kind != "char" and bool(before) and bool(answer)
            close = close and whole.startswith(first) and not whole[len(first) :][:1].isspace()
            written.append(whole[len(first) :] if close else self._spelled(answer))
            joined.append(close)
            before = [*answer[-1:]] or before
        return read.filled(written, joined)

    def _pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tokenizer.token(id) for id in ids)

    def _spelled(self, ids: Sequence[int]) -> str:
        """Decoded tokens; a lone special token by its name."""
        text: str = self.tokenizer.decode(ids)
        return text or " ".join(self.tokenizer.token(id) for id in ids)


def check_can_fill(system: Any) -> None:
    """A UserError if a system fills no masks: what it does instead, and which systems do."""
    if isinstance(system, (Fill, JointFill, Infill)):
        return
    instead = ""
    if isinstance(system, EncoderDecoderLM):
        instead = "; it generates text from a source (lmlab translate RUN, in Python translate)"
    elif isinstance(system, Step):
        instead = "; it continues a text (lmlab sample RUN --prefix, in Python sample)"
    raise UserError(
        f"this system does not fill in masks{instead}. Systems that predict masked tokens: "
        f"{systems_with(Fill)}; spans of several masks: {systems_with(JointFill)}; blanks of any "
        f"length: {systems_with(Infill)}."
    )


def generated_log_probs(writer: InfillDecoder, rows: Sequence[Sequence[int]]) -> list[float]:
    """The decoder's log-probability of each row, end included, in nats."""
    end = writer.vocabulary.end
    assert end is not None, "what writes blanks ends"
    rows = [[*row, end] for row in rows]
    state, totals = writer.start(len(rows)), [0.0] * len(rows)
    going = list(range(len(rows)))
    for place in range(max(map(len, rows))):
        log_probs = next_distribution(writer, state).log_probs
        for index, row in enumerate(going):
            totals[row] += float(log_probs[index, rows[row][place]])
        stays = [index for index, row in enumerate(going) if place + 1 < len(rows[row])]
        tokens = torch.tensor([rows[going[index]][place] for index in stays])
        going = [going[index] for index in stays]
        if going:
            kept = torch.tensor(stays, device=log_probs.device)
            state = writer.advance(state.select(kept), tokens.to(log_probs.device))
    return totals


def _gap_by_gap(read: MaskedText, options: Sequence[tuple[FillOption, ...]]) -> FilledText:
    gaps = [
        MaskedPosition(start=start, end=end, options=each)
        for (start, end), each in zip(read.spans, options, strict=True)
    ]
    return FilledText(text=read.text, masks=tuple(gaps), note=read.note)


def _ranked(
    texts: Sequence[str], pieces: Sequence[tuple[str, ...]], log_probs: Sequence[float]
) -> tuple[FillOption, ...]:
    """Candidates best first, each with its normalised probability."""
    shares = torch.softmax(torch.tensor(log_probs, dtype=torch.float64), 0).tolist()
    options = [
        FillOption(
            text=text,
            pieces=spelled,
            log_prob=log_prob,
            probability=math.exp(log_prob),
            share=share,
        )
        for text, spelled, log_prob, share in zip(texts, pieces, log_probs, shares, strict=True)
    ]
    return tuple(sorted(options, key=lambda option: -option.log_prob))


def _unlike(fillings: Sequence[FillCandidate]) -> list[FillCandidate]:
    """The fillings without duplicate answers, first occurrences retained."""
    found: dict[tuple[str, ...], FillCandidate] = {}
    for each in fillings:
        found.setdefault(each.answers, each)
    return list(found.values())
