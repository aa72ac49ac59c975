"""Batches: each row once per epoch, within the token budget, deterministic and resumable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.data import batches
from lmlab.data.batches import LengthBatches, MixedBatches, StreamBatches, shard_rows
from lmlab.data.corpus import Layout, Split
from lmlab.data.dataset import TokenDataset
from lmlab.data.readers import Example
from lmlab.data.tokenizers import train_tokenizer

WORDS = train_tokenizer("word", ["a b c"])


def dataset(count: int, layout: Layout = Layout(), longest: int = 12) -> TokenDataset:  # noqa: B008
    """Texts of 1 to `longest` words, with lengths sampled by a fixed seed."""
    lengths = np.random.default_rng(0).integers(1, longest, size=(count, 2), endpoint=True)
    examples = [
        Example(" ".join("abc"[(i + k) % 3] for k in range(n)), condition=" ".join("c" * m))
        for i, (n, m) in enumerate(lengths)
    ]
    split = Split.from_list(examples, identity=f"{count}-{longest}", name="train")
    return TokenDataset.build(split, WORDS, layout, progress=False)


def same_batches(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        first_batch.tokens.equal(second_batch.tokens) and first_batch.rows.equal(second_batch.rows)
        for first_batch, second_batch in zip(first, second, strict=True)
    )


@pytest.fixture(params=[2**20, 64])
def shard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Datasets smaller than a shard, and of several shards."""
    monkeypatch.setattr(batches, "SHUFFLE_SHARD", request.param)
    return int(request.param)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.usefixtures("shard")
def test_length_batches_yield_each_sequence_once_unchanged(shuffle: bool) -> None:
    data = dataset(300)
    source = LengthBatches(data, tokens_per_batch=50, shuffle=shuffle)
    yielded_rows: list[int] = []
    for batch in source.epoch(0):
        for tokens, length, row in zip(batch.tokens, batch.lengths, batch.rows, strict=True):
            assert tokens[:length].tolist() == data[int(row)].tolist()
            assert bool((tokens[length:] == 0).all())
            yielded_rows.append(int(row))
    assert sorted(yielded_rows) == list(range(300))
    assert sum(batch.count for batch in source.epoch(0)) == data.total_tokens


@pytest.mark.usefixtures("shard")
def test_padded_tokens_stay_within_the_budget() -> None:
    source = LengthBatches(dataset(300), tokens_per_batch=50)
    epoch_batches = list(source.epoch(0))
    assert max(batch.tokens.numel() for batch in epoch_batches) <= 50
    assert source.batches_per_epoch(0) == len(epoch_batches)


@pytest.mark.usefixtures("shard")
def test_mixed_batches_cover_all_rows_in_equal_batch_count() -> None:
    data = dataset(300)
    source = MixedBatches(data, tokens_per_batch=140, seed=1)
    by_length = LengthBatches(data, tokens_per_batch=140, seed=1)
    for epoch in (0, 1):
        epoch_batches = list(source.epoch(epoch))
        assert sorted(int(row) for batch in epoch_batches for row in batch.rows) == list(range(300))
        assert (
            len(epoch_batches)
            == source.batches_per_epoch(epoch)
            == by_length.batches_per_epoch(epoch)
        )
        assert same_batches(list(source.epoch(epoch, 5)), epoch_batches[5:])
    assert not same_batches(list(source.epoch(0)), list(source.epoch(1)))


def test_mixed_batches_have_the_corpus_length_distribution() -> None:
    """Lengths are uniform on 1 … 12 words, with variance (12² - 1) / 12.

    The mean length of a mixed batch of B rows has that variance divided by B; the means of batches
    sorted by length vary as much as the lengths themselves.
    """
    data, variance = dataset(3000), (12**2 - 1) / 12
    means, rows = {}, {}
    for kind in (MixedBatches, LengthBatches):
        epoch_batches = list(kind(data, tokens_per_batch=180).epoch(0))
        means[kind] = np.array([batch.lengths.double().mean().item() for batch in epoch_batches])
        rows[kind] = {len(batch) for batch in epoch_batches}
    assert max(rows[MixedBatches]) - min(rows[MixedBatches]) <= 1
    # With some 150 batches the relative error of the variance is √(2/150), about 0.12.
    rows_per_batch = 3000 / len(means[MixedBatches])
    assert means[MixedBatches].var() == pytest.approx(variance / rows_per_batch, rel=0.4)
    assert means[LengthBatches].var() > 0.5 * variance


