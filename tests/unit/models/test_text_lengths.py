"""Maximum lengths follow from the parts: the backbone's positions and the objective's framing."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from functools import cache

import pytest
import torch

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue, find_system, system_module
from lmlab.core.system import System, TrainableSystem
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.external_memory import tiny_external_memory
from lmlab.training.system_building import build_system

VOCABULARY = Vocabulary(size=40)
WORD = 7

EXTRA_POSITIONS = {
    # A next-token model never encodes the last token; an image's patches have their own positions.
    **dict.fromkeys(["gpt", "llama", "hybrid", "vit"], 0),
    # The whole text is encoded at once; so is a source, by an encoder.
    **dict.fromkeys(["roberta", "spanbert", "ernie", "mpnet", "span-joint", "electra", "glm"], 1),
    **dict.fromkeys(["set-transformer", "star-transformer", "eae", "fae"], 1),
    **dict.fromkeys(["transformer", "t5", "bart", "pegasus", "palm", "xlm"], 1),
    # A question or document of a retriever; the reader's further positions are for a document.
    **dict.fromkeys(["dpr", "realm", "rag-sequence", "rag-token"], 1),
    # Encoders with a position for each token of the text.
    **dict.fromkeys(["linear-autoencoder", "mlp-autoencoder"], 1),
    # A mask may stand for no token at all (`blank_rate`), beside all tokens.
    "mass": 2,
    # A text may be split in two, with one more separator.
    **dict.fromkeys(["bert", "bert-wwm", "albert", "cogltx", "cogqa", "unilm"], 2),
}
"""Positions of the setting `length` that a text of `window` tokens after the first leaves."""
SEGMENTS = {"xlnet": (64, 16, 128, 128), "transformer-xl": (None, 16, None, 256)}
"""Segment and memory length at size tiny, then small; no other system has any."""


def settings(name: str, size: str) -> dict[str, object]:
    return asdict(system_module(name).SIZES[size])


@cache
def built(name: str, size: str) -> System:
    card = find_system(name)
    base = built(card.base, "tiny") if card.base else None
    components = [built(part, "tiny") for part in card.components]
    memories = tiny_external_memory(card)
    config = settings(name, size)
    return build_system(
        name, config, VOCABULARY, seed=0, base=base, memories=memories, components=components
    )


def text(tokens: int) -> Batch:
    start, end = VOCABULARY.start, VOCABULARY.end
    assert start is not None and end is not None
    return Batch.collate([[start, *[WORD] * (tokens - 2), end]], VOCABULARY.pad)


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("name", list(catalogue()))
def test_window_follows_from_the_parts(name: str, size: str) -> None:
    if name == "knowbert":
        # It takes the texts of its base, which is tiny in both cases.
        expected: int | None = built("bert", "tiny").window
    elif name in EXTRA_POSITIONS:
        length = settings(name, size)["length"]
        assert isinstance(length, int)
        expected = length - EXTRA_POSITIONS[name]
        if name == "mass" and not settings(name, size)["blank_rate"]:
            expected += 1
    else:
        expected = None
    system = built(name, size)
    assert system.window == expected
    segment_length, memory_length = SEGMENTS.get(name, (None,) * 4)[2 * (size == "small") :][:2]
    assert (system.segment_length, system.memory_length) == (segment_length, memory_length)


@pytest.mark.parametrize("name", [*EXTRA_POSITIONS, "knowbert"])
def test_longest_text_is_accepted_and_one_token_more_refused(name: str) -> None:
    system = built(name, "tiny")
    assert system.window is not None
    longest = system.window + 1
    system.check_length(longest)
    sentence = rf"at most {longest} tokens, .* got {longest + 1}; give shorter|train with --set"
    with pytest.raises(UserError, match=sentence) as error:
        system.check_length(longest + 1)
    # The advice names the least length that would do.
    named = re.search(r"length=(\d+)", str(error.value))
    length = settings("bert" if name == "knowbert" else name, "tiny")["length"]
    assert named is not None and int(named.group(1)) == int(str(length)) + 1


@pytest.mark.parametrize(
    "name", [name for name in EXTRA_POSITIONS if not find_system(name).default_memories]
)
def test_longest_text_can_be_scored_and_trained_on(name: str) -> None:
    """It has a position for each input, whatever the framing adds in training."""
    system = built(name, "tiny").eval()
    assert system.window is not None and isinstance(system, TrainableSystem)
    batch = text(system.window + 1)
    with torch.no_grad():
        if isinstance(system, ComposedSystem):
            assert torch.isfinite(system.log_prob(batch).totals).all()
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            loss, _ = system.loss(batch, generator=generator)
            assert math.isfinite(float(loss.total))


def test_length_cannot_be_set_from_outside() -> None:
    with pytest.raises(AttributeError):
        built("gpt", "tiny").window = 5
