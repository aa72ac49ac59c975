"""The Vision Transformer against transformers' ViTForImageClassification with the same weights."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.seq2seq import ImageToTextLM
from lmlab.zoo import vit

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=28)
CONFIGS = {
    "digits": {"width": 24, "layers": 3, "heads": 3, "image_size": 8, "patch": 2},
    "large patches": {
        "width": 16,
        "layers": 2,
        "heads": 4,
        "image_size": 8,
        "patch": 4,
        "ffn_width": 40,
    },
    "one pixel each": {"width": 16, "layers": 1, "heads": 2, "image_size": 3, "patch": 1},
}
NUMBERS = range(5, 22)
"""Ids of the pixels 0 to 16; those after them are words."""


class Pieces:
    """A tokenizer of 17 numbers and words."""

    kind = "word"

    def token(self, id: int) -> str:
        return str(id - NUMBERS[0]) if id in NUMBERS else f"<{id}>"

    def encode(self, text: str) -> list[int]:
        return [NUMBERS[int(word)] for word in text.split()]


def build_pair(settings: dict):
    """Our system with the weights of a random ViT, which has a class for each token."""
    config = vit.Config(**{"norm_epsilon": 1e-12, **settings})
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=config.image_size,
            patch_size=config.patch,
            num_channels=1,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.ffn_width or 4 * config.width,
            num_labels=VOCABULARY.size,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        norm = "layernorm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.5)
    ours = vit.build(config, VOCABULARY).eval()
    ours.setup_tokenizer(Pieces())
    ours.load_state_dict({**ours.state_dict(), **our_names(theirs.state_dict(), ours)})
    return ours, theirs


def our_names(theirs: dict, ours: ImageToTextLM) -> dict:
    """ViT's names by hand; its class token is <s>, its positions the first of ours."""
    before, given = "backbone.transformer", "vit.embeddings"
    own = ours.state_dict()
    tokens = own["backbone.tokens.weight"].clone()
    tokens[VOCABULARY.start] = theirs[f"{given}.cls_token"][0, 0]
    positions = own[f"{before}.embedding.positions.table.weight"].clone()
    their_positions = theirs[f"{given}.position_embeddings"][0]
    positions[: len(their_positions)] = their_positions
    converted = {
        "backbone.tokens.weight": tokens,
        f"{before}.embedding.positions.table.weight": positions,
        "backbone.patches.weight": theirs[f"{given}.patch_embeddings.projection.weight"].flatten(1),
        "backbone.patches.bias": theirs[f"{given}.patch_embeddings.projection.bias"],
        "emission.weight": theirs["classifier.weight"],
        "emission.bias": theirs["classifier.bias"],
    }
    for kind in ("weight", "bias"):
        converted[f"{before}.stack.norm.{kind}"] = theirs[f"vit.layernorm.{kind}"]
        for layer in range(len(ours.backbone.transformer.stack.blocks)):
            converted |= one_layer(theirs, layer, kind)
    return converted


LAYER = {
    "mixer.output": "attention.o_proj",
    "mixer_connection.norm": "layernorm_before",
    "feed_forward_connection.norm": "layernorm_after",
    "feed_forward.up_projection": "mlp.fc1",
    "feed_forward.down_projection": "mlp.fc2",
}


def one_layer(theirs: dict, layer: int, kind: str) -> dict:
    here, there = f"backbone.transformer.stack.blocks.{layer}", f"vit.layers.{layer}"
    parts = [theirs[f"{there}.attention.{name}_proj.{kind}"] for name in "qkv"]
    converted = {f"{here}.mixer.qkv_projection.{kind}": torch.cat(parts)}
    for our_part, their_part in LAYER.items():
        converted[f"{here}.{our_part}.{kind}"] = theirs[f"{there}.{their_part}.{kind}"]
    return converted


def random_images(side: int, rows: int = 5) -> torch.Tensor:
    """(B, side, side) greys from 0 to 16."""
    return torch.randint(0, 17, (rows, side, side), generator=torch.Generator().manual_seed(1))


def as_condition(images: torch.Tensor) -> Batch:
    """The images as the text that a batch is given: <s>, numbers row by row, </s>."""
    start, end = VOCABULARY.start, VOCABULARY.end
    texts = [[start, *(NUMBERS[grey] for grey in image.flatten()), end] for image in images]
    return Batch.collate(texts, pad=VOCABULARY.pad)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_label_logits_equal_vit(settings: dict):
    """From numbers in a text to logits: theirs get the same image as floats from -1 to 1."""
    ours, theirs = build_pair(settings)
    images = random_images(settings["image_size"])
    expected = theirs(pixel_values=(images / 8 - 1)[:, None]).logits
    labels = [[VOCABULARY.start, 22 + row, VOCABULARY.end] for row in range(len(images))]
    batch = Batch.collate(labels, pad=0, condition=as_condition(images))
    hidden = ours.hidden(ours.objective.view(batch)).values
    assert expected.std() > 1
    torch.testing.assert_close(ours.emission.logits(hidden[:, 0]), expected, atol=1e-4, rtol=0)

    expected[:, list(VOCABULARY.unpredictable)] = float("-inf")
    by_label = expected.log_softmax(-1)[range(5), range(22, 27)]
    torch.testing.assert_close(ours.log_prob(batch).per_token[:, 0], by_label, atol=1e-4, rtol=0)


@torch.no_grad()
def test_first_step_equals_vit_and_stepping_equals_scoring():
    ours, theirs = build_pair(CONFIGS["digits"])
    images = random_images(8)
    logits = theirs(pixel_values=(images / 8 - 1)[:, None]).logits
    logits[:, list(VOCABULARY.unpredictable)] = float("-inf")
    state = ours.start(5, condition=as_condition(images))
    torch.testing.assert_close(
        ours.peek(state).log_probs, logits.log_softmax(-1), atol=1e-4, rtol=0
    )
    # A text of several words: what a caption would be.
    words = torch.randint(22, 28, (5, 4), generator=torch.Generator().manual_seed(2))
    texts = [[VOCABULARY.start, *row, VOCABULARY.end] for row in words.tolist()]
    batch = Batch.collate(texts, pad=0, condition=as_condition(images))
    at_once = ours.log_prob(batch).per_token
    for position in range(5):
        tokens = batch.tokens[:, position + 1]
        stepped = ours.peek(state).log_prob(tokens)
        torch.testing.assert_close(stepped, at_once[:, position], atol=1e-4, rtol=0)
        state = ours.advance(state, tokens)


@torch.no_grad()
def test_image_encoding_equals_vit_class_token():
    """The hidden state that transformers' classifier reads."""
    ours, theirs = build_pair(CONFIGS["digits"])
    images = random_images(8)
    expected = theirs.vit(pixel_values=(images / 8 - 1)[:, None]).last_hidden_state[:, 0]
    batch = Batch.collate([[2, 22, 3]] * 5, pad=0, condition=as_condition(images))
    torch.testing.assert_close(ours.encode(batch), expected, atol=1e-4, rtol=0)
