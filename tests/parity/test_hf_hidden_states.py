"""`lmlab encode` and `lmlab detect` against transformers, on exported runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import lmlab
from lmlab.interop.hf.checkpoint_export import export_hf

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
pytestmark = pytest.mark.xdist_group("hf hidden states")

TEXTS = ["the dog sees mary", "a cat", "the dogs that see a cat sleep"]
SETTINGS = {"layers": 3, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory):
    """A run that has moved away from its small first weights, and its folder for transformers."""
    folder, made = tmp_path_factory.mktemp("hidden"), {}

    def export(system: str) -> tuple[lmlab.LanguageModel, Path]:
        if system not in made:
            budget = {"size": "tiny", "steps": 20, "settings": SETTINGS, "quiet": True}
            lmlab.train(system, data="grammar", out=folder / system, **budget)
            export_hf(folder / system, folder / f"{system}-hf")
            made[system] = lmlab.load(folder / system), folder / f"{system}-hf"
        return made[system]

    return export


def framed(model: lmlab.LanguageModel, theirs: object, text: str) -> torch.Tensor:
    """(1, T) their ids of start, tokens and end, token by token."""
    vocabulary = model.tokenizer.vocabulary
    ours = [vocabulary.start, *model.tokenizer.encode(text), vocabulary.end]
    token_strings = [model.tokenizer.token(id) for id in ours]
    return torch.tensor([theirs.convert_tokens_to_ids(token_strings)])


@pytest.mark.parametrize("system", ["bert", "gpt"])
def test_layer_states_equal_transformers(exported, system):
    model, folder = exported(system)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = [
            network(framed(model, tokenizer, text), output_hidden_states=True).hidden_states
            for text in TEXTS
        ]
    assert {len(layers) for layers in expected} == {4}
    for layer in (0, 1, 2, 3, -1):
        actual = model.encode(TEXTS, per_token=True, layer=layer)
        for encoded, theirs in zip(actual, expected, strict=True):
            np.testing.assert_allclose(encoded.token_vectors, theirs[layer][0], atol=1e-4)
    # Pooled, the text's own tokens count, without start and end.
    for encoded, theirs in zip(model.encode(TEXTS, layer=1), expected, strict=True):
        np.testing.assert_allclose(encoded.vector, theirs[1][0, 1:-1].mean(0), atol=1e-4)
    for pooling, pick in (("first", 0), ("last", -2)):
        actual = model.encode(TEXTS, layer=2, pooling=pooling)
        for encoded, theirs in zip(actual, expected, strict=True):
            np.testing.assert_allclose(encoded.vector, theirs[2][0, pick], atol=1e-4)


def test_detection_equals_transformers(exported):
    model, folder = exported("electra")
    network = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for detected in model.detect(TEXTS):
        with torch.no_grad():
            logits = network(framed(model, tokenizer, detected.text)).logits[0, 1:-1]
        result = [token.probability for token in detected.tokens]
        np.testing.assert_allclose(result, logits.sigmoid(), atol=1e-5)
        assert [token.token for token in detected.tokens] == detected.text.split()
        likely = detected.replaced(threshold=max(result))
        assert [token.probability for token in likely] == [max(result)]
