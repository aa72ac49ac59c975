"""`lmlab encode` on every system: vectors of a text depend on it alone, or one sentence says no."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.core.protocols import Encode, EncodeTokens
from lmlab.language_model import LanguageModel
from lmlab.scoring.hidden_layers import EncodeLayers, LayerStates

from .conftest import Specimen

TEXTS = ["a a a b", "b", "a b a b b b a", "a a b"]
NO_HIDDEN_STATES = {
    *("cbow", "ebm", "hmm", "independent", "local-crf", "local-crf-2", "local-hmm", "ngram"),
    *("gru-mixture", "lstm-mixture", "rnn-mixture"),
    *("parent", "parent-permuted", "parent-prior", "parent-typed", "pcfg", "remix-aligned"),
    *("renewal", "renewal-typed", "residual-ebm", "skipgram", "two-parents", "window-mixture"),
}
"""Counting, states of a chain or a tree, mixtures of several hidden states, energies, words."""
HAS_NO_LAYERS = {
    *("product-bound", "remix", "remix-rotated", "seq2seq", "seq2seq-attention", "slots"),
    *("slots-chain", "window", "window-remix", "window-remix-free", "window-remix-sphere"),
}
NO_TEXT_ALONE = {"vit"}


def is_added(specimen: Specimen) -> bool:
    """Whether a system is not one of this repository's (docs/add-a-system.md adds some)."""
    zoo = Path(__file__).resolve().parents[2] / "src" / "lmlab" / "zoo"
    return not (zoo / f"{specimen.name.replace('-', '_')}.py").is_file()


def test_vectors_of_a_text_do_not_depend_on_its_neighbours(specimen: Specimen) -> None:
    model = LanguageModel(specimen.model)
    if specimen.name in NO_HIDDEN_STATES | NO_TEXT_ALONE:
        with pytest.raises(UserError, match=f"^{specimen.name} "):
            model.encode(TEXTS)
        return
    together = model.encode(TEXTS)
    for text, encoded in zip(TEXTS, together, strict=True):
        assert encoded.text == text and encoded.vector is not None and encoded.vector.ndim == 1
        assert np.isfinite(encoded.vector).all()
        [alone] = model.encode([text])
        np.testing.assert_allclose(alone.vector, encoded.vector, atol=1e-5)
    assert np.abs(together[0].vector - together[2].vector).max() > 1e-6


def test_every_layer_has_a_vector_for_each_token(specimen: Specimen) -> None:
    model, system = LanguageModel(specimen.model), specimen.system
    if specimen.name in NO_HIDDEN_STATES | NO_TEXT_ALONE:
        return
    if isinstance(system, Encode) and not isinstance(system, EncodeTokens):
        for option in ({"per_token": True}, {"layer": 0}, {"pooling": "mean"}):
            with pytest.raises(UserError, match=f"does not apply to {specimen.name}"):
                model.encode(TEXTS, **option)
        return
    own = model.encode(TEXTS, per_token=True)
    assert own[0].tokens[1:5] == ("a", "a", "a", "b")
    assert own[0].spans[1:5] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert [i for i, special in enumerate(own[0].special) if not special] == [1, 2, 3, 4]
    try:
        depth = LayerStates(system, specimen.name, 0).depth
    except UserError:
        # Another's system may have no layers; of ours it is known which have none.
        assert specimen.name in HAS_NO_LAYERS or is_added(specimen)
        with pytest.raises(UserError, match=f"{specimen.name}: it has no layers"):
            model.encode(TEXTS, layer=0)
        return
    assert specimen.name not in HAS_NO_LAYERS
    for layer in range(depth + 1):
        found = model.encode(TEXTS, per_token=True, layer=layer)
        below = model.encode(TEXTS, per_token=True, layer=layer - depth - 1)
        for one, other, text in zip(found, below, own, strict=True):
            assert one.token_vectors.shape[0] == len(text.tokens) == len(one.tokens)
            np.testing.assert_array_equal(one.token_vectors, other.token_vectors)
        if layer == 0:
            # What a token is embedded as knows nothing of the other tokens before its position.
            np.testing.assert_allclose(
                found[0].token_vectors[1], found[3].token_vectors[1], atol=1e-5
            )
        if layer == depth and not isinstance(system, EncodeLayers):
            for one, text in zip(found, own, strict=True):
                np.testing.assert_allclose(one.token_vectors, text.token_vectors, atol=1e-5)
    for wrong in (depth + 1, -depth - 2):
        with pytest.raises(UserError, match=f"between {-depth - 1} and {depth}"):
            model.encode(TEXTS, layer=wrong)
