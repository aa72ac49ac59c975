"""An incomplete part fails when it is made, and the error names its class and what it lacks."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import (
    AutoencoderBackbone,
    EncoderDecoderBackbone,
    ImageTextBackbone,
    LatentDecoder,
    SentenceEncoder,
    TwoStreamBackbone,
)
from lmlab.backbones.latent_parents import ParentPrior
from lmlab.backbones.rnn_decoders import AttentionDecoder
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.entity_memory import HiddenMemory
from lmlab.core.errors import UserError
from lmlab.core.parts import Backbone, Emission, HiddenStates, Objective
from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.state import State
from lmlab.core.system import TrainableSystem
from lmlab.core.view import View, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import EnergyEmission, JointEmission
from lmlab.layers.block import SublayerConnection
from lmlab.layers.hmm_parameters import HMMParameters
from lmlab.layers.input_embedding import PositionalEmbedding
from lmlab.layers.recurrent_cells import RecurrentCell
from lmlab.layers.relative_positions import PositionBias, RelativeValueEncoding
from lmlab.layers.sequence_mixer import CausalMixer, SequenceMixer
from lmlab.layers.switch_cells import SwitchCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.models.retrieval_base import DocumentStoreModel
from lmlab.objectives.denoising_base import CorruptedTextObjective
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.objective_interfaces import EnergyObjective, Seq2SeqObjective
from lmlab.retrieval.bi_encoders import BiEncoder
from lmlab.tasks.sequence_task import HeadTask


class Uniform(Emission):
    """Complete: the other methods of an emission follow from `log_probs`."""

    def log_probs(self, hidden: Tensor) -> Tensor:
        return torch.full((*hidden.shape[:-1], 4), 0.25).log()


class OnlyView(Objective):
    """Incomplete: it defines no log-probability."""

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        return causal_view(batch)


def incomplete(base: type) -> type:
    """A subclass that defines nothing."""
    return type(f"My{base.__name__}", (base,), {})


@pytest.mark.parametrize(
    ("base", "missing"),
    [
        (Backbone, {"forward"}),
        (Emission, {"log_probs"}),
        (JointEmission, {"log_probs", "joint"}),
        (EnergyEmission, {"energies"}),
        (Objective, {"view", "log_prob"}),
        (OnlyView, {"log_prob"}),
        (EnergyObjective, {"view"}),
        (Seq2SeqObjective, {"view", "log_prob", "source_view", "decoder_prefix"}),
        (CorruptedTextObjective, {"corrupt"}),
        (TrainableSystem, {"loss"}),
        (DocumentStoreModel, {"loss", "document_memory", "with_memory", "embed_documents"}),
        (SampledLoss, {"check_parts", "predictions"}),
        (HiddenMemory, {"forward"}),
        (SequenceMixer, {"forward"}),
        (CausalMixer, {"forward", "initial_state", "step"}),
        (RecurrentCell, {"run"}),
        (SwitchCell, {"steps"}),
        (SublayerConnection, {"sublayer_input", "sublayer_output"}),
        (PositionalEmbedding, {"forward"}),
        (PositionBias, {"forward"}),
        (RelativeValueEncoding, {"read"}),
        (HMMParameters, {"compute"}),
        (ParentPrior, {"scores"}),
        (SentenceEncoder, {"forward"}),
        (LatentDecoder, {"forward", "state_from_latents"}),
        (AutoencoderBackbone, {"forward", "encode"}),
        (EncoderDecoderBackbone, {"forward", "run_encoder", "init_decoder"}),
        (ImageTextBackbone, {"forward", "encode_image", "image_text_view"}),
        (TwoStreamBackbone, {"forward", "step", "query_next"}),
        (AttentionDecoder, {"decode_with_attention"}),
        (BiEncoder, {"encode", "encode_queries"}),
    ],
)
def test_incomplete_part_fails_when_it_is_made(base: type, missing: set[str]) -> None:
    part = incomplete(base)
    with pytest.raises(TypeError, match=part.__name__) as error:
        part()
    words = set(re.findall(r"\w+", str(error.value)))
    assert missing <= words
    assert part.__abstractmethods__ >= missing


class WithoutMasks(Backbone):
    """Complete but for a declaration: it names no attention mask that it supports."""

    width = 5

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        return HiddenStates(values=torch.zeros(*view.inputs.shape, 5))


def test_backbone_that_declares_no_mask_is_told_so() -> None:
    system = AutoregressiveLM(
        vocabulary=Vocabulary(size=7),
        backbone=WithoutMasks(),
        emission=Uniform(),
        objective=NextToken(),
    )
    message = (
        r"^WithoutMasks supports attention masks of kind none \(it declares no supported_masks\), "
        r"but this objective needs CausalMask\.$"
    )
    with pytest.raises(UserError, match=message):
        system.loss(Batch.collate([[2, 5, 3]], pad=0))


def test_sequence_task_with_a_head_lists_what_it_must_define() -> None:
    assert {"encode", "with_labels", "decode_answers", "merge_window_scores"} <= (
        HeadTask.__abstractmethods__
    )


def test_complete_parts_can_be_made() -> None:
    """The check above would pass if nothing could be made."""
    targets = torch.tensor([0, 3])
    expected = torch.full((2,), 0.25).log()
    assert torch.equal(Uniform().log_prob(torch.zeros(2, 5), targets), expected)
    assert not Assembly.__abstractmethods__
