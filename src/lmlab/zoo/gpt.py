"""GPT: decoder-only Transformer language model, predicting each token from those before it.

    h_t = Transformer(s_0 … s_t),  p(s_{t+1} = k | s_≤t) = softmax_k(e_k · h_t)

Pre-norm, learned positional embeddings, tied output. Set heads and depth by
`--set heads=8 layers=6`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import CausalLM
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, DecoderConfig, make_sizes

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners; Radford et "
    "al. 2018; Brown et al. 2020",
    source="003 DLM40, 004 §1.2",
    aliases=("DLM40", "gpt-mini", "gpt-2"),
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="transformers' GPT-2 with the same weights: tests/parity/test_hf_gpt2.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, DecoderConfig):
    """Settings of GPT."""


SIZES = make_sizes(Config, base={"length": 1024, "activation": "gelu-tanh"})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> CausalLM:
    tokens = make_token_embedding(config, vocabulary)
    return CausalLM(
        vocabulary=vocabulary,
        backbone=make_transformer(config, tokens, both_ways=False),
        # Sampled losses need a bias, so that scores of rare tokens can start low.
        emission=make_softmax(config, vocabulary, tokens, bias=config.objective != "next-token"),
        objective=NextToken(),
    )