@pytest.mark.usefixtures("shard")
def test_length_batches_have_little_padding() -> None:
    data = dataset(300)
    epoch_batches = list(LengthBatches(data, tokens_per_batch=50).epoch(0))
    padding = sum(batch.tokens.numel() - int(batch.lengths.sum()) for batch in epoch_batches)
    # For comparison: batches of the same sizes in corpus order.
    ends = np.cumsum([len(batch) for batch in epoch_batches])
    in_order = sum(
        len(lengths) * lengths.max() - lengths.sum()
        for lengths in np.split(data.lengths, ends[:-1])
    )
    assert padding < in_order / 5


def test_length_batches_fill_the_token_budget() -> None:
    # Ten sequences of 4 tokens (<s> a a </s>), budget 12: three batches of three, then one.
    split = Split.from_list(["a a"] * 10, identity="ten", name="train")
    data = TokenDataset.build(split, WORDS, Layout(), progress=False)
    sizes = [len(batch) for batch in LengthBatches(data, tokens_per_batch=12).epoch(0)]
    assert sorted(sizes) == [1, 3, 3, 3]


def test_sequence_longer_than_budget_gets_its_own_batch() -> None:
    split = Split.from_list(["a", "a " * 50, "a " * 60, "b"], identity="long", name="train")
    data = TokenDataset.build(split, WORDS, Layout(), progress=False)
    epoch_batches = list(LengthBatches(data, tokens_per_batch=10).epoch(0))
    assert sorted(batch.rows.tolist() for batch in epoch_batches if batch.tokens.shape[1] > 10) == [
        [1],
        [2],
    ]
    assert sorted(row for batch in epoch_batches for row in batch.rows.tolist()) == [0, 1, 2, 3]


@pytest.mark.usefixtures("shard")
def test_batch_order_depends_on_seed_and_epoch() -> None:
    data = dataset(300)
    make = lambda seed, epoch: list(  # noqa: E731
        LengthBatches(data, tokens_per_batch=50, seed=seed).epoch(epoch)
    )
    assert same_batches(make(0, 0), make(0, 0))
    assert not same_batches(make(0, 0), make(0, 1))
    assert not same_batches(make(0, 0), make(1, 0))
    assert len(make(0, 0)) == len(make(0, 1))
    widths = [batch.tokens.shape[1] for batch in make(0, 0)]
    assert widths != sorted(widths)  # short and long batches are shuffled over the epoch


@pytest.mark.usefixtures("shard")
def test_epoch_resumes_at_any_batch() -> None:
    source = LengthBatches(dataset(300), tokens_per_batch=50, seed=3)
    whole = list(source.epoch(2))
    for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        assert same_batches(list(source.epoch(2, start)), whole[start:])


def test_skipped_batches_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LengthBatches(dataset(300), tokens_per_batch=50)
    total = source.batches_per_epoch(0)
    built = []
    original = LengthBatches._batch
    monkeypatch.setattr(
        LengthBatches, "_batch", lambda self, rows: built.append(1) or original(self, rows)
    )
    assert len(list(source.epoch(0, total - 2))) == len(built) == 2


def test_unshuffled_batches_are_sorted_by_length() -> None:
    source = LengthBatches(dataset(100), tokens_per_batch=50, shuffle=False)
    order = [row for batch in source.epoch(0) for row in batch.rows.tolist()]
    lengths = source.dataset.lengths
    assert order == sorted(range(100), key=lambda row: (lengths[row], row))
    assert same_batches(list(source.epoch(0)), list(source.epoch(5)))


