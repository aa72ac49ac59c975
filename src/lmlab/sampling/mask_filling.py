"""Mask filling: tokens per mask or all jointly, and infilling of blanks of unknown length.

`Fill` gives the distribution of a token at each mask, the other masks unknown, and by the chain
rule all masks jointly; `JointFill` gives the joint distribution directly (MASS has only this).
`Infill` generates blanks of unknown length, by sampling or by a search aligned on positions
(`infill_search.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.limits import check_limit
from lmlab.core.protocols import Fill, Infill, InfillDecoder, JointFill, Step, require, systems_with
from lmlab.core.system_protocols import JointFillSystem, SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import pad_rows
from lmlab.data.corpus import Layout
from lmlab.data.text_codecs import CHARACTER_KINDS, REPLACEMENT_CHARACTER
from lmlab.inference.decoding import GeneratedSequence
from lmlab.models.seq2seq import EncoderDecoderLM, ImageToTextLM
from lmlab.sampling.decoding import sample_sequences
from lmlab.sampling.filled_text import (
    FillCandidate,
    FilledText,
    FillOption,
    distinct_candidates,
    independent_predictions,
    rank_options,
)
from lmlab.sampling.generation_options import FillLimits
from lmlab.sampling.infill_search import InfillSearch, generated_log_probs
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
class MaskFiller(FillLimits):
    """Fills masks with one system; texts are streamed one by one, in constant memory."""

    system: SystemInfo
    tokenizer: TokenizerProtocol
    layout: Layout

    def __post_init__(self) -> None:
        for name, value in (
            ("number of fillings", self.top),
            ("beam width", self.beam),
            ("maximum length", self.max_length),
        ):
            if value < 1:
                raise UserError(f"the {name} must be 1 or more, got {value}.")
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
            prompt = parse_masked_text(text, self.tokenizer)
            log_probs = self._mask_log_probs([self._row(prompt)], self._mask_positions(prompt))[0]
            options = [self._options(values, candidates) for values in log_probs]
            yield independent_predictions(prompt, options)

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
            prompt = parse_masked_text(text, self.tokenizer)
            result = self._fill_row(self._row(prompt), self._mask_positions(prompt), generator)
            fillings = [
                self._candidate(prompt, [(answer,) for answer in answers], log_prob)
                for answers, log_prob in result.answers
            ]
            notes = " ".join(note for note in (prompt.note, result.note) if note)
            yield FilledText(
                text=text,
                candidates=tuple(fillings),
                kind=result.kind,
                order=result.order,
                note=notes or None,
            )

    def _fill_row(
        self, row: list[int], masks: list[int], generator: torch.Generator | None
    ) -> JointFillResult:
        special_tokens = self.tokenizer.symbols
        if isinstance(self.system, JointFillSystem):
            joint = partial(
                fill_by_joint_distribution, self.system, row, masks, generator=generator
            )
            collect = (
                top_without_special_tokens if generator is None else samples_without_special_tokens
            )
            return collect(joint, special_tokens, self.top)
        kind = chain_rule_kind(self.system, len(masks))
        if generator is not None:
            sample = partial(sample_by_chain_rule, self._mask_log_probs, row, masks, kind=kind)
            return samples_without_special_tokens(
                partial(sample, generator=generator), special_tokens, self.top
            )
        return fill_by_chain_rule(
            self._mask_log_probs,
            row,
            masks,
            kind=kind,
            special_tokens=special_tokens,
            beam=self.beam,
            count=self.top,
        )

    def infill(
        self, texts: Iterable[str], *, generator: torch.Generator | None = None
    ) -> Iterator[FilledText]:
        """Fill blanks of any length: the best of a search, or samples (with a generator)."""
        require(self.system, Infill, "filling in blanks of unknown length")
        for text in texts:
            prompt = parse_masked_text(text, self.tokenizer)
            with evaluation_mode(self.system):
                fillings = self._infill_text(prompt, generator)
            notes = [prompt.note] if prompt.note else []
            if not any(filling.finished for filling in fillings):
                notes.append(UNFINISHED_NOTE)
            yield FilledText(text=text, candidates=tuple(fillings), note=" ".join(notes) or None)

    def rank_infills(self, texts: Iterable[str], among: Sequence[str]) -> Iterator[FilledText]:
        """Cloze ranking: candidates of any length for the one blank of each text.

        Classification by verbalisers (Du et al. 2022; Schick and Schütze 2021).
        """
        require(self.system, Infill, "filling in blanks of unknown length")
        candidates = [tuple(self.tokenizer.encode(text)) for text in among]
        for text in texts:
            prompt = parse_masked_text(text, self.tokenizer)
            if len(prompt.spans) != 1:
                raise UserError(
                    "candidates apply only to texts with one blank, got one with "
                    f"{len(prompt.spans)}."
                )
            with evaluation_mode(self.system):
                decoder = self._decoder(prompt, len(candidates))
                rows = [decoder.linearise_fillings(i, [ids]) for i, ids in enumerate(candidates)]
                log_probs = generated_log_probs(decoder, rows)
            options = rank_options(list(among), list(map(self._pieces, candidates)), log_probs)
            yield independent_predictions(prompt, [options[: self.top]])

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
        # Systems without single-mask distributions fill adjacent masks as one span (MASS).
        spans = isinstance(self.system, JointFill) and not isinstance(self.system, Fill)
        joint = joint or (spans and not blanks and not among)
        sampled_blanks = generator is not None and not joint
        ranked_blanks = spans and bool(among)
        blanks = (
            blanks
            or sampled_blanks
            or ranked_blanks
            or not isinstance(self.system, (Fill, JointFill))
        )
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

    def _mask_log_probs(self, rows: Sequence[Sequence[int]], positions: Sequence[int]) -> Tensor:
        """(rows, positions, V) log-probabilities at masked positions of rows of equal length."""
        batch = pad_rows(rows, self.system)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[:, list(positions)] = True
        with evaluation_mode(self.system):
            # Fixed seed: systems with Monte Carlo estimates sample from this.
            system = require(self.system, Fill, "filling in tokens")
            filled = system.fill(batch, masked, generator=torch.Generator().manual_seed(0))
        log_probs = filled.log_probs.double().cpu()
        if log_probs.isnan().any():
            raise UserError(
                "this model gives probabilities that are NaN: its training diverged; train "
                "it again with a lower learning rate."
            )
        return log_probs.view(len(rows), len(positions), -1)

    def _options(self, log_probs: Tensor, candidates: dict[str, int]) -> tuple[FillOption, ...]:
        if candidates:
            values = log_probs[list(candidates.values())].tolist()
            pieces = [(self.tokenizer.token(id),) for id in candidates.values()]
            return rank_options(list(candidates), pieces, values)[: self.top]
        log_probs = without_special_tokens(log_probs, self.tokenizer.symbols)
        best = log_probs.topk(min(self.top, len(log_probs)))
        return tuple(
            FillOption(
                text=self._decode([id]),
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

    def _infill_text(
        self, prompt: MaskedText, generator: torch.Generator | None
    ) -> list[FillCandidate]:
        """The best distinct fillings, or samples in their order."""
        rows = 1 if generator is None else self.top
        decoder = self._decoder(prompt, rows)
        # Tokens generated besides the answers, and the end token.
        fixed_tokens = len(decoder.linearise_fillings(0, [()] * len(prompt.spans))) + 1
        max_length = fixed_tokens + self.max_length
        if self.system.window is not None:
            max_length = min(max_length, self.system.window)
        if generator is not None:
            samples = sample_sequences(decoder, rows, max_length=max_length, generator=generator)
            return [self._candidate_of(prompt, decoder, sequence) for sequence in samples]
        search = InfillSearch(
            decoder=decoder,
            blanks=len(prompt.spans),
            width=BEAM_FACTOR * max(self.beam, self.top),
            best=self.top,
            max_tokens=max_length - fixed_tokens,
        )
        return distinct_candidates(
            [self._candidate_of(prompt, decoder, sequence) for sequence in search()]
        )

    def _candidate_of(
        self, prompt: MaskedText, decoder: InfillDecoder, sequence: GeneratedSequence
    ) -> FillCandidate:
        # All rows hold the same text, so the first one's blanks apply to all.
        answers = decoder.answers(0, sequence.tokens)
        assert sequence.log_prob is not None, "decoded sequences have a log_prob"
        return self._candidate(prompt, answers, sequence.log_prob, finished=sequence.finished)

    def _decoder(self, prompt: MaskedText, rows: int) -> InfillDecoder:
        """The decoder of a text's blanks, for `rows` parallel rows."""
        system = require(self.system, Infill, "filling in blanks of unknown length")
        return system.infill_decoder(pad_rows([self._row(prompt)] * rows, self.system))

    # Texts ---------------------------------------------------------------------------------------

    def _row(self, prompt: MaskedText) -> list[int]:
        """The input row of a text, with the mask token at its masks."""
        vocabulary = self.system.vocabulary
        mask_id = mask_token_id(self.tokenizer)
        # A system with `Fill` alone ignores the tokens at masks, so any token will do.
        placeholder = vocabulary.pad if mask_id is None else mask_id
        contiguous = self.layout.kind == "contiguous"
        first = vocabulary.end if contiguous or vocabulary.start is None else vocabulary.start
        assert first is not None, "a vocabulary needs a start or an end token"
        tail = [vocabulary.end] if self.layout.end and vocabulary.end is not None else []
        row = [first, *prompt.with_mask(placeholder), *tail]
        self.system.check_length(len(row))
        return row

    def _mask_positions(self, prompt: MaskedText) -> list[int]:
        """The positions of the masks in the row."""
        return [position for position, id in enumerate(prompt.ids, 1) if id is None]

    def _candidate(
        self,
        prompt: MaskedText,
        answers: Sequence[Sequence[int]],
        log_prob: float,
        *,
        finished: bool = True,
    ) -> FillCandidate:
        return FillCandidate(
            answers=tuple(map(self._decode, answers)),
            pieces=tuple(map(self._pieces, answers)),
            text=self._filled(prompt, answers),
            log_prob=log_prob,
            tokens=sum(map(len, answers)),
            finished=finished,
        )

    def _filled(self, prompt: MaskedText, answers: Sequence[Sequence[int]]) -> str:
        """The text with the answers; continuation tokens are joined to the word before them."""
        answer_texts: list[str] = []
        joined: list[bool] = []
        before: list[int] = []
        following = iter(answers)
        if self.tokenizer.kind == "byte":  # a character may have its bytes in several masks
            filled = [[id] if id is not None else next(following) for id in prompt.ids]
            return str(self.tokenizer.decode([id for ids in filled for id in ids]))
        for id in prompt.ids:
            if id is not None:
                before = [id]
                continue
            answer = next(following)
            context = self.tokenizer.decode(before)
            with_context = self.tokenizer.decode([*before, *answer])
            # In character and byte tokenizers a space is a token like any other.
            joins = self.tokenizer.kind not in CHARACTER_KINDS and bool(before) and bool(answer)
            added = with_context[len(context) :]
            joins = joins and with_context.startswith(context) and not added[:1].isspace()
            answer_texts.append(added if joins else self._decode(answer))
            joined.append(joins)
            before = [*answer[-1:]] or before
        return prompt.filled(answer_texts, joined)

    def _pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tokenizer.token(id) for id in ids)

    def _decode(self, ids: Sequence[int]) -> str:
        """Decoded tokens; a lone special token or part of a character by its spelling."""
        text: str = self.tokenizer.decode(ids)
        if self.tokenizer.kind == "byte" and REPLACEMENT_CHARACTER in text:
            return "".join(self.tokenizer.token(id) for id in ids)
        return text or " ".join(self.tokenizer.token(id) for id in ids)


def check_can_fill(system: object) -> None:
    """A UserError if a system fills no masks: what it does instead, and which systems do."""
    if isinstance(system, (Fill, JointFill, Infill)):
        return
    instead = ""
    if isinstance(system, (EncoderDecoderLM, ImageToTextLM)):
        instead = "; it generates text from a source (lmlab translate RUN, in Python translate)"
    elif isinstance(system, Step):
        instead = "; it continues a text (lmlab sample RUN --prefix, in Python sample)"
    raise UserError(
        f"this system does not fill in masks{instead}. Systems that predict masked tokens: "
        f"{systems_with(Fill)}; spans of several masks: {systems_with(JointFill)}; blanks of any "
        f"length: {systems_with(Infill)}."
    )
