"""Initialisation from a pretrained encoder: same hidden states, or refused."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.assembly import ComposedSystem
from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.system_building import build_system, build_tiny

VOCABULARY = Vocabulary(size=9)
SIZES = {"width": 12, "layers": 2, "heads": 2, "length": 16, "dropout": 0.0}
BERT = SIZES | {"pre_norm": False, "embedding_norm": True, "segments": 2, "norm_epsilon": 1e-12}
TEXTS = Batch.collate([[2, 5, 6, 7, 8, 3], [2, 8, 5, 3]], pad=VOCABULARY.pad)
NAMES = ["ebm", "residual-ebm"]


def bert(seed: int = 1, **settings) -> ComposedSystem:
    system = build_system("bert", SIZES | settings, VOCABULARY, seed=seed)
    assert isinstance(system, ComposedSystem)
    return system


def initialised(name: str, encoder, **settings) -> ComposedSystem:
    base = build_tiny("lstm", VOCABULARY) if name == "residual-ebm" else None
    settings = BERT | settings
    system = build_system(name, settings, VOCABULARY, seed=2, base=base, encoder=encoder)
    assert isinstance(system, ComposedSystem)
    return system


def encode(system: ComposedSystem) -> torch.Tensor:
    view = View(inputs=TEXTS.tokens, lengths=TEXTS.lengths, attention_mask=FullMask())
    with torch.no_grad():
        return system.eval().hidden(view).values[TEXTS.mask()]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_copied_from_the_encoder_not_shared(name: str):
    encoder = bert()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    system = initialised(name, encoder)
    theirs = dict(encoder.backbone.named_parameters())
    ours = dict(system.backbone.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert torch.equal(encode(system), encode(encoder))
    assert not torch.equal(encode(initialised(name, None)), encode(encoder)), (
        "or nothing was copied"
    )
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


def test_causal_lm_can_be_the_pretrained_encoder():
    encoder = build_system("gpt", SIZES, VOCABULARY, seed=3)
    system = initialised(
        "ebm", encoder, pre_norm=True, embedding_norm=False, segments=0, norm_epsilon=1e-5
    )
    pairs = zip(system.backbone.parameters(), encoder.backbone.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_dropout_may_differ_from_the_encoder():
    system = initialised("ebm", bert(), dropout=0.3, attention_dropout=0.2)
    assert torch.equal(encode(system), encode(bert()))


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"width": 24}, "(embedding.norm.bias is (12,) there and (24,) here)"),
        ({"layers": 1}, "(stack.blocks.1 itself is Block there and missing here)"),
        ({"segments": 0}, "(embedding.segments itself is Embedding there and missing here)"),
        ({"pre_norm": True}, "is PostNorm there and PreNorm here"),
        # These have the same parameters but would compute different hidden states.
        ({"heads": 3}, "(stack.blocks.0.mixer.head_width is 6 there and 4 here)"),
        ({"activation": "relu"}, "feed_forward.activation is gelu there and relu here"),
    ],
)
def test_encoder_with_another_architecture_is_refused(settings: dict, difference: str):
    with pytest.raises(UserError, match="the encoder has a different architecture") as refused:
        initialised("residual-ebm", bert(), **settings)
    assert difference in str(refused.value)


@pytest.mark.parametrize("name", ["lstm", "t5", "ngram"])
def test_encoder_must_be_a_transformer_encoder(name: str):
    with pytest.raises(UserError, match=r"must be a run of a Transformer encoder"):
        initialised("ebm", build_tiny(name, VOCABULARY))
