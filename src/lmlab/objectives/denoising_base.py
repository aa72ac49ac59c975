"""Denoising seq2seq objectives: base class, special tokens of the source, sentence splitting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import NO_TARGET, View, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.objective_interfaces import Seq2SeqObjective

SENTENCE_END_MARKS = (".", "!", "?", ";", "。", "！", "？", "；")
"""Sentence-final punctuation."""
WHITESPACE_MARKERS = ("</w>", "▁", "Ġ")
"""Tokenizers' whitespace markers, after a piece or alone."""


class SentenceSplitter:
    """Splits texts after tokens that end a sentence; a text without any is one sentence.

    The tokens are known from the tokenizer (`setup_tokenizer`). Words with attached punctuation
    ("dog.") end a sentence too, at the price that "e.g." does as well.
    """

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self.ends = np.array(sorted(set(ends)), dtype=np.int64)
        """Ids of sentence-final tokens."""

    def setup_tokenizer(self, tokenizer: TokenizerProtocol, size: int) -> None:
        """Find which of a tokenizer's `size` tokens end a sentence; earlier ones are kept."""
        ends = {token for token in range(size) if is_sentence_end(tokenizer.token(token))}
        self.ends = np.array(sorted(ends | set(self.ends.tolist())), dtype=np.int64)

    def split(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Positions of each sentence of a text (T,); consecutive marks end only one."""
        ending = self.is_end(tokens)
        last = ending & ~np.append(ending[1:], False)
        return [
            part for part in np.split(np.arange(len(tokens)), last.nonzero()[0] + 1) if len(part)
        ]

    def is_end(self, tokens: np.ndarray) -> np.ndarray:
        """(T,) bool: the sentence-final tokens."""
        return np.isin(tokens, self.ends)


def is_sentence_end(token: str) -> bool:
    """Whether a token, as the vocabulary spells it, is an end mark or a word with one."""
    for ending in WHITESPACE_MARKERS:
        token = token.removesuffix(ending)
    return token.endswith((*SENTENCE_END_MARKS, *map(byte_level_spelling, SENTENCE_END_MARKS)))


def byte_level_spelling(text: str) -> str:
    """Byte-level BPE spelling of a text: each byte a visible character, by GPT-2's table.

    Bytes of visible characters stand for themselves, the others are numbered from 256 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in visible)
    spelled = {byte: byte for byte in visible}
    spelled |= {byte: 0x100 + number for number, byte in enumerate(others)}
    return "".join(chr(spelled[byte]) for byte in text.encode())


@dataclass(frozen=True, kw_only=True)
class DenoisingSpecialTokens:
    """Special tokens of the source and of the decoder input.

    Defaults are those of models trained here; imported checkpoints have other conventions.
    """

    vocabulary: Vocabulary
    mask: int
    """Replaces masked tokens in a source."""
    decoder_prefix: tuple[int, ...] = ()
    """Ids the decoder starts with; if empty, what precedes the text."""
    source_has_start: bool = True
    """Whether a source begins with the start token."""

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: Vocabulary,
        *,
        mask: int | None = None,
        decoder_prefix: tuple[int, ...] = (),
        source_has_start: bool = True,
    ) -> DenoisingSpecialTokens:
        """Use the vocabulary's mask token, unless another id is given."""
        mask = vocabulary.mask if mask is None else mask
        if mask is None:
            raise UserError(
                "denoising needs a mask token, and this tokenizer has none; use one that has "
                "<mask> or [MASK], or give the mask token's id."
            )
        if not 0 <= mask < vocabulary.size:
            raise UserError(
                f"the mask token must be one of the {vocabulary.size} ids of the vocabulary, got "
                f"{mask}."
            )
        return cls(
            vocabulary=vocabulary,
            mask=mask,
            decoder_prefix=decoder_prefix,
            source_has_start=source_has_start,
        )

    @property
    def source_frame(self) -> tuple[list[int], list[int]]:
        """Ids before and after the body of a source."""
        start, end = self.vocabulary.start, self.vocabulary.end
        before = [start] if self.source_has_start and start is not None else []
        return before, [] if end is None else [end]


@dataclass(frozen=True, eq=False)
class CorruptedSource:
    """A corrupted source: tokens, and the position in the text each comes from."""

    tokens: np.ndarray
    """(S,) ids."""
    positions: np.ndarray
    """(S,) positions in the body of the text, -1 at mask tokens."""


