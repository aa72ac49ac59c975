"""`llama` against transformers' Llama, Mistral, Qwen2 and Qwen3 with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lmlab.core.attention_mask import CausalMask
from lmlab.core.system import System
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.interop.hf.family import CheckpointSpec, families
from lmlab.interop.hf.weight_mapping import resolve_settings
from lmlab.layers.block import BlockState
from lmlab.layers.kv_cache import KVCache
from lmlab.layers.sparse_attention import SparseKVCache
from lmlab.training.system_building import build_system

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=37)
TIME = 40
SIZE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "one key head": ("Llama", {"num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    "a key head per query head": ("Llama", {"num_key_value_heads": 6, "hidden_act": "gelu"}),
    "tied like SmolLM": ("Llama", {"tie_word_embeddings": True}),
    "wide heads": ("Llama", {"head_dim": 10}),
    "llama3 scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "linear scaling": ("Llama", {"rope_parameters": LINEAR}),
    "dynamic scaling": ("Llama", {"rope_parameters": DYNAMIC}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 5}),
    "mistral with a long window": ("Mistral", {"sliding_window": 64}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "qwen3 with its own head size": ("Qwen3", {"num_hidden_layers": 1}),
}


def build_theirs(name: str) -> Any:
    """A random model of transformers; norms around one, so that positions differ."""
    kind, config = CONFIGS[name]
    made = getattr(transformers, f"{kind}Config")(
        **{"vocab_size": VOCABULARY.size, **SIZE, **config}, attn_implementation="eager"
    )
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(made).eval()
    for parameter_name, parameter in theirs.named_parameters():
        norm = "norm" in parameter_name and parameter_name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.4)
    return theirs


def build_ours(theirs: Any) -> System:
    """Our system with its settings and weights."""
    family = families()[theirs.config.model_type]
    settings = family.our_settings(theirs.config.to_dict(), frozenset(), None)  # type: ignore[arg-type]
    shape = CheckpointSpec(
        settings=resolve_settings(settings), vocabulary=VOCABULARY, rows=VOCABULARY.size
    )
    table = family.table(shape)
    ours = build_system("llama", settings, VOCABULARY, seed=0).eval()
    ours.load_state_dict(table.to_ours(table.without_tied_names(theirs.state_dict())))
    return ours


@torch.no_grad()
def our_logits(ours: Any, tokens: torch.Tensor, lengths: torch.Tensor, state=None):
    view = View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())
    hidden = ours.hidden(view, state)
    return ours.emission.logits(hidden.values), hidden.state


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str) -> None:
    theirs = build_theirs(name)
    ours = build_ours(theirs)
    tokens = torch.randint(5, VOCABULARY.size, (3, TIME))
    lengths = torch.tensor([TIME, 27, 4])
    padding = torch.arange(TIME) < lengths[:, None]
    expected = theirs(tokens, attention_mask=padding.long()).logits[padding]
    actual = our_logits(ours, tokens, lengths)[0][padding]
    assert expected.std() > 1
    assert expected.std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("rows", [2, 33], ids=["fused", "plain products"])
@pytest.mark.parametrize("name", ["llama", "llama3 scaling", "mistral with a window", "qwen3"])
def test_cached_step_logits_equal_transformers(name: str, rows: int) -> None:
    """Token by token; the cache holds the heads of keys and values alone, 2 of 6."""
    theirs = build_theirs(name)
    ours = build_ours(theirs)
    tokens = torch.randint(5, VOCABULARY.size, (rows, 14))
    expected = theirs(tokens).logits
    state = ours.backbone.initial_state(rows)
    for position in range(tokens.shape[1]):
        logits, state = our_logits(ours, tokens[:, position, None], torch.ones(rows).long(), state)
        torch.testing.assert_close(logits[:, 0], expected[:, position], atol=1e-4, rtol=0)
    for block_state in state.layers:
        assert isinstance(block_state, BlockState)
        cache = block_state.mixer.cache if name.startswith("mistral") else block_state.mixer
        assert isinstance(cache, KVCache)
        assert isinstance(block_state.mixer, SparseKVCache) == name.startswith("mistral")
        assert cache.keys.shape[1] == cache.values.shape[1] == 2


@torch.no_grad()
def test_recorded_attention_equals_transformers() -> None:
    theirs = build_theirs("llama")
    ours = build_ours(theirs)
    tokens = torch.randint(5, VOCABULARY.size, (2, 9))
    view = View(inputs=tokens, lengths=torch.full((2,), 9), attention_mask=CausalMask())
    captured = ours.backbone.capture_internals(view)
    expected = theirs(tokens, output_attentions=True).attentions
    for layer, weights in enumerate(expected, 1):
        torch.testing.assert_close(
            captured[f"layer {layer} attention"].values, weights, atol=1e-5, rtol=0
        )


def test_gradients_equal_transformers() -> None:
    """Of the loss of the next token, for every weight; ours loads them by the same table."""
    theirs = build_theirs("qwen2")
    ours = build_ours(theirs)
    tokens = torch.randint(5, VOCABULARY.size, (2, 12))
    view = View(inputs=tokens, lengths=torch.full((2,), 12), attention_mask=CausalMask())
    logits = ours.emission.logits(ours.hidden(view).values)
    for model_logits in (logits, theirs(tokens).logits):
        torch.nn.functional.cross_entropy(
            model_logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        ).backward()
    family = families()["qwen2"]
    settings = family.our_settings(theirs.config.to_dict(), frozenset(), None)  # type: ignore[arg-type]
    table = family.table(
        CheckpointSpec(
            settings=resolve_settings(settings), vocabulary=VOCABULARY, rows=VOCABULARY.size
        )
    )
    expected = table.to_ours({n: p.grad for n, p in theirs.named_parameters()})
    for parameter_name, parameter in ours.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), parameter_name
        torch.testing.assert_close(
            parameter.grad, expected[parameter_name], atol=1e-4, rtol=1e-3, msg=parameter_name
        )
