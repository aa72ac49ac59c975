"""Weight mapping: transforms and name tables in both directions."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.interop.hf.family import CheckpointSpec, families
from lmlab.interop.hf.weight_mapping import (
    CONCATENATE,
    IDENTITY,
    TRANSPOSE,
    ConcatenateMapped,
    ConcatenateRows,
    NameTable,
    Reshape,
    ResizeRows,
    Unsqueeze,
    WeightPair,
    linear_pairs,
    resolve_settings,
    weight_pair,
)
from lmlab.training.system_building import build_system
from lmlab.zoo._transformer_config import TransformerConfig

BY_HEAD = Reshape(ours=(6, 4), theirs=(4, 2, 3), order=(1, 2, 0))
TRANSFORMS = {
    "same": (IDENTITY, (6, 4), [(6, 4)]),
    "transposed": (TRANSPOSE, (6, 4), [(4, 6)]),
    "joined": (CONCATENATE, (6, 4), [(2, 4), (2, 4), (2, 4)]),
    "rows joined": (ConcatenateRows((3, 2, 1)), (6, 4), [(3, 4), (2, 4), (1, 4)]),
    "by head": (BY_HEAD, (6, 4), [(4, 2, 3)]),
    "concatenated by head": (ConcatenateMapped(BY_HEAD), (12, 4), [(4, 2, 3), (4, 2, 3)]),
    "unsqueezed": (Unsqueeze(ResizeRows(ours=6, theirs=6)), (6,), [(1, 6)]),
    "rows exchanged": (ResizeRows(ours=6, theirs=6, swapped_ids=(0, 1)), (6, 4), [(6, 4)]),
    "rows before": (ResizeRows(ours=6, theirs=8, first=2), (6, 4), [(8, 4)]),
    "rows behind": (ResizeRows(ours=6, theirs=9), (6, 4), [(9, 4)]),
}


@pytest.mark.parametrize(("transform", "ours", "theirs"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_weight_transform_round_trip_from_ours(transform, ours, theirs):
    value = torch.randn(ours, generator=torch.Generator().manual_seed(0))
    exported = transform.to_theirs(value, len(theirs))
    assert [tuple(part.shape) for part in exported] == theirs
    assert torch.equal(transform.to_ours(exported), value)


@pytest.mark.parametrize("name", [name for name in TRANSFORMS if "rows before" not in name])
def test_weight_transform_round_trip_from_theirs(name):
    transform, ours, theirs = TRANSFORMS[name]
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in theirs]
    again = transform.to_theirs(transform.to_ours(values), len(theirs))
    shared_rows = ours[0] if name == "rows behind" else None
    for value, restored in zip(values, again, strict=True):
        assert torch.equal(restored[:shared_rows], value[:shared_rows])
        assert shared_rows is None or not restored[shared_rows:].any()


def test_per_head_reshape_maps_rows():
    """Our row 1 · 3 + 2 = 5 (head 1, dimension 2) is their [:, 1, 2]."""
    value = torch.arange(24.0).view(4, 2, 3)
    assert torch.equal(BY_HEAD.to_ours([value])[5], value[:, 1, 2])


def test_resize_rows_skips_leading_positions():
    table = torch.arange(5.0)[:, None]
    assert ResizeRows(ours=3, theirs=5, first=2).to_ours([table])[:, 0].tolist() == [2, 3, 4]


def test_resize_rows_zero_pads_and_drops_extra_rows():
    transform, table = ResizeRows(ours=4, theirs=3), torch.ones(3, 2)
    resized = transform.to_ours([table])
    assert resized.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert torch.equal(transform.to_theirs(resized, 1)[0], table)


def small_table() -> NameTable:
    return NameTable(
        (weight_pair("e", "embedding"), *linear_pairs("a", "b")),
        {"output": "e"},
        {"head": "embedding"},
    )


def test_tied_weights_are_read_under_any_name():
    weight, other = torch.ones(2, 2), torch.zeros(2, 2)
    theirs = {"head": weight, "b.weight": other, "b.bias": other[0]}
    ours = small_table().to_ours(small_table().without_tied_names(theirs))
    assert ours.keys() == {"e", "output", "a.weight", "a.bias"}
    assert ours["output"] is ours["e"] and torch.equal(ours["e"], weight)
    assert small_table().to_theirs(ours).keys() == {"embedding", "b.weight", "b.bias"}


def test_tied_weights_that_differ_are_refused():
    theirs = {"head": torch.ones(2), "embedding": torch.zeros(2)}
    with pytest.raises(UserError, match="head and embedding should be one shared weight"):
        small_table().without_tied_names(theirs)


def test_shape_mismatch_is_reported_by_weight_name():
    table = NameTable((WeightPair("e", ("embedding",), ResizeRows(ours=3, theirs=3)),), {}, {})
    with pytest.raises(UserError, match=r"embedding has 2 rows, but config\.json declares 3"):
        table.to_ours({"embedding": torch.ones(2, 2)})
    joined = NameTable((WeightPair("e", ("q", "k"), CONCATENATE),), {}, {})
    with pytest.raises(UserError, match="q and k"):
        joined.to_ours({"q": torch.ones(2, 2), "k": torch.ones(2, 3)})


SYSTEMS = {
    f"{name} as {family.model_type}": (family, name)
    for family in families().values()
    for name in family.systems
}


def tiny_settings(family, name):
    """The settings of a system's tiny size, at the values that the family's checkpoints have."""
    own = vars(system_module(name).SIZES["tiny"])
    return own | {key: value for key, value in family.fixed.items() if key in own}


@pytest.mark.parametrize(("family", "name"), SYSTEMS.values(), ids=SYSTEMS)
def test_name_table_covers_every_weight_and_round_trips(family, name):
    """For each system's tiny size: our names are those of the state dict, and all round-trip."""
    vocabulary = Vocabulary(size=23)
    settings = tiny_settings(family, name)
    system = build_system(name, settings, vocabulary, seed=0)
    extra = len(family.extra(settings, vocabulary))
    shape = CheckpointSpec(
        settings=resolve_settings(settings), vocabulary=vocabulary, rows=23 + extra, extra=extra
    )
    table, state = family.table(shape), system.state_dict()
    assert table.our_names == state.keys()
    assert len(set(table.their_names)) == len(table.their_names)
    assert len({pair.ours for pair in table.pairs}) == len(table.pairs)
    back = table.to_ours(table.to_theirs(state))
    assert back.keys() == state.keys()
    for key, value in state.items():
        assert torch.equal(back[key], value), key


