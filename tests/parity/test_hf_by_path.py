"""Folders in the Hub's format by their path, against transformers' own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import lmlab

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = "the a cat dog bird sat ran on under mat tree".split()
TEXTS = ["the cat sat on a mat", "a dog ran", "bird", "the zebra sat under the tree"]
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LLAMA = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
GPT = {"unk": "<unk>", "bos": "<|endoftext|>", "eos": "<|endoftext|>"}
SIZE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
MORE = {"intermediate_size": 40, "max_position_embeddings": 30}
CAUSAL = {
    "gpt2": (
        lambda v: transformers.GPT2Config(
            vocab_size=v, n_positions=30, n_embd=24, n_layer=2, n_head=3
        ),
        GPT,
    ),
    "gpt_neox": (lambda v: transformers.GPTNeoXConfig(vocab_size=v, **SIZE, **MORE), GPT),
    "llama": (lambda v: transformers.LlamaConfig(vocab_size=v, **SIZE, **MORE), LLAMA),
    "gpt_neox with spare rows": (
        lambda v: transformers.GPTNeoXConfig(vocab_size=v + 9, **SIZE, **MORE),
        GPT,
    ),
}
MASKED = {
    "bert": lambda v: transformers.BertConfig(vocab_size=v, **SIZE, **MORE),
    "distilbert": lambda v: transformers.DistilBertConfig(
        vocab_size=v, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=30
    ),
}
IMPORTED = {"gpt2": "gpt", "llama": "llama", "bert": "bert"}
"""What lmlab knows itself, and as which system; the others are run by transformers."""


def vocabulary_of(special_tokens: dict[str, str]) -> list[str]:
    return [*dict.fromkeys(special_tokens.values()), *WORDS]


def save(model, special_tokens: dict[str, str], folder: Path):
    """Weights large enough for logits with a spread, and a tokenizer of words."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = ("norm" in name.lower() or ".ln_" in name) and name.endswith("weight")
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 + float(norm))
    model.save_pretrained(folder)
    words = {word: id for id, word in enumerate(vocabulary_of(special_tokens))}
    inner = Tokenizer(models.WordLevel(words, special_tokens["unk"]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = {f"{role}_token": token for role, token in special_tokens.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(folder)
    return model.eval()


def ids_of(text: str, special_tokens: dict[str, str]) -> list[int]:
    words = vocabulary_of(special_tokens)
    return [words.index(w if w in words else special_tokens["unk"]) for w in text.split()]


def mask_unpredictable(
    logits: torch.Tensor, special_tokens: dict[str, str], size: int
) -> torch.Tensor:
    """Their logits with what is never predicted here left out: padding, start, mask, spare rows."""
    roles = [special_tokens.get(role) for role in ("pad", "cls", "bos", "mask")]
    out = [
        vocabulary_of(special_tokens).index(t)
        for t in roles
        if t and t != special_tokens.get("eos")
    ]
    logits = logits.clone()
    logits[..., out] = -torch.inf
    logits[..., size:] = -torch.inf
    return logits


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_scores_equal_transformers(tmp_path, name):
    make, special_tokens = CAUSAL[name]
    size = len(vocabulary_of(special_tokens))
    model = transformers.AutoModelForCausalLM.from_config(make(size))
    save(model, special_tokens, tmp_path / "theirs")
    before = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    ours = lmlab.load(tmp_path / "theirs")
    assert ours.card.name == IMPORTED.get(name, "theirs")
    start, end = (
        vocabulary_of(special_tokens).index(special_tokens[role]) for role in ("bos", "eos")
    )
    for text, score in zip(TEXTS, ours.score(TEXTS), strict=True):
        row = torch.tensor([[start, *ids_of(text, special_tokens), end]])
        logits = model(input_ids=row).logits[0, :-1]
        assert logits.std() > 1
        log_probs = mask_unpredictable(logits, special_tokens, size).log_softmax(-1)
        expected = log_probs.gather(1, row[0, 1:, None]).squeeze(1)
        actual = torch.tensor([token.log_prob for token in score.per_token])
        torch.testing.assert_close(actual, expected.to(actual), atol=1e-4, rtol=0)
        assert score.kind == "exact" and score.convention.start is (start != end)
        assert score.convention.window == 30 and score.unknown == text.count("zebra")
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == before


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_causal_greedy_decoding_equals_transformers(tmp_path, name):
    make, special_tokens = CAUSAL[name]
    model = transformers.AutoModelForCausalLM.from_config(make(len(vocabulary_of(special_tokens))))
    save(model, special_tokens, tmp_path / "theirs")
    [text] = lmlab.load(tmp_path / "theirs").sample(
        1, prefix="the cat", method="greedy", max_length=8
    )
    end = vocabulary_of(special_tokens).index(special_tokens["eos"])
    row = [end, *ids_of("the cat", special_tokens)]
    for _ in range(8):
        row.append(int(model(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
        if row[-1] == end:
            break
    expected = [vocabulary_of(special_tokens)[id] for id in row[1:] if id != end]
    assert text.text.split() == expected


@torch.no_grad()
@pytest.mark.parametrize("name", MASKED)
def test_masked_scores_and_fills_equal_transformers(tmp_path, name):
    """PLL(s) = Σ_t log p(s_t | s without s_t), a pass of theirs for each token."""
    size = len(vocabulary_of(BERT))
    model = transformers.AutoModelForMaskedLM.from_config(MASKED[name](size))
    save(model, BERT, tmp_path / "theirs")
    ours = lmlab.load(tmp_path / "theirs")
    assert ours.card.name == IMPORTED.get(name, "theirs")
    cls, sep, mask = (vocabulary_of(BERT).index(BERT[role]) for role in ("cls", "sep", "mask"))
    for text, score in zip(TEXTS, ours.score(TEXTS), strict=True):
        row = [cls, *ids_of(text, BERT), sep]
        expected = []
        for position in range(1, len(row) - 1):
            hidden = torch.tensor([[*row[:position], mask, *row[position + 1 :]]])
            logits = mask_unpredictable(model(input_ids=hidden).logits[0, position], BERT, size)
            expected.append(float(logits.log_softmax(0)[row[position]]))
        actual = [token.log_prob for token in score.per_token]
        assert actual == pytest.approx(expected, abs=1e-4)
        assert score.kind == "pseudo"
    [filled] = ours.fill(["the [MASK] sat"], top=3)
    row = torch.tensor([[cls, *ids_of("the", BERT), mask, *ids_of("sat", BERT), sep]])
    theirs = mask_unpredictable(model(input_ids=row).logits[0, 2], BERT, size).log_softmax(0)
    theirs[
        sep
    ] = -torch.inf  # Special tokens fill no mask, and their probability is not redistributed.
    best = theirs.topk(3)
    options = filled.masks[0].options
    assert [each.text for each in options] == [
        vocabulary_of(BERT)[i] for i in best.indices.tolist()
    ]
    assert [each.log_prob for each in options] == pytest.approx(best.values.tolist(), abs=1e-4)


@torch.no_grad()
def test_wrapped_and_imported_models_score_the_same(tmp_path):
    """The same checkpoint through transformers and as a system of ours."""
    make, special_tokens = CAUSAL["gpt2"]
    model = transformers.AutoModelForCausalLM.from_config(make(len(vocabulary_of(special_tokens))))
    save(model, special_tokens, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    wrapped = lmlab.wrap(model, tokenizer)
    imported = lmlab.load(tmp_path / "theirs")
    assert wrapped.system.vocabulary == imported.system.vocabulary
    for one, other in zip(imported.score(TEXTS), wrapped.score(TEXTS), strict=True):
        assert one.total == pytest.approx(other.total, abs=1e-4)
        assert one.convention == other.convention
