"""Scores against minicons' on the same checkpoints: masked in two ways, and left to right.

minicons gives padding, start and mask a probability, and we give them none; so their outputs have
a bias here that leaves them none either.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import lmlab
from lmlab.interop.hf.checkpoint_import import import_hf

transformers = pytest.importorskip("transformers")
# What it loads is on disk; it must not ask the Hub first.
os.environ["HF_HUB_OFFLINE"] = "1"
scorers = pytest.importorskip("minicons.scorer", reason="minicons is the oracle of these scores")

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = "the a cat dog bird sat ran on under mat tree s ' , . ##s ##ing ##er ##ed runn".split()
TEXTS = [
    "the cat sat on the mat.",
    "a dog, running under trees, sat on the bird's mat.",
    "birds",
    "the runner ran",
    "a zebra sat.",
    "cats sated dogs; birds tree'd",
]
NEVER = -1e4
"""A bias that leaves a token no probability."""


@pytest.fixture(autouse=True)
def restore_batch_encode_plus(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5 dropped the name by which minicons calls a tokenizer; calling it is the same.

    All that is computed stays minicons' own.
    """
    tokenizer = transformers.PreTrainedTokenizerFast
    monkeypatch.setattr(
        tokenizer,
        "batch_encode_plus",
        lambda self, *texts, **options: self(*texts, **options),
        raising=False,
    )


def randomise_weights(model: torch.nn.Module) -> None:
    """Weights large enough for scores with a spread."""
    for name, parameter in model.named_parameters():
        norm = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.5)


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of random weights with a WordPiece tokenizer, as its Hub folder would be."""
    folder = tmp_path_factory.mktemp("minicons") / "bert"
    vocabulary = {piece: id for id, piece in enumerate([*SPECIAL_TOKENS, *PIECES])}
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=40,
    )
    model = transformers.BertForMaskedLM(config).eval()
    randomise_weights(model)
    with torch.no_grad():
        model.cls.predictions.bias[[0, 2, 4]] = NEVER
    model.save_pretrained(folder)
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS, strict=True))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **{f"{role}_token": token for role, token in names.items()}
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("method", "theirs"), [("norm", "original"), ("within-word", "within_word_l2r")]
)
def test_masked_scores_equal_minicons(bert_folder, tmp_path, method, theirs):
    import_hf(str(bert_folder), tmp_path / "run")
    ours = lmlab.load(tmp_path / "run")
    scorer = scorers.MaskedLMScorer(str(bert_folder), "cpu")
    expected = scorer.token_score(TEXTS, PLL_metric=theirs)
    actual = ours.score(TEXTS, method=method)
    for score, tokens in zip(actual, expected, strict=True):
        assert score.tokens == len(tokens)
        values = [token.log_prob for token in score.per_token]
        assert values == pytest.approx([value for _, value in tokens], abs=1e-4)
    sums = scorer.sequence_score(TEXTS, reduction=lambda x: x.sum(0).item(), PLL_metric=theirs)
    assert [score.total for score in actual] == pytest.approx(sums, abs=1e-4)


def test_masked_scoring_methods_differ(bert_folder):
    """Where a word has several pieces, else the test above would show little."""
    scorer = scorers.MaskedLMScorer(str(bert_folder), "cpu")
    one, other = (
        scorer.sequence_score(TEXTS, reduction=lambda x: x.sum(0).item(), PLL_metric=metric)
        for metric in ("original", "within_word_l2r")
    )
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.1


def test_conditional_scores_equal_minicons(bert_folder, tmp_path):
    """Masked: each token of the continuation masked, all else visible."""
    import_hf(str(bert_folder), tmp_path / "run")
    ours = lmlab.load(tmp_path / "run")
    pairs = [("the cat", "sat on the mat."), ("a dog,", "running under trees"), ("birds", "ran")]
    scorer = scorers.MaskedLMScorer(str(bert_folder), "cpu")
    expected = scorer.conditional_score(
        [prefix for prefix, _ in pairs],
        [continuation for _, continuation in pairs],
        reduction=lambda x: x.sum(0).item(),
    )
    actual = list(ours.score_given(pairs, separator=" "))
    assert [score.total for score in actual] == pytest.approx(expected, abs=1e-4)
    assert {score.kind for score in actual} == {"pseudo"}


def test_left_to_right_scores_equal_minicons(tmp_path):
    """GPT-2: log p of each token after the start token, and of the end."""
    words = "the a cat dog bird sat ran on under mat tree".split()
    vocabulary = {word: id for id, word in enumerate(["<|endoftext|>", "<unk>", *words])}
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary), n_positions=30, n_embd=24, n_layer=2, n_head=3
    )
    config.bos_token_id = config.eos_token_id = 0
    model = transformers.GPT2LMHeadModel(config).eval()
    randomise_weights(model)
    model.save_pretrained(tmp_path / "theirs")
    inner = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    end = "<|endoftext|>"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=end, eos_token=end, pad_token=end, unk_token="<unk>"
    ).save_pretrained(tmp_path / "theirs")
    import_hf(str(tmp_path / "theirs"), tmp_path / "run")
    ours = lmlab.load(tmp_path / "run")
    texts = ["the cat sat on the mat", "a dog ran", "birds sat"]
    scorer = scorers.IncrementalLMScorer(str(tmp_path / "theirs"), "cpu")
    expected = scorer.token_score(texts, bos_token=True, eos_token=True)
    for score, tokens in zip(ours.score(texts), expected, strict=True):
        # Theirs has an entry for the start token, for which nothing is predicted.
        values = [value for _, value in tokens][1:]
        assert [token.log_prob for token in score.per_token] == pytest.approx(values, abs=1e-4)


def test_word_scores_equal_minicons(tmp_path):
    """GPT-2 with byte-level subwords, whose tokens begin with the space before a word."""
    texts = ["the runners sat, running under trees.", "a dog's bird ran!", "birds"]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts * 2, trainer)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=inner.get_vocab_size(), n_positions=60, n_embd=24, n_layer=2, n_head=3
    )
    config.bos_token_id = config.eos_token_id = 0
    model = transformers.GPT2LMHeadModel(config).eval()
    randomise_weights(model)
    model.save_pretrained(tmp_path / "theirs")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=end, eos_token=end, pad_token=end, unk_token=end
    ).save_pretrained(tmp_path / "theirs")
    import_hf(str(tmp_path / "theirs"), tmp_path / "run")
    scorer = scorers.IncrementalLMScorer(str(tmp_path / "theirs"), "cpu")
    # Their tokens of a word are those of the word by itself, so no word has a space inside.
    expected = scorer.word_score_tokenized(texts, str.split, bos_token=True)
    table = lmlab.score([tmp_path / "run"], texts, no_end=True)
    assert max(row.tokens for row in table.rows()) > 1
    for text, words in zip(table.texts, expected, strict=True):
        ours = text.words["run"]
        assert [word.word for word in ours] == [word for word, _ in words]
        values = [word.log_prob for word in ours]
        assert values == pytest.approx([value for _, value in words], abs=1e-4)