@pytest.mark.parametrize(("family", "name"), SYSTEMS.values(), ids=SYSTEMS)
def test_every_system_setting_is_classified(family, name):
    """A setting is expressible, fixed, irrelevant to the checkpoint, or dropped."""
    shared = {spec.name for spec in fields(TransformerConfig)}
    own = {spec.name for spec in fields(system_module(name).Config)} - shared
    assert (
        own
        <= family.expressible_settings()
        | family.fixed.keys()
        | family.own_settings
        | family.dropped_settings
    )


def test_default_sizes_get_one_spelling():
    given = {"width": 8, "heads": 2, "head_width": 4, "ffn_width": 0, "embedding_width": 8}
    resolved = {"width": 8, "heads": 2, "head_width": 0, "ffn_width": 32, "embedding_width": 0}
    assert resolve_settings(given) == resolved == resolve_settings(resolved)
    other = {"width": 8, "heads": 2, "head_width": 3, "ffn_width": 5, "embedding_width": 6}
    assert resolve_settings(other) == other
    # A system of a plug-in that is no Transformer.
    assert resolve_settings({"rates": (0.5,)}) == {"rates": (0.5,)}


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_config_round_trip_keeps_settings(family):
    """A written config.json, read again, gives every setting that a weight depends on."""

    class TokenizerStub:
        """An lmlab tokenizer without sentinels."""

        vocabulary = Vocabulary(size=23)

        def id(self, token: str) -> None:
            return None

    settings = resolve_settings(tiny_settings(family, family.systems[0]))
    shape = CheckpointSpec(settings=settings, vocabulary=TokenizerStub.vocabulary, rows=23)
    config = family.their_config(shape)
    names = frozenset(family.table(shape).their_names)
    restored = resolve_settings(family.our_settings(config, names, TokenizerStub()))
    expressed = family.expressible_settings() - {
        "decoder_prefix",
        "decoder_start",
        "sentinels",
        "sentinel_step",
    }
    sizes = {"decoder_layers", "generator_width", "generator_layers", "generator_heads"}
    for name in expressed - sizes - {"generator_ffn_width", "segments"}:
        assert restored[name] == settings[name], name
