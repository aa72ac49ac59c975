"""Filling in with imported checkpoints against transformers' own logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import lmlab
from lmlab.interop.hf.checkpoint_export import export_hf
from lmlab.interop.hf.checkpoint_import import import_hf

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = "the a cat dog bird sat ran on under mat tree".split()
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
T5 = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
SENTINELS = [f"<extra_id_{number}>" for number in (4, 3, 2, 1, 0)]


def save(model, special_tokens: dict[str, str], tail: list[str], folder: Path) -> None:
    """Weights large enough for logits with a spread, and a tokenizer of words."""
    for name, parameter in model.named_parameters():
        norm = "norm" in name.lower() and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=2.0 if "shared" in name else 0.5)
    model.save_pretrained(folder)
    vocabulary = [*special_tokens.values(), *WORDS, *tail]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, special_tokens["unk"])
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        **{f"{role}_token": token for role, token in special_tokens.items()},
        additional_special_tokens=tail,
    ).save_pretrained(folder)


@torch.no_grad()
@pytest.mark.parametrize("mask_token", ["[MASK]", "<mask>"])
def test_bert_fill_equals_transformers(tmp_path, mask_token):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(BERT) + len(WORDS),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=30,
    )
    model = transformers.BertForMaskedLM(config).eval()
    save(model, BERT, [], tmp_path / "theirs")
    import_hf(str(tmp_path / "theirs"), tmp_path / "run")
    ours = lmlab.load(tmp_path / "run")
    [result] = ours.fill([f"the {mask_token} sat on a {mask_token}"], top=4)
    ids = [2, *(4 if w == "M" else 5 + WORDS.index(w) for w in "the M sat on a M".split()), 3]
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    never = [0, 2, 4]  # padding, start and mask are never predicted here
    for gap, position in zip(result.masks, (2, 6), strict=True):
        log_probs = (
            logits[position].index_fill(0, torch.tensor(never), -float("inf")).log_softmax(0)
        )
        log_probs[3] = -float("inf")  # the end is predicted, but fills no gap
        best = log_probs.topk(4)
        vocabulary = [*BERT.values(), *WORDS]
        assert [each.text for each in gap.options] == [vocabulary[i] for i in best.indices.tolist()]
        values = torch.tensor([option.log_prob for option in gap.options])
        torch.testing.assert_close(values, best.values, atol=1e-4, rtol=0)


def test_exported_run_fills_as_the_original(tmp_path):
    """Byte pairs, whose <mask> takes the space before it; the candidates of their pipeline."""
    lines = ["The cats sat on the mats.", "Who ran? A dog, under the tree."] * 6
    (tmp_path / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    lmlab.train(
        "roberta",
        data=tmp_path / "corpus.txt",
        out=tmp_path / "run",
        size="tiny",
        tokenizer="bpe",
        steps=2,
        quiet=True,
    )
    export_hf(tmp_path / "run", tmp_path / "out")
    ask = transformers.pipeline("fill-mask", str(tmp_path / "out"), device="cpu")
    ours = lmlab.load(tmp_path / "run")
    text = "Who <mask> under the tree?"
    [result] = ours.fill([text], top=20)
    found_there = ask(text, top_k=len(ask.tokenizer))
    theirs = {each["token"]: each["score"] for each in found_there}
    # Padding, start and mask are never predicted here.
    never = ask.tokenizer.convert_tokens_to_ids(["<pad>", "<s>", "<mask>"])
    rest = 1 - sum(theirs[number] for number in never)
    options = result.masks[0].options
    numbers = ask.tokenizer.convert_tokens_to_ids([option.pieces[0] for option in options])
    special_tokens = {*never, ask.tokenizer.eos_token_id}
    assert numbers == [number for number in theirs if number not in special_tokens][:20]
    for number, option in zip(numbers, options, strict=True):
        assert option.probability == pytest.approx(theirs[number] / rest, rel=1e-4)


@torch.no_grad()
def test_t5_candidate_scores_equal_transformers(tmp_path):
    """log p(a | X_0 …) of their decoder; the blank is closed by any sentinel or the end."""
    torch.manual_seed(0)
    size = len(T5) + len(WORDS) + len(SENTINELS)
    config = transformers.T5Config(
        vocab_size=size,
        d_model=24,
        num_layers=2,
        num_heads=3,
        d_kv=8,
        d_ff=40,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    save(model, T5, SENTINELS, tmp_path / "theirs")
    import_hf(str(tmp_path / "theirs"), tmp_path / "run")
    ours = lmlab.load(tmp_path / "run")
    candidates = ["cat", "dog under a tree"]
    [result] = ours.fill(["the [MASK] sat on a mat"], among=candidates)
    ids = {word: 3 + position for position, word in enumerate(WORDS)}
    first = size - 1  # <extra_id_0>
    source = [ids["the"], first, *(ids[word] for word in "sat on a mat".split()), 1]
    for option in result.masks[0].options:
        answer = [ids[word] for word in option.text.split()]
        logits = model(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, first, *answer]])
        ).logits[0, 1:]
        logits[:, 0] = -float("inf")  # padding is never predicted here
        log_probs = logits.log_softmax(-1)
        answer_log_prob = sum(log_probs[position, token] for position, token in enumerate(answer))
        end_log_prob = log_probs[-1, [1, *range(size - 5, size)]].logsumexp(0)
        assert option.log_prob == pytest.approx(float(answer_log_prob + end_log_prob), abs=1e-4)
    assert {option.text for option in result.masks[0].options} == set(candidates)
    by_name, by_mask = ours.fill(
        ["the <extra_id_0> sat on a <extra_id_1>", "the [MASK] sat on a [MASK]"], top=3
    )
    assert [each.answers for each in by_name.candidates] == [
        each.answers for each in by_mask.candidates
    ]
    assert all(len(each.answers) == 2 for each in by_name.candidates)
