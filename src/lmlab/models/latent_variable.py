"""Variational autoencoder (VAE) and autoencoder of sentences, one latent vector; LM p(s | latent).

Both decode a sentence from a latent vector by a `LatentDecoder`. A latent-variable model has a
prior and is a distribution over sentences; an autoencoder has none and only reconstructs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import AutoencoderBackbone, LatentDecoder
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Emission
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State, TensorState
from lmlab.core.view import autoencoding_view, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM, DecodingState
from lmlab.objectives.elbo import ELBO
from lmlab.objectives.reconstruction import ReconstructionObjective


class LatentDecoderModel(Assembly):
    """Base class of latent-variable models and autoencoders: a latent decoder."""

    @property
    @abstractmethod
    def decoder(self) -> LatentDecoder: ...

    def state_from_latents(self, latents: Tensor) -> TensorState:
        return self.decoder.state_from_latents(latents)

    def given(self, latents: Tensor) -> LatentConditionalLM:
        """The distribution of sentences given latents (rows, L)."""
        return LatentConditionalLM(self, latents)

    @torch.no_grad()
    def decode(self, latents: Tensor, *, max_length: int = 100) -> list[list[int]]:
        """Greedy decoding of each latent (B, L), without </s>."""
        sequences = self.given(latents).write(max_length, lambda p: p.log_probs.argmax(-1))
        end = self.vocabulary.end
        return [ids[:-1] if ids and ids[-1] == end else ids for ids in sequences]

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        self.check_length(int(batch.lengths.max()))
        return super().loss(batch, state=state, generator=generator)

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        self.check_length(int(batch.lengths.max()))
        return super().log_prob(batch, state=state, generator=generator)

    def check_length(self, tokens: int) -> None:
        max_length = self.decoder.longest
        if max_length is not None and tokens > max_length + 1:
            raise UserError(
                f"a sentence may have at most {max_length + 1} tokens, including <s> and </s>, got "
                f"{tokens}; train with --set length={tokens}, or give shorter sentences."
            )


class VariationalAutoencoder(LatentDecoderModel):
    """VAE: p(s) = ∫ p(z) p(s | z) dz, a latent from the prior, then a sentence from the latent.

    The backbone is the decoder; the objective owns the prior and the inference network (encoder),
    which is not part of the distribution. Parts in `frozen` are neither trained nor put in training
    mode.
    """

    backbone: LatentDecoder
    objective: ELBO

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: LatentDecoder,
        emission: Emission,
        objective: ELBO,
        frozen: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.frozen = tuple(frozen)  # a tuple, so that they are not registered twice
        for part in self.frozen:
            part.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> VariationalAutoencoder:
        super().train(mode)
        for part in getattr(self, "frozen", ()):
            part.eval()
        return self

    @property
    def decoder(self) -> LatentDecoder:
        return self.backbone

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) the posterior mean of each sentence's latent."""
        self.check_length(int(batch.lengths.max()))
        return self.objective.encode(batch)

    @torch.no_grad()
    def sample(
        self,
        rows: int,
        *,
        max_length: int,
        condition: Batch | None = None,
        generator: torch.Generator | None = None,
    ) -> list[list[int]]:
        """Ancestral sampling: latents from the prior, then sentences token by token."""
        latents = self.objective.sample_latents(rows, generator=generator)

        def draw(distribution: Categorical) -> Tensor:
            log_probs = distribution.log_probs
            if generator is not None:
                log_probs = log_probs.to(generator.device)
            return Categorical(log_probs).sample(generator=generator).to(latents.device)

        return self.given(latents).write(max_length, draw)

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Internals of the parts at each sentence's posterior mean."""
        view = causal_view(batch)
        state = self.state_from_latents(self.encode(batch))
        return {
            **self.backbone.capture_internals(view, state),
            **self.emission.capture_internals(self.backbone(view, state)),
            **self.objective.capture_internals(self, batch),
        }


class Autoencoder(LatentDecoderModel):
    """Autoencoder: compresses a sentence to one vector and reconstructs it; no prior."""

    backbone: AutoencoderBackbone
    objective: ReconstructionObjective
    scorer_kind = "reconstruction"

    @property
    def window(self) -> int | None:
        """The decoder's maximum length; longer texts are scored window by window."""
        return self.decoder.longest

    @property
    def decoder(self) -> LatentDecoder:
        return self.backbone.decoder

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) the latent of each sentence."""
        self.check_length(int(batch.lengths.max()))
        return self.backbone.encode(autoencoding_view(batch))

    @torch.no_grad()
    def reconstruct(
        self,
        batch: Batch,
        *,
        latent_noise: float = 0.0,
        token_noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        """Reconstruction under noise, to measure robustness; without noise the same as `log_prob`.

        `latent_noise` is relative to a latent's norm, `token_noise` a fraction of its tokens.
        """
        self.check_length(int(batch.lengths.max()))
        return self.objective.reconstruct_with_noise(
            self, batch, latent_noise=latent_noise, token_noise=token_noise, generator=generator
        )


class LatentConditionalLM(AutoregressiveLM):
    """The distribution of sentences given latents: p(s | z) = Π_t p(s_t | s_<t, z).

    One latent is shared by any number of rows; several give one row each. It has LogProb and Step,
    so beam search, greedy decoding and scoring apply.
    """

    backbone: LatentDecoder

    def __init__(self, system: LatentDecoderModel, latents: Tensor) -> None:
        super().__init__(
            vocabulary=system.vocabulary,
            backbone=system.decoder,
            emission=system.emission,
            objective=system.objective,
        )
        self.latents = latents
        self.training = system.training

    def _state(self, rows: int) -> TensorState:
        if len(self.latents) not in (1, rows):
            raise UserError(
                f"the number of sequences must match the {len(self.latents)} given latents, got "
                f"{rows}; give one latent for all, or one for each."
            )
        return self.backbone.state_from_latents(self.latents.expand(rows, -1))

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        tokens = torch.full((rows,), self.vocabulary.bos, device=self.latents.device)
        return self._step(self._state(rows), tokens)

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        initial_state = self._state(len(batch)) if state is None else state
        predictions = self.target_log_probs(causal_view(batch), initial_state)
        return LogProbs(per_token=predictions.to_dense(), kind="exact", state=predictions.state)

    def write(self, max_length: int, choose: Callable[[Categorical], Tensor]) -> list[list[int]]:
        """A sequence for each latent, token by token, up to its end token or `max_length`."""
        rows, end, decoder_length = len(self.latents), self.vocabulary.end, self.backbone.longest
        state, columns = self.start(rows), []
        unfinished = torch.ones(rows, dtype=torch.bool, device=self.latents.device)
        steps = max_length if decoder_length is None else min(max_length, decoder_length)
        for step in range(steps):
            chosen = choose(self.peek(state))
            columns.append(chosen)
            if end is not None:
                unfinished &= chosen != end
            if not unfinished.any() or step + 1 == steps:
                break
            state = self.advance(state, chosen)
        return [_truncate_at_end(row, end) for row in torch.stack(columns, 1).tolist()]


def _truncate_at_end(ids: list[int], end: int | None) -> list[int]:
    """Ids up to and including the first end token."""
    return ids[: ids.index(end) + 1] if end is not None and end in ids else ids
