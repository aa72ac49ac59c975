"""`lmlab encode` on every system: text vectors do not depend on the batch, or a user error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.core.protocols import Encode, EncodeTokens
from lmlab.language_model import LanguageModel
from lmlab.scoring.text_embeddings import EncodeLayers, LayerStates, TextEmbedding

from .claims import claim
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


def claim_vector(vector: np.ndarray | None, what: str) -> None:
    claim(vector is not None and vector.ndim == 1, f"{what} is {vector}, expected one dimension")
    claim(vector is not None and np.isfinite(vector).all(), f"{what} is not finite: {vector}")


def claim_equal(got: np.ndarray, expected: np.ndarray, what: str, atol: float = 1e-5) -> None:
    claim(
        got.shape == expected.shape and np.allclose(got, expected, rtol=1e-7, atol=atol),
        f"{what} differ: shapes {got.shape} and {expected.shape}"
        + (f", by {np.abs(got - expected).max():.3g}" if got.shape == expected.shape else ""),
    )


def test_text_vectors_do_not_depend_on_the_batch(specimen: Specimen) -> None:
    model = LanguageModel(specimen.model)
    if specimen.name in NO_HIDDEN_STATES | NO_TEXT_ALONE:
        with pytest.raises(UserError, match=f"^{specimen.name} "):
            model.encode(TEXTS)
        return
    together = model.encode(TEXTS)
    for text, encoded in zip(TEXTS, together, strict=True):
        claim(encoded.text == text, f"the vector of {text!r} comes with the text {encoded.text!r}")
        claim_vector(encoded.vector, f"the vector of {text!r}")
        [alone] = model.encode([text])
        claim_equal(encoded.vector, alone.vector, f"the vector of {text!r} with others and alone")
    apart = np.abs(together[0].vector - together[2].vector).max()
    claim(apart > 1e-6, f"{TEXTS[0]!r} and {TEXTS[2]!r} have one and the same vector")


def claim_tokens(encoded: TextEmbedding) -> None:
    """The tokens of "a a a b", their characters, and which of them are special."""
    claim(encoded.tokens[1:5] == ("a", "a", "a", "b"), f"the tokens are {encoded.tokens}")
    spans = ((0, 1), (2, 3), (4, 5), (6, 7))
    claim(encoded.spans[1:5] == spans, f"the tokens' characters are {encoded.spans}")
    ordinary = [i for i, special in enumerate(encoded.special) if not special]
    claim(ordinary == [1, 2, 3, 4], f"the tokens {ordinary} are marked as ordinary, not 1 to 4")


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
    claim_tokens(own[0])
    try:
        depth = LayerStates(system, specimen.name, 0).depth
    except UserError:
        # Another's system may have no layers; of ours it is known which have none.
        known = specimen.name in HAS_NO_LAYERS or is_added(specimen)
        claim(known, f"{specimen.name} gives no layers, and is not in HAS_NO_LAYERS")
        with pytest.raises(UserError, match=f"{specimen.name}: it has no layers"):
            model.encode(TEXTS, layer=0)
        return
    claim(specimen.name not in HAS_NO_LAYERS, f"{specimen.name} has layers: HAS_NO_LAYERS is wrong")
    for layer in range(depth + 1):
        result = model.encode(TEXTS, per_token=True, layer=layer)
        below = model.encode(TEXTS, per_token=True, layer=layer - depth - 1)
        for one, other, text in zip(result, below, own, strict=True):
            rows, tokens = one.token_vectors.shape[0], len(text.tokens)
            claim(
                rows == tokens == len(one.tokens),
                f"layer {layer} has {rows} vectors for the {tokens} tokens of {text.text!r}",
            )
            counted = f"layers {layer} and {layer - depth - 1}, which are one,"
            claim_equal(one.token_vectors, other.token_vectors, counted, atol=0)
        if layer == 0:
            # What a token is embedded as knows nothing of the other tokens before its position.
            first, again = (result[text].token_vectors[1] for text in (0, 3))
            claim_equal(first, again, "embeddings of the first token in two texts")
        if layer == depth and not isinstance(system, EncodeLayers):
            for one, text in zip(result, own, strict=True):
                what = f"the last layer and the system's own vectors of {text.text!r}"
                claim_equal(one.token_vectors, text.token_vectors, what)
    for wrong in (depth + 1, -depth - 2):
        with pytest.raises(UserError, match=f"between {-depth - 1} and {depth}"):
            model.encode(TEXTS, layer=wrong)
