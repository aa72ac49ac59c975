"""Wraps external torch modules (ids in, logits out) as causal or masked language models."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of
from lmlab.core.parts import (
    Backbone,
    Emission,
    HiddenStates,
    Objective,
    Predictions,
    prediction_mask,
)
from lmlab.core.protocols import LMHead
from lmlab.core.score import ScoreKind, ScorerKind
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import never_predicted_mask
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.token_masking import IndependentMasking, MaskReplacement
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.objective_interfaces import MaskedLMObjective

MAX_LOGITS_IN_MEMORY = 2**25
"""Maximum number of logits in memory: rows × positions × vocabulary."""


class ModuleBackbone(Backbone):
    """Backbone that runs an external module; its logits (B, T, D) serve as hidden states.

    Sequences of different lengths are padded at the end, with an attention mask if forward takes
    one; unless `supports_padding`, only those of equal length are batched together.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask)

    def __init__(
        self,
        module: nn.Module,
        *,
        count: int,
        padding_id: int,
        supports_padding: bool = True,
        max_positions: int | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.max_positions = max_positions
        self.width = count
        """Ids of the tokenizer; further logits are dropped."""
        self.padding_id = padding_id
        """The id used as padding."""
        self.supports_padding = supports_padding
        parameters = _forward_parameters(module)
        self.takes_attention_mask = "attention_mask" in parameters
        self._call_options = {"use_cache": False} if "use_cache" in parameters else {}

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        return HiddenStates(values=self.scores(view.inputs, view.lengths))

    def scores(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D) logits of ids (B, T); arbitrary at padding."""
        lengths = lengths.clamp(min=1)  # an empty row is run with one position and has no targets
        if self.supports_padding or bool((lengths == tokens.shape[1]).all()):
            return self.read(tokens, lengths)
        rows, time = tokens.shape
        scores: Tensor | None = None
        for length in sorted(set(lengths.tolist())):
            index = (lengths == length).nonzero().squeeze(1)
            part = self.read(tokens[index, :length], lengths[index])
            if scores is None:
                scores = part.new_zeros(rows, time, self.width)
            scores = scores.index_copy(0, index, F.pad(part, (0, 0, 0, time - length)))
        assert scores is not None, "a batch has rows"
        return scores

    def read(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D) of one call of the module."""
        output = self.call(tokens, lengths)
        return extract_logits(output, tuple(tokens.shape))[..., : self.width]

    def call(self, tokens: Tensor, lengths: Tensor) -> Any:
        """The module's output for ids (B, T)."""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        options: dict[str, Any] = dict(self._call_options)
        if self.takes_attention_mask:
            options["attention_mask"] = mask.long()
        try:
            return self.module(tokens.masked_fill(~mask, self.padding_id), **options)
        except UserError:
            raise
        except Exception as error:  # external code may raise anything
            raise UserError(
                f"the module fails on ids of shape {tuple(tokens.shape)} "
                f"({type(error).__name__}: {error}); give window= if that is longer than its "
                "maximum length, or fix its forward."
            ) from error


def _forward_parameters(module: nn.Module) -> set[str]:
    """Names of forward's parameters."""
    try:
        return set(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # compiled code has no signature
        return set()


def extract_logits(output: Any, shape: tuple[int, ...]) -> Tensor:
    """The logits in a module's output for ids of a shape: a tensor, `.logits`, or the first."""
    logits = getattr(output, "logits", output)
    if isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor):
        raise UserError(
            "the module must return scores as a tensor or as .logits of its output, got "
            f"{type(output).__name__}."
        )
    if logits.ndim != 3 or tuple(logits.shape[:2]) != shape:
        rows, time = shape
        raise UserError(
            f"for ids of shape {shape} the module must return scores of shape ({rows}, {time}, "
            f"vocabulary), one row per position, got {tuple(logits.shape)}."
        )
    return logits


class LogitsEmission(Emission):
    """Softmax of given logits, over the tokens that can be predicted."""

    never_predicted: Tensor

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.masked_logits(hidden), dim=-1)

    def masked_logits(self, hidden: Tensor) -> Tensor:
        """(…, V) logits, -inf at what is never predicted; the padding id may lie beyond them."""
        beyond = len(self.never_predicted) - hidden.shape[-1]
        scores = F.pad(hidden.float(), (0, beyond), value=float("-inf"))
        return scores + self.never_predicted.to(scores.device)


