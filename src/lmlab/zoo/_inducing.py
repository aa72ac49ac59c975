"""What the Set Transformer is put together from."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.inducing import SetTransformer
from lmlab.core.errors import UserError
from lmlab.layers.inducing import InducedBlock
from lmlab.layers.initialising import initialise
from lmlab.zoo._sampled import MaskedSampledConfig
from lmlab.zoo._transformer import TransformerConfig, make_block, make_embedding, make_norm

POSITIONS = ("learned", "sinusoidal", "concatenated", "none")
"""Those that inputs carry: attention's own would ask where a point stands, and it is nowhere."""


@dataclass(frozen=True, kw_only=True)
class SetConfig(MaskedSampledConfig, TransformerConfig):
    """Settings of the Set Transformer."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding, so that words are as long as points."""
    points: int = field(default=16, metadata={"at_least": 1})
    """Inducing points of each layer."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden and predicted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in POSITIONS:
            raise UserError(
                f"inducing points stand nowhere, so positions are {', '.join(POSITIONS)}, and "
                f"{self.positions} came."
            )
        for name in ("silent_layers", "silent_heads", "shared_layers"):
            if getattr(self, name):
                raise UserError(
                    "all layers and heads of the Set Transformer speak, with parameters of their "
                    f"own, and {name} came; leave it out."
                )


def make_set_transformer(config: SetConfig, tokens: nn.Embedding) -> SetTransformer:
    """The backbone with its first weights."""
    backbone = SetTransformer(
        make_embedding(config, tokens),
        [make_induced(config) for _ in range(config.layers)],
        norm=make_norm(config) if config.pre_norm else None,
        width=config.width,
    )
    initialise(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone


def make_induced(config: SetConfig) -> InducedBlock:
    """One layer: the points gather, and the words read what they gathered."""
    gather, spread = make_block(config), make_block(config)
    return InducedBlock(gather, spread, points=config.points, width=config.width)