def test_pair_batches_have_conditions_within_the_budget() -> None:
    data = dataset(200, Layout(kind="pairs"))
    for batch in LengthBatches(data, tokens_per_batch=60).epoch(0):
        assert batch.condition is not None
        assert max(batch.tokens.numel(), batch.condition.tokens.numel()) <= 60
        for row, tokens, length in zip(
            batch.rows, batch.condition.tokens, batch.condition.lengths, strict=True
        ):
            assert tokens[:length].tolist() == data.condition(int(row)).tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 7, 20])
@pytest.mark.parametrize("bptt", [1, 5, 35, 10_000])
def test_stream_batches_predict_every_token_once_in_order(batch_size: int, bptt: int) -> None:
    data = dataset(40, Layout(kind="contiguous"))
    source = StreamBatches(data, batch_size=batch_size, bptt=bptt)
    epoch_batches = list(source.epoch(0))
    assert len(epoch_batches) == source.batches_per_epoch(0)
    assert [batch.continues_previous for batch in epoch_batches] == [
        index > 0 for index in range(len(epoch_batches))
    ]
    assert sum(batch.count for batch in epoch_batches) == data.total_tokens
    predicted = []
    for stream in range(batch_size):
        context: int | None = None
        for batch in epoch_batches:
            row = batch.tokens[stream, : int(batch.lengths[stream])].tolist()
            assert len(row) - 1 <= bptt
            if context is not None:
                assert row[0] == context  # it continues where the previous batch ended
            predicted += row[1:]
            context = row[-1]
    assert predicted == data.stream[1:].tolist()


def test_stream_row_lengths_differ_by_at_most_one_token() -> None:
    data = dataset(40, Layout(kind="contiguous"))
    epoch_batches = list(StreamBatches(data, batch_size=7, bptt=5).epoch(0))
    lengths = sum((batch.lengths - 1 for batch in epoch_batches), torch.zeros(7, dtype=torch.int64))
    assert int(lengths.max() - lengths.min()) <= 1


def test_stream_resumes_at_any_batch() -> None:
    source = StreamBatches(dataset(40, Layout(kind="contiguous")), batch_size=4, bptt=6)
    whole = list(source.epoch(0))
    assert same_batches(list(source.epoch(0, 3)), whole[3:])
    assert next(iter(source.epoch(0, 3))).continues_previous


def test_stream_batch_size_above_token_count_is_reduced() -> None:
    split = Split.from_list(["a"], identity="one", name="train")
    data = TokenDataset.build(split, WORDS, Layout(kind="contiguous"), progress=False)
    (batch,) = StreamBatches(data, batch_size=50, bptt=3).epoch(0)
    assert (len(batch), batch.count) == (2, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 50])
def test_shard_rows_partitions_a_batch(world: int) -> None:
    for batch in LengthBatches(dataset(100), tokens_per_batch=50).epoch(0):
        parts = [shard_rows(batch, rank, world) for rank in range(world)]
        assert sum(part.count for part in parts) == batch.count
        rows = sorted(row for part in parts if part.count for row in part.rows.tolist())
        assert rows == sorted(batch.rows.tolist())
        assert all(part.tokens.shape[1] == int(part.lengths.max()) for part in parts)
        assert all(len(part) >= 1 for part in parts)  # an idle process still takes part in the step


def test_shard_rows_is_constant_across_stream_batches() -> None:
    source = StreamBatches(dataset(40, Layout(kind="contiguous")), batch_size=5, bptt=6)
    for batch in source.epoch(0):
        assert shard_rows(batch, 1, 2).rows.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthBatches(dataset(1), tokens_per_batch=0), "at least 1, got 0"),
        (lambda: LengthBatches(dataset(1), tokens_per_batch=9, seed=-1), "0 or more"),
        (lambda: StreamBatches(dataset(1), batch_size=1, bptt=1), "need a contiguous corpus"),
        (
            lambda: StreamBatches(dataset(1, Layout(kind="contiguous")), batch_size=0, bptt=1),
            "at least 1, got 0 and 1",
        ),
    ],
)
def test_invalid_batch_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
