"""Name tables: every way there and back, and every weight of both sides."""

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
    NameTable,
    Reshape,
    ResizeRows,
    Unsqueeze,
    WeightPair,
    linear_pairs,
    resolve_settings,
    weight_pair,
)
from lmlab.training.run_folder import build_system
from lmlab.zoo._transformer import TransformerConfig

BY_HEAD = Reshape(ours=(6, 4), theirs=(4, 2, 3), order=(1, 2, 0))
WAYS = {
    "same": (IDENTITY, (6, 4), [(6, 4)]),
    "transposed": (TRANSPOSE, (6, 4), [(4, 6)]),
    "joined": (CONCATENATE, (6, 4), [(2, 4), (2, 4), (2, 4)]),
    "by head": (BY_HEAD, (6, 4), [(4, 2, 3)]),
    "each by head": (ConcatenateMapped(BY_HEAD), (12, 4), [(4, 2, 3), (4, 2, 3)]),
    "unsqueezed": (Unsqueeze(ResizeRows(ours=6, theirs=6)), (6,), [(1, 6)]),
    "rows exchanged": (ResizeRows(ours=6, theirs=6, swapped_ids=(0, 1)), (6, 4), [(6, 4)]),
    "rows before": (ResizeRows(ours=6, theirs=8, first=2), (6, 4), [(8, 4)]),
    "rows behind": (ResizeRows(ours=6, theirs=9), (6, 4), [(9, 4)]),
}


@pytest.mark.parametrize(("way", "ours", "theirs"), WAYS.values(), ids=WAYS)
def test_there_and_back_is_the_same(way, ours, theirs):
    value = torch.randn(ours, generator=torch.Generator().manual_seed(0))
    there = way.to_theirs(value, len(theirs))
    assert [tuple(part.shape) for part in there] == theirs
    assert torch.equal(way.to_ours(there), value)


@pytest.mark.parametrize("name", [name for name in WAYS if "rows before" not in name])
def test_back_and_there_is_the_same_but_for_rows_that_one_side_has(name):
    way, ours, theirs = WAYS[name]
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in theirs]
    again = way.to_theirs(way.to_ours(values), len(theirs))
    kept = ours[0] if name == "rows behind" else None
    for value, found in zip(values, again, strict=True):
        assert torch.equal(found[:kept], value[:kept])
        assert kept is None or not found[kept:].any()


def test_a_map_by_head_is_read_row_by_row():
    """Ours at (head 1, number 2), row 1 · 3 + 2 = 5, is theirs at [:, 1, 2]."""
    value = torch.arange(24.0).view(4, 2, 3)
    assert torch.equal(BY_HEAD.to_ours([value])[5], value[:, 1, 2])


def test_positions_begin_at_their_row():
    table = torch.arange(5.0)[:, None]
    assert ResizeRows(ours=3, theirs=5, first=2).to_ours([table])[:, 0].tolist() == [2, 3, 4]


def test_rows_that_ours_alone_has_are_zero_and_dropped_again():
    way, table = ResizeRows(ours=4, theirs=3), torch.ones(3, 2)
    found = way.to_ours([table])
    assert found.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert torch.equal(way.to_theirs(found, 1)[0], table)


def small_table() -> NameTable:
    return NameTable(
        (weight_pair("e", "embedding"), *linear_pairs("a", "b")),
        {"output": "e"},
        {"head": "embedding"},
    )


def test_shared_weights_are_found_under_any_of_their_names():
    weight, other = torch.ones(2, 2), torch.zeros(2, 2)
    theirs = {"head": weight, "b.weight": other, "b.bias": other[0]}
    found = small_table().to_ours(small_table().without_tied_names(theirs))
    assert found.keys() == {"e", "output", "a.weight", "a.bias"}
    assert found["output"] is found["e"] and torch.equal(found["e"], weight)
    assert small_table().to_theirs(found).keys() == {"embedding", "b.weight", "b.bias"}


def test_shared_weights_that_differ_are_told():
    theirs = {"head": torch.ones(2), "embedding": torch.zeros(2)}
    with pytest.raises(UserError, match="head and embedding should be one shared weight"):
        small_table().without_tied_names(theirs)


def test_what_does_not_fit_is_told_by_name():
    table = NameTable((WeightPair("e", ("embedding",), ResizeRows(ours=3, theirs=3)),), {}, {})
    with pytest.raises(UserError, match=r"embedding has 2 rows, but config\.json declares 3"):
        table.to_ours({"embedding": torch.ones(2, 2)})
    joined = NameTable((WeightPair("e", ("q", "k"), CONCATENATE),), {}, {})
    with pytest.raises(UserError, match="q and k"):
        joined.to_ours({"q": torch.ones(2, 2), "k": torch.ones(2, 3)})


SYSTEMS = {name: (family, name) for family in families().values() for name in family.systems}


@pytest.mark.parametrize(("family", "name"), SYSTEMS.values(), ids=SYSTEMS)
def test_the_table_names_every_weight_once_and_goes_there_and_back(family, name):
    """Of each system's tiny size: names of ours are those of the system, and all of them return."""
    vocabulary = Vocabulary(size=23)
    settings = vars(system_module(name).SIZES["tiny"])
    system = build_system(name, settings, vocabulary, seed=0)
    extra = len(family.extra(settings, vocabulary))
    shape = CheckpointSpec(
        settings=resolve_settings(settings), vocabulary=vocabulary, rows=23 + extra, extra=extra
    )
    table, state = family.table(shape), system.state_dict()
    assert table.our_names == state.keys()
    assert len(set(table.their_names)) == len(table.their_names)
    assert len({each.ours for each in table.pairs}) == len(table.pairs)
    back = table.to_ours(table.to_theirs(state))
    assert back.keys() == state.keys()
    for key, value in state.items():
        assert torch.equal(back[key], value), key


@pytest.mark.parametrize(("family", "name"), SYSTEMS.values(), ids=SYSTEMS)
def test_every_setting_of_its_own_has_a_place(family, name):
    """Told, always the same, of no matter, or left behind: a new one must be one of these."""
    shared = {spec.name for spec in fields(TransformerConfig)}
    own = {spec.name for spec in fields(system_module(name).Config)} - shared
    assert (
        own
        <= family.expressible_settings()
        | family.fixed.keys()
        | family.own_settings
        | family.dropped_settings
    )


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_settings_go_there_and_back(family):
    """What a config.json of ours tells, read again, is the same in all that a weight depends on."""

    class Known:
        """A tokeniser of ours, which has no sentinels."""

        vocabulary = Vocabulary(size=23)

        def id(self, token: str) -> None:
            return None

    settings = resolve_settings(vars(system_module(family.systems[0]).SIZES["tiny"]))
    shape = CheckpointSpec(settings=settings, vocabulary=Known.vocabulary, rows=23)
    config = family.their_config(shape)
    names = frozenset(family.table(shape).their_names)
    again = resolve_settings(family.our_settings(config, names, Known()))
    said = family.expressible_settings() - {
        "decoder_prefix",
        "decoder_start",
        "sentinels",
        "sentinel_step",
    }
    sizes = {"decoder_layers", "generator_width", "generator_layers", "generator_heads"}
    for name in said - sizes - {"generator_ffn_width", "segments"}:
        assert again[name] == settings[name], name
