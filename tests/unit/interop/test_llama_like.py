"""Checkpoints in the format of Llama: which family a run becomes, and what is refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.interop.hf.family import CheckpointSpec, families, family_of_system
from lmlab.zoo import llama


def exported_as(**settings: Any) -> str:
    config = asdict(llama.Config(**settings))
    family = family_of_system("llama", config)
    shape = CheckpointSpec(settings=config, vocabulary=Vocabulary(size=23), rows=23)
    assert family.their_config(shape)["model_type"] == family.model_type
    return family.model_type


def imported(model_type: str, **config: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return families()[model_type].our_settings(
        {**sizes, "num_key_value_heads": 2, **config},
        frozenset(),
        None,  # type: ignore[arg-type]
    )


def test_family_is_the_first_that_can_express_the_settings() -> None:
    assert exported_as() == exported_as(dropout=0.3) == "llama"
    assert exported_as(attention="window:8") == "mistral"
    assert exported_as(qkv_biases=True) == "qwen2"
    assert exported_as(query_key_norm=True) == "qwen3"
    config = asdict(llama.Config())
    assert family_of_system("llama", config, model_type="mistral").model_type == "mistral"
    assert family_of_system("llama", config, model_type="qwen2").model_type == "llama"


def test_settings_of_no_family_are_refused() -> None:
    with pytest.raises(UserError, match="has qkv_biases=True, which a llama checkpoint can't"):
        exported_as(qkv_biases=True, query_key_norm=True)
    with pytest.raises(UserError, match=r"attention=global:2, .* only express a sliding window"):
        exported_as(attention="global:2")
    with pytest.raises(UserError, match="has positions='alibi'"):
        exported_as(positions="alibi")


def test_old_and_new_entries_of_rotary_positions() -> None:
    """`rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5."""
    old = imported("llama", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = imported(
        "llama", rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    )
    assert old == new
    assert old["rotary_base"] == 5e5 and old["rotary_scaling"] == "linear:2"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "llama3 or dynamic .* 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor .* must be 1 .* got 0.5"),
        ({"rope_parameters": [1]}, r"rope_parameters .* must be an object .* got \[1\]"),
        ({"attention_bias": True}, "attention_bias .* must be False for llama, got True"),
        ({"num_key_value_heads": 3}, "invalid for llama|multiple of key_value_heads"),
        ({"rope_theta": "large"}, "rope_theta .* must be a value such as 10000.0, got 'large'"),
    ],
)
def test_config_that_is_not_supported_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        imported("llama", **config)


def test_dynamic_scaling_is_noted() -> None:
    config = {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64}
    [note] = families()["llama"].import_notes(config)
    assert note.startswith("dynamic scaling of rotary positions was left out") and "(64)" in note
    assert imported("llama", **config)["rotary_scaling"] == "none"
    assert families()["llama"].import_notes({}) == []


def test_mistral_window_as_long_as_the_text_is_dense() -> None:
    assert imported("mistral", max_position_embeddings=64)["attention"] == "dense"
    window = imported("mistral", max_position_embeddings=64, sliding_window=16)
    assert window["attention"] == "window:16"