class WrappedModel(Assembly):
    """Base class of wrapped modules: only the logits at targets are retained."""

    backbone: ModuleBackbone
    emission: LogitsEmission

    def __init__(
        self, backbone: ModuleBackbone, vocabulary: Vocabulary, objective: Objective
    ) -> None:
        super().__init__(
            vocabulary=vocabulary,
            backbone=backbone,
            emission=LogitsEmission(vocabulary),
            objective=objective,
        )

    def lengthening_hint(self, tokens: int) -> str:
        """The module is not trained by a setting."""
        return "build it longer"

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Nothing: the module's internals are unknown."""
        return {}

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Log-probabilities of a view's targets, a bounded number of rows at a time."""
        target_mask = prediction_mask(view)
        assert view.targets is not None
        log_probs = [
            self.emission.log_prob(values, view.targets[rows][target_mask[rows]])
            for rows, values in self._logits_by_chunk(view, target_mask)
        ]
        return Predictions(log_probs=torch.cat(log_probs), target_mask=target_mask)

    def logits_at(self, view: View, mask: Tensor) -> Tensor:
        """(N, V) logits at the true entries of `mask` (B, T), in reading order."""
        return torch.cat(
            [self.emission.masked_logits(values) for _, values in self._logits_by_chunk(view, mask)]
        )

    def _logits_by_chunk(self, view: View, mask: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Chunks of rows, with the module's logits at the positions of `mask`."""
        rows, time = view.inputs.shape
        at_once = max(1, MAX_LOGITS_IN_MEMORY // max(1, time * self.vocabulary.size))
        for first in range(0, rows, at_once):
            chunk = slice(first, first + at_once)
            scores = self.backbone.scores(view.inputs[chunk], view.lengths[chunk])
            yield chunk, scores[mask[chunk]]


class LookAheadNextToken(NextToken):
    """Next-token prediction by a module that may see later tokens.

    Its terms need not be the conditionals of one distribution, so its scores are pseudo ones.
    """

    kind: ClassVar[ScoreKind] = "pseudo"


class WrappedCausalLM(WrappedModel):
    """Wrapped causal LM: the module gives next-token logits at every position.

    log p(s) = Σ_t log softmax(scores_{t-1})[s_t]. A step reruns the whole prefix, T passes for T
    tokens: correct for every module, as no cache is assumed.
    """

    scorer_kind: ClassVar[ScorerKind] = "left-to-right"
    objective_type: ClassVar[type[NextToken]] = NextToken

    def __init__(self, backbone: ModuleBackbone, vocabulary: Vocabulary) -> None:
        super().__init__(backbone, vocabulary, self.objective_type())

    def start(self, rows: int, *, condition: Batch | None = None) -> TensorState:
        """The texts so far: what precedes their first token."""
        if condition is not None:
            raise UserError("a condition does not apply to a wrapped module; remove it.")
        tokens = torch.full((rows, 1), self.vocabulary.bos, device=device_of(self))
        return TensorState({"tokens": tokens})

    def peek(self, state: TensorState) -> Categorical:
        """The distribution of the next token, (rows, V); reruns the whole text."""
        tokens = state["tokens"]
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        last = torch.zeros_like(tokens, dtype=torch.bool)
        last[:, -1] = True
        view = View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())
        return Categorical(F.log_softmax(self.logits_at(view, last), dim=-1))

    def advance(self, state: TensorState, tokens: Tensor) -> TensorState:
        """The texts with one more token each."""
        return TensorState({"tokens": torch.cat([state["tokens"], tokens[:, None]], dim=1)})


class WrappedLookAheadLM(WrappedCausalLM):
    """A wrapped next-token model that may see later tokens, for diagnosis."""

    scorer_kind = "look-ahead"
    objective_type = LookAheadNextToken


class WrappedMaskedLM(WrappedModel):
    """Wrapped masked LM: the module gives logits at masked positions, bidirectionally.

    Its log_prob is the pseudo-log-likelihood of `MaskedLMObjective`. Views and losses mask 15 % of
    the tokens, as BERT does, since the module's own training is unknown.
    """

    objective: MaskedLMObjective
    scorer_kind = "masked"

    def __init__(self, backbone: ModuleBackbone, vocabulary: Vocabulary) -> None:
        replacement = MaskReplacement(vocabulary=vocabulary)
        super().__init__(
            backbone, vocabulary, BERTObjective(vocabulary, IndependentMasking(), replacement)
        )

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked position, in reading order."""
        return Categorical(F.log_softmax(self.logits(batch, masked), dim=-1))

    def logits(
        self, batch: Batch, masked: Tensor, targets: Tensor | None = None, *, head: LMHead = "own"
    ) -> Tensor:
        """(N, V) unnormalised scores at `targets`, with `masked` masked."""
        if head != "own":
            raise UserError(
                "head= does not apply to a wrapped module, which gives scores and no hidden "
                "states; remove it."
            )
        view = self.objective.fill_view(batch, masked)
        return self.logits_at(view, masked if targets is None else targets)
