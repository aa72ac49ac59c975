"""Measurement of causality: perturbs one input at a time and compares all predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import LogProb, LogProbs
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.diagnosis.causality import WHOLE_TEXT, CausalityReport, Effects
from lmlab.models.wrapped import WrappedCausalLM, WrappedModel
from lmlab.objectives.next_token import NextToken
from lmlab.training.run_folder import TrainedModel

PROBE_TOKENS = 10
"""Tokens of a random probe, after the start token."""
MAX_PROBE_TOKENS = 24
"""Tokens of a given text that are probed."""
REPLACEMENTS = 3
"""Other tokens tried at each position."""
PADDINGS = (1, 4)
"""Numbers of padding positions after the text."""
LEAST_LOG_PROB = -30.0
"""Smaller log-probabilities count as this: such a token is impossible, however it changes."""
ROUNDINGS = 16
"""Rounding errors of the largest log-probability that a sum in another order may differ by."""


def examine_causality(model: TrainedModel, *, text: str | None = None) -> CausalityReport:
    """The causality report of a trained, loaded or wrapped model.

    The probe is the beginning of `text`, or random ordinary tokens. Raises a UserError if the model
    has no predictions of tokens in a text.
    """
    system, tokenizer = model.system, model.tokenizer
    vocabulary: Vocabulary = system.vocabulary
    if text is None:
        probe = random_tokens(vocabulary, PROBE_TOKENS, limit=tokenizer.vocabulary.size)
    else:
        probe = tokenizer.encode(text)[:MAX_PROBE_TOKENS]
    source = None
    if model.layout.kind == "pairs":
        source = random_tokens(model.effective_source_tokenizer.vocabulary, PROBE_TOKENS)
    return probe_system(system, probe, name=model.name, token=tokenizer.token, source=source)


def random_tokens(
    vocabulary: Vocabulary, count: int, *, seed: int = 0, limit: int | None = None
) -> list[int]:
    """Ordinary ids, sampled uniformly."""
    ordinary = ordinary_tokens(vocabulary, limit)
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(ordinary), (count,), generator=generator)
    return [ordinary[int(pick)] for pick in picks]


def ordinary_tokens(vocabulary: Vocabulary, limit: int | None = None) -> list[int]:
    """The ids of all tokens but special ones; all ids if there are no others."""
    special = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    size = vocabulary.size if limit is None else min(limit, vocabulary.size)
    return [id for id in range(size) if id not in special] or list(range(size))


def probe_system(
    system: System,
    probe: Sequence[int],
    *,
    name: str,
    token: Callable[[int], str] = str,
    source: Sequence[int] | None = None,
) -> CausalityReport:
    """The causality report of a system on a text of token ids, given a source if it takes one."""
    if not isinstance(system, LogProb) or system.input_kind != "tokens":
        raise UserError(f"{name} predicts no tokens of a text, so it has no causality to examine.")
    ids = [system.vocabulary.bos, *_fitting(system, probe)]
    if len(ids) < 3:
        raise UserError("causality needs a text of at least 2 tokens; give a longer one.")
    prober = _Prober(system, source)
    row = torch.tensor([ids])
    clean = prober.predict(row)
    if bool(clean.isnan().any()):
        raise UserError(f"the predictions of {name} are not finite; check its weights.")
    tokens = tuple(token(id) for id in ids[1:])
    by_token = [prober.replaced(row, 0, position, clean) for position in range(1, len(ids))]
    if not prober.whole_distribution:
        for position, effects in enumerate(by_token):
            effects[position] = None  # another target, not another prediction
    paddings, by_padding = prober.padded(row, clean)
    neighbour_ids, by_neighbour = prober.neighbours(row, clean)
    extra = clean.shape[1] - len(tokens)
    return CausalityReport(
        model=name,
        kind=prober.kind,
        left_to_right=system.scorer_kind in ("left-to-right", "look-ahead"),
        whole_distribution=prober.whole_distribution,
        tokens=tokens,
        predictions=(*tokens, *[WHOLE_TEXT] * extra),
        token_effects=_rows(by_token),
        paddings=paddings,
        padding_effects=_rows(by_padding),
        neighbours=(
            "its presence",
            *(
                f"its token {place} {token(id)!r}"
                for place, id in enumerate(neighbour_ids, start=1)
            ),
        ),
        neighbour_effects=_rows(by_neighbour),
        noise=float((prober.predict(row) - clean).abs().max()),
        tolerance=rounding_tolerance(system, clean),
        batched_by_length=isinstance(system, WrappedModel) and not system.backbone.supports_padding,
    )


def rounding_tolerance(system: System, predictions: Tensor) -> float:
    """Largest effect in nats that rounding may have on these log-probabilities.

    Two passes over the same input agree to the bit (`CausalityReport.noise`), and so do passes over
    inputs of one shape at positions that don't see the change. With padding or a neighbour, sums
    may be taken in another order: a few rounding errors of the largest log-probability.
    """
    dtypes = {tensor.dtype for tensor in system.parameters() if tensor.is_floating_point()}
    precision = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    precision = max(precision, torch.finfo(torch.float32).eps)
    possible = predictions[predictions > LEAST_LOG_PROB].abs()
    return ROUNDINGS * precision * (float(possible.max()) if len(possible) else 1.0)


def _fitting(system: System, probe: Sequence[int]) -> list[int]:
    """As much of the probe as fits, padding included."""
    for length in range(len(probe), 0, -1):
        try:
            system.check_length(length + 1 + max(PADDINGS))
        except UserError:
            continue
        return list(probe[:length])
    return list(probe[:1])


def _rows(effects: Sequence[Sequence[float | None]]) -> Effects:
    return tuple(tuple(row) for row in effects)


def _largest(one: Tensor, other: Tensor) -> list[float | None]:
    """The largest difference at each prediction of two (1, P, D) log-probabilities."""
    values: list[float | None] = (one - other).abs().amax((0, 2)).tolist()
    return values


class _Prober:
    """Predictions of a system for perturbed inputs.

    Our own systems get the same random numbers for each; a module from elsewhere that needs some is
    one whose predictions are not reproducible.
    """

    def __init__(self, system: System, source: Sequence[int] | None) -> None:
        self.system, self.source = system, source
        self.vocabulary, self.device = system.vocabulary, device_of(system)
        self.ordinary = ordinary_tokens(system.vocabulary)
        probe = torch.tensor([[system.vocabulary.bos, *random_tokens(system.vocabulary, 3)]])
        self.kind = self._log_prob(self._batch(probe)).kind
        self.whole_distribution = self._has_distributions(probe)

    def predict(self, tokens: Tensor, length: int | None = None) -> Tensor:
        """(B, P, D) log-probabilities: of each token at each position, D = V, or of the text's own.

        Beyond `length` the tokens are padding, at which there are no predictions.
        """
        batch = self._batch(tokens, length)
        if self.whole_distribution:
            values = self._distributions(batch)
        else:
            log_probs = self._log_prob(batch)
            values = log_probs.per_token
            if log_probs.per_sequence is not None:
                values = torch.cat([values, log_probs.per_sequence[:, None]], dim=1)
            values = values[..., None]
        if length is not None:
            beyond = slice(length - 1, tokens.shape[1] - 1)
            kept = [i for i in range(values.shape[1]) if i not in range(beyond.start, beyond.stop)]
            values = values[:, kept]
        return values.float().clamp(min=LEAST_LOG_PROB).cpu()

    def replaced(self, rows: Tensor, row: int, position: int, clean: Tensor) -> list[float | None]:
        """Largest effects on the first row of other tokens at a position of a row."""
        effects: list[list[float | None]] = []
        for id in self._others(int(rows[row, position])):
            changed = rows.clone()
            changed[row, position] = id
            effects.append(_largest(self.predict(changed)[:1], clean))
        return _greatest(effects)

    def padded(
        self, row: Tensor, clean: Tensor
    ) -> tuple[tuple[str, ...], list[list[float | None]]]:
        """Effects of positions after the end, of the padding id and of others."""
        length, names, effects = row.shape[1], [], []
        other = row.new_tensor([random_tokens(self.vocabulary, max(PADDINGS), seed=1)])
        for count in PADDINGS:
            padding = torch.full_like(other[:, :count], self.vocabulary.pad)
            for name, extra in (("padding", padding), ("padding by words", other[:, :count])):
                names.append(f"{count} × {name}")
                wide = torch.cat([row, extra], dim=1)
                effects.append(_largest(self.predict(wide, length), clean))
        return tuple(names), effects

    def neighbours(self, row: Tensor, clean: Tensor) -> tuple[list[int], list[list[float | None]]]:
        """The ids of a second text, and the effects of its presence and of each of its tokens."""
        ids = random_tokens(self.vocabulary, row.shape[1] - 1, seed=2)
        other = row.new_tensor([[int(row[0, 0]), *ids]])
        before, after = torch.cat([other, row]), torch.cat([row, other])
        second, first = self.predict(before)[1:], self.predict(after)[:1]
        present = _greatest([_largest(second, clean), _largest(first, clean)])
        by_token = [self.replaced(after, 1, position, first) for position in range(1, row.shape[1])]
        return ids, [present, *by_token]

    def _others(self, id: int) -> list[int]:
        """Ordinary tokens spread over the vocabulary, without one."""
        step = max(1, len(self.ordinary) // (REPLACEMENTS + 1))
        first = self.ordinary.index(id) if id in self.ordinary else 0
        spread = [
            self.ordinary[(first + number * step) % len(self.ordinary)]
            for number in range(1, REPLACEMENTS + 1)
        ]
        return [other for other in dict.fromkeys(spread) if other != id]

    def _batch(self, tokens: Tensor, length: int | None = None) -> Batch:
        rows = len(tokens)
        condition = None
        if self.source is not None:
            condition = Batch.collate([list(self.source)] * rows, self.vocabulary.pad)
        lengths = torch.full((rows,), tokens.shape[1] if length is None else length)
        batch = Batch(tokens=tokens, lengths=lengths, rows=torch.arange(rows), condition=condition)
        return batch.to(self.device)

    def _log_prob(self, batch: Batch) -> LogProbs:
        assert isinstance(self.system, LogProb)
        with evaluation_mode(self.system), torch.random.fork_rng(devices=[]):
            if not isinstance(self.system, WrappedModel):
                torch.manual_seed(0)  # estimates take their samples from it
            return self.system.log_prob(batch)

    def _has_distributions(self, probe: Tensor) -> bool:
        """Whether `_distributions` has the log-probabilities that scores are made of."""
        system = self.system
        if not isinstance(system, Assembly) or not isinstance(system.objective, NextToken):
            return False
        if isinstance(system, WrappedModel):
            return True
        if system.backbone.output_kind != "vectors":
            return False
        batch = self._batch(probe)
        log_probs = self._log_prob(batch)
        targets = self._distributions(batch).gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)
        same = torch.isclose(targets, log_probs.per_token.to(targets.dtype), atol=1e-3)
        return bool(same.all()) and log_probs.per_sequence is None

    def _distributions(self, batch: Batch) -> Tensor:
        """(B, T - 1, V) log-probabilities of every token at every position."""
        system = self.system
        assert isinstance(system, Assembly)
        view = system.objective.view(batch)
        with evaluation_mode(system):
            if isinstance(system, WrappedCausalLM):
                # The module's own, with padding: in use it may be batched by length.
                hidden = system.backbone.read(view.inputs, view.lengths)
            else:
                hidden = system.hidden(view).values
            return system.emission.log_probs(hidden)


def _greatest(effects: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The largest effect on each prediction; 0 if nothing was tried."""
    return [max(value or 0.0 for value in column) for column in zip(*effects, strict=True)]
