"""BART: denoising encoder-decoder; the encoder reads a corrupted text, the decoder restores it.

    x = noise(s),  p(s | x) = Π_t p(s_t | s_<t, x)

Of the five noises (token masking, deletion, text infilling, sentence permutation, rotation) the
paper's choice is the default: sentences are permuted, then spans of Poisson(3) tokens, 30 % of the
text, become one <mask> each. A text's score is p(s | <mask>), with the whole text infilled: exact
and normalised, but poor after training with short spans alone, unless `full_mask_rate` is set. Left
out: random tokens for a tenth of the masks, which are in the published code but not in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.denoising_seq2seq import DenoisingSeq2Seq, InfillingDenoisingSeq2Seq
from lmlab.objectives.denoising import BARTDenoising, make_noise
from lmlab.zoo import _denoising as parts
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Lewis et al. 2020, BART: Denoising Sequence-to-Sequence Pre-training",
    source="004 §1.3.1",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens", "Infill"),
    objectives=("denoising",),
    conditional=True,
    oracle="transformers' BART with the same weights: tests/parity/test_hf_bart.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.PostNormDenoisingConfig):
    """Settings of BART."""

    noises: tuple[str, ...] = ("permutation", "infilling")
    """Noises, applied in order: masking, deletion, infilling, permutation, rotation."""
    rate: float = field(default=0.3, metadata={"at_least": 0, "at_most": 1})
    """Corruption rate of masking, deletion and infilling."""
    mean_span: float = field(default=3.0, metadata={"at_least": 0.5})
    """Mean span length of infilling (Poisson)."""


SIZES = make_sizes(Config, tiny={"full_mask_rate": 0.5}, base={"layers": 6, "length": 1024})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> DenoisingSeq2Seq:
    special_tokens = parts.make_special_tokens(config, vocabulary)
    sentences = parts.make_sentence_splitter(vocabulary)
    max_length = config.length - sum(map(len, special_tokens.source_frame))
    noises = [
        make_noise(
            name,
            rate=config.rate,
            mean=config.mean_span,
            max_length=max_length,
            sentences=sentences,
        )
        for name in config.noises
    ]
    objective = BARTDenoising(
        special_tokens, noises, sentences=sentences, full_mask_rate=config.full_mask_rate
    )
    return parts.make_denoising_seq2seq(
        config, vocabulary, objective, kind=InfillingDenoisingSeq2Seq
    )
