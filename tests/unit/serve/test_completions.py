"""Completions: batches of prompts, offsets, stop strings, what is streamed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.data.tokenizers import train_tokenizer
from lmlab.sampling.prompt_batches import (
    PredictedToken,
    PromptRow,
    check_prompt_length,
    decode_prompts,
)
from lmlab.serve.completion_text import GrowingText, decode_ids, encode_text, find_stop, streamable
from lmlab.serve.completions import Choice, CompletionChunk, CompletionSettings, usage

LETTERS = "ab."
TEXTS = ["hello  world", " a b ", "中国 🙂 x", "", "\u202e\x00 <s>"]


@pytest.fixture(scope="module")
def model() -> lmlab.LanguageModel:
    """p(next | last): a after b and b after a with 0.7, the end with 0.2, the same with 0.1."""
    rows = torch.tensor([[0.1, 0.7, 0.2], [0.7, 0.1, 0.2], [0.6, 0.2, 0.2]]).log()
    letters = SimpleNamespace(
        vocab_size=3,
        encode=lambda text: [LETTERS.index(letter) for letter in text],
        decode=lambda ids: "".join(LETTERS[id] for id in ids),
    )
    return lmlab.wrap(torch.nn.Embedding.from_pretrained(rows), letters, end=".")


def decoded(model: lmlab.LanguageModel, *rows: dict) -> list[list[PredictedToken]]:
    """The tokens of each row, decoded in one batch."""
    received: list[list[PredictedToken]] = [[] for _ in rows]

    def receiver(number: int):
        return lambda token: received[number].append(token) or True

    made = [
        PromptRow(receive=receiver(number), finish=lambda: None, **row)
        for number, row in enumerate(rows)
    ]
    decode_prompts(model.system, made)
    return received


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_prompts_are_scored_by_hand(model):
    """abb: 0.6 after the start, 0.7, 0.1; alternatives are the most probable, best first."""
    row = {"ids": (0, 1, 1), "max_tokens": 0, "scores_prompt": True, "alternatives": 2}
    [tokens] = decoded(model, row)
    expected = torch.tensor([0.6, 0.7, 0.1]).log().tolist()
    assert [token.log_prob for token in tokens] == pytest.approx(expected, abs=1e-6)
    assert [[id for id, _ in token.alternatives] for token in tokens[1:]] == [[1, 2], [0, 2]]
    assert not any(token.generated for token in tokens)


def test_rows_of_different_lengths_do_not_depend_on_company(model):
    rows = [
        {"ids": (0,) * size, "max_tokens": 6, "temperature": t, "top_p": p}
        for size, t, p in ((0, 1.0, 1.0), (5, 2.0, 1.0), (1, 1.0, 0.8), (9, 0.0, 1.0))
    ]

    def with_generators() -> list[dict]:
        return [row | {"generator": seeded(number)} for number, row in enumerate(rows)]

    together = decoded(model, *with_generators())
    alone = [decoded(model, row)[0] for row in with_generators()]
    assert [[t.id for t in row] for row in together] == [[t.id for t in row] for row in alone]
    assert [token.id for token in together[3]][9:] == [1, 0, 1, 0, 1, 0]  # greedy alternates


def test_sampled_frequencies_match_the_distribution(model):
    """2000 first tokens: 0.6, 0.2, 0.2 within five standard deviations (0.055)."""
    rows = [{"ids": (), "max_tokens": 1, "generator": seeded(seed)} for seed in range(2000)]
    drawn = [row[0].id for row in decoded(model, *rows)]
    for id, p in enumerate((0.6, 0.2, 0.2)):
        assert abs(drawn.count(id) / 2000 - p) < 0.055


def test_prompt_length_is_limited_by_the_window():
    system = SimpleNamespace(max_generation_length=lambda condition: 4)
    assert check_prompt_length(system, [0] * 3, 5) == 1
    assert check_prompt_length(system, [0] * 4, 0) == 0
    for size, tokens in ((4, 1), (5, 0)):
        with pytest.raises(UserError, match="at most 4 tokens at once"):
            check_prompt_length(system, [0] * size, tokens)


@pytest.mark.parametrize("kind", ["word", "char", "byte", "bpe", "wordpiece"])
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_joined_are_the_text(kind: str, text: str):
    tokenizer = train_tokenizer(kind, ["hello world a b", "中国"])
    encoded = encode_text(text, tokenizer)
    assert "".join(encoded.pieces()) == (text if encoded.ids else "")
    again = decode_ids(encoded.ids, tokenizer)
    assert again.ids == encoded.ids and "".join(again.pieces()) == again.text
    assert again.text == tokenizer.decode(encoded.ids)


def test_text_grows_by_whole_characters():
    tokenizer = train_tokenizer("byte", ["x"])
    growing = GrowingText(tokenizer)
    seen = []
    for id in tokenizer.encode("é🙂"):
        growing.add(id)
        seen.append(growing.text)
    assert seen == ["", "é", "é", "é", "é", "é🙂"]


def test_stop_strings():
    assert find_stop("abcabd", ["bd", "ca"]) == 2
    assert find_stop("abcabd", ["ab"], 1) == 3
    assert find_stop("abc", []) is None
    # "ab" may become "abc", "b" may not become anything.
    assert streamable("xxab", ["abc"]) == 2
    assert streamable("xxb", ["abc"]) == 3


def choice(model, prompt: str, **options) -> tuple[Choice, list[CompletionChunk]]:
    """A finished choice with its chunks."""
    chunks: list[CompletionChunk] = []
    settings = CompletionSettings(**{"temperature": 0.0, "logprobs": 0, **options})
    encoded = encode_text(prompt, model.tokenizer)
    made = Choice(0, encoded, settings, model.tokenizer, seed=0, send=chunks.append)
    decode_prompts(model.system, [made.row()])
    return made, chunks


def test_choice_stops_before_a_stop_string_and_streams_nothing_of_it(model):
    """Greedily a is followed by b and b by a: after 'a', babab…; 'aba' begins at 1."""
    made, chunks = choice(model, "a", max_tokens=9, stops=("aba",))
    assert (made.text, made.finish_reason, made.logprobs.tokens) == ("b", "stop", ["b"])
    assert "".join(chunk.text for chunk in chunks) == "b"
    assert [chunk.finish_reason for chunk in chunks][-1] == "stop"
    assert usage([made]) == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


def test_choice_echoes_its_prompt_with_offsets(model):
    made, chunks = choice(model, "ab", max_tokens=2, echo=True)
    assert (made.text, made.finish_reason) == ("abab", "length")
    assert made.logprobs.text_offset == [0, 1, 2, 3]
    expected = torch.tensor([0.6, 0.7, 0.7, 0.7]).log().tolist()
    assert made.logprobs.token_logprobs == pytest.approx(expected, abs=1e-6)
    assert "".join(chunk.text for chunk in chunks) == "abab"


def test_choice_without_tokens_is_finished(model):
    made, chunks = choice(model, "", max_tokens=0, echo=True)
    assert (made.text, made.finish_reason, len(chunks)) == ("", "length", 1)