class DenoisingObjective(Seq2SeqObjective):
    """Denoising seq2seq; log p(s) = Σ_t log p(s_t | s_<t, a source of a single mask token).

    In training a subclass corrupts the text. With everything masked the decoder is a normalised
    language model, so log_prob is exact. A share `full_mask_rate` of the training texts is fully
    masked, unlike in the papers; how well log_prob is trained depends on it. A text with a
    condition (a pair) is decoded given that source, uncorrupted.
    """

    kind: ClassVar[ScoreKind] = "exact"
    sentences: SentenceSplitter | None = None
    """Splits texts into sentences, where the corruption needs them."""

    def __init__(
        self, special_tokens: DenoisingSpecialTokens, *, full_mask_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.special_tokens = special_tokens
        self.vocabulary = special_tokens.vocabulary
        self.full_mask_rate = full_mask_rate
        # The encoder input is the text with its special tokens; the decoder's lacks the last one.
        self.extra_positions = max(1, len(special_tokens.decoder_prefix) - 1)

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Receive the tokenizer before training."""
        if self.sentences is not None:
            self.sentences.setup_tokenizer(tokenizer, self.vocabulary.size)

    def decoder_prefix(self) -> tuple[int, ...]:
        return self.special_tokens.decoder_prefix or (self.vocabulary.bos,)

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        """Sources unchanged, including their masks; a single mask token where there are none."""
        if condition is None:
            return self.corrupted_source_view([self.fully_masked_source()] * rows, device)
        skipped = 0 if self.special_tokens.source_has_start else 1
        return View(
            inputs=condition.tokens[:, skipped:],
            lengths=(condition.lengths - skipped).clamp(min=0),
            attention_mask=FullMask(),
        )

    def fully_masked_source(self) -> CorruptedSource:
        return CorruptedSource(np.array([self.special_tokens.mask]), np.array([-1]))

    def corrupted_source_view(
        self, sources: Sequence[CorruptedSource], device: torch.device
    ) -> View:
        """The encoder's view of sources, framed by start and end tokens, with token origins."""
        prefix, suffix = self.special_tokens.source_frame
        framed = [[*prefix, *source.tokens.tolist(), *suffix] for source in sources]
        batch = Batch.collate(framed, self.vocabulary.pad).to(device)
        clean_positions = torch.full_like(batch.tokens, -1)
        for row, source in enumerate(sources):
            # Position 0 of a text is its start token; the body begins at 1.
            positions = np.where(source.positions < 0, -1, source.positions + 1)
            inside = slice(len(prefix), len(prefix) + len(positions))
            clean_positions[row, inside] = torch.from_numpy(positions).to(clean_positions)
        return View(
            inputs=batch.tokens,
            lengths=batch.lengths,
            attention_mask=FullMask(),
            clean_positions=clean_positions,
        )

    def decoder_view(self, batch: Batch) -> View:
        """The decoder's view when it generates the whole text."""
        view, prefix = causal_view(batch), self.special_tokens.decoder_prefix
        if not prefix:
            return view
        assert view.targets is not None and view.clean_positions is not None
        extra = len(prefix) - 1
        prefix_tokens = torch.tensor(prefix, device=view.inputs.device).expand(len(batch), -1)
        return replace(
            view,
            inputs=torch.cat([prefix_tokens, view.inputs[:, 1:]], 1),
            lengths=torch.where(view.lengths > 0, view.lengths + extra, 0),
            targets=F.pad(view.targets, (extra, 0), value=NO_TARGET),
            clean_positions=F.pad(view.clean_positions, (extra, 0), value=-1),
        )

    def partial_decoder_view(self, batch: Batch, target_positions: Sequence[np.ndarray]) -> View:
        """The decoder's view when the targets are the tokens at some positions of each text's body.

        The end token follows, unless the text itself was truncated there.
        """
        rows, clean_positions = [], []
        for tokens, length, positions in zip(
            batch.tokens.tolist(), batch.lengths.tolist(), target_positions, strict=True
        ):
            ended = length > 1 and tokens[length - 1] == self.vocabulary.end
            body = length - 1 - ended
            reaches_end = body == (positions[-1] + 1 if len(positions) else 0)
            end = self.special_tokens.source_frame[1] if ended or not reaches_end else []
            rows.append([tokens[0], *(tokens[position + 1] for position in positions), *end])
            end_position = [length - 1] if ended and reaches_end else [-1]
            clean_positions.append([*(positions + 1), *end_position][: len(rows[-1]) - 1])
        view = self.decoder_view(Batch.collate(rows, self.vocabulary.pad).to(batch.tokens.device))
        assert view.clean_positions is not None
        padded = Batch.collate(clean_positions, -1).tokens.to(view.clean_positions)
        return replace(
            view, clean_positions=F.pad(padded, (len(self.decoder_prefix()) - 1, 0), value=-1)
        )

    def conditional_view(self, batch: Batch) -> View:
        """Texts given their conditions, or given a single mask."""
        source = self.source_view(batch.condition, len(batch), batch.tokens.device)
        return replace(source, decoder=self.decoder_view(batch))

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        predictions = network.target_log_probs(self.conditional_view(batch))
        first = len(self.decoder_prefix()) - 1
        return LogProbs(per_token=predictions.to_dense()[:, first:], kind=self.kind)


class CorruptedTextObjective(DenoisingObjective):
    """Denoising seq2seq whose sources are corrupted one by one."""

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if batch.condition is not None:
            return self.conditional_view(batch)
        random, sources, parts = numpy_generator(generator), [], []
        for body in text_bodies(batch, self.vocabulary):
            fully_masked = random.random() < self.full_mask_rate
            corrupted, part = (
                self.corrupt_fully(body) if fully_masked else self.corrupt(body, random)
            )
            sources.append(corrupted)
            parts.append(part)
        source = self.corrupted_source_view(sources, batch.tokens.device)
        return replace(source, decoder=self.partial_decoder_view(batch, parts))

    @abstractmethod
    def corrupt(
        self, tokens: np.ndarray, random: np.random.Generator
    ) -> tuple[CorruptedSource, np.ndarray]:
        """The corrupted source of a text (T,), and the target positions, ascending."""

    def corrupt_fully(self, tokens: np.ndarray) -> tuple[CorruptedSource, np.ndarray]:
        """Mask the whole text; all of it is the target."""
        return self.fully_masked_source(), np.arange(len(tokens))


def text_bodies(batch: Batch, vocabulary: Vocabulary) -> list[np.ndarray]:
    """The tokens of each row without what precedes them and without a closing end token."""
    bodies = []
    for row, length in zip(batch.tokens.cpu().numpy(), batch.lengths.tolist(), strict=True):
        ended = length > 1 and row[length - 1] == vocabulary.end
        bodies.append(row[1 : length - ended])
    return bodies


def numpy_generator(generator: torch.Generator | None) -> np.random.Generator:
    """A NumPy generator seeded by torch's: faster for many small draws over texts of any length."""
    device = torch.device("cpu") if generator is None else generator.device
    seed = torch.randint(2**62, (1,), generator=generator, device=device)
    return np.random.default_rng(int(seed))
