"""Text encoders for an index: runs, and checkpoints pooled as in sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.interop.hf.sentence_encoders import POOLING_FUNCTIONS
from lmlab.interop.text_encoders import RunEncoder, open_encoder
from lmlab.training.run_folder import load_run

pytestmark = pytest.mark.xdist_group("text-encoders")  # shares its trained run
WORDS = "the a cat dog bird sat ran on under mat tree query: doc:".split()
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TEXTS = ["the cat sat", "a dog ran under the tree", "bird"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("encoders") / "bert"
    lmlab.train("bert", data="grammar", out=out, size="tiny", steps=2, quiet=True)
    return out


def test_run_encoder_is_independent_of_batching(run: Path):
    encoder, model = open_encoder(run), load_run(run)
    texts = ["the cat sleeps", "a dog sees mary", "mary"]
    vectors = encoder.encode_documents(texts)
    assert vectors.shape == (3, encoder.width) and vectors.dtype == np.float32
    for row, text in enumerate(texts):
        ids = [2, *model.tokenizer.encode(text), 3]  # <s> … </s>
        with torch.no_grad():
            alone = model.system.encode(Batch.collate([ids], pad=0))[0]
        np.testing.assert_allclose(vectors[row], alone.numpy(), atol=1e-5)
    # A system without a query encoder encodes queries and documents alike.
    np.testing.assert_array_equal(encoder.encode_queries(texts), vectors)
    assert encoder.encode_queries([]).shape == (0, encoder.width)


def test_run_encoder_uses_the_query_encoder(run: Path):
    model = load_run(run)
    model.system.encode_queries = lambda batch: 3 * model.system.encode(batch)
    encoder = RunEncoder(model)
    np.testing.assert_allclose(
        encoder.encode_queries(["mary"]), 3 * encoder.encode_documents(["mary"]), rtol=1e-6
    )


def test_text_longer_than_the_window_is_truncated_and_counted(run: Path):
    encoder = open_encoder(run)
    assert encoder.window is not None and encoder.truncated == 0
    fits = "cat " * (encoder.window - 2)
    longer, other = encoder.encode_documents([fits + "dog mary", fits])
    assert encoder.truncated == 1
    np.testing.assert_allclose(longer, other, atol=1e-6)


def test_encoder_fingerprint_depends_on_the_weights(run: Path):
    model = load_run(run)
    first, again = RunEncoder(model), open_encoder(run)
    assert first.description == again.description
    assert (first.description.name, first.description.path) == ("bert", str(run.resolve()))
    with torch.no_grad():
        next(model.system.parameters()).flatten()[0] += 1e-3
    assert RunEncoder(model).description.fingerprint != first.description.fingerprint


def test_system_without_encode_is_refused(tmp_path: Path):
    lmlab.train("ngram", data="grammar", out=tmp_path / "ngram", size="tiny", quiet=True)
    with pytest.raises(UserError, match="encoding documents needs a system with Encode"):
        open_encoder(tmp_path / "ngram")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A BERT without a head, like the Hub's sentence encoders, with a word tokenizer."""
    transformers = pytest.importorskip("transformers")
    transformers.set_seed(0)
    size = len(SPECIAL_TOKENS) + len(WORDS)
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=12,
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    inner = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([*SPECIAL_TOKENS, *WORDS])}, "[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(tmp_path)
    return tmp_path


def hidden_states(folder: Path, text: str) -> np.ndarray:
    """(T, W) the last hidden states of a text, special tokens included."""
    import transformers

    ids = [2, *(len(SPECIAL_TOKENS) + WORDS.index(word) for word in text.split()), 3]
    module = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return module(torch.tensor([ids])).last_hidden_state[0].numpy()


def write_pooling_config(folder: Path, *modules: str, **pooling: object) -> None:
    rows = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"st.models.{name}"}
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


def test_mean_pooling_is_the_default(checkpoint: Path):
    encoder = open_encoder(checkpoint)
    assert (encoder.width, encoder.window, encoder.description.name) == (8, 12, "bert")
    expected = [hidden_states(checkpoint, text).mean(0) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "by_hand"),
    [
        ({"pooling_mode_mean_tokens": True}, lambda h: h.mean(0)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda h: h[0]),
        ({"pooling_mode_max_tokens": True}, lambda h: h.max(0)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, lambda h: h.sum(0) / len(h) ** 0.5),
        ({"pooling_mode_lasttoken": True}, lambda h: h[-1]),
        ({"pooling_mode": "mean"}, lambda h: h.mean(0)),
        (
            {"pooling_mode_weightedmean_tokens": True},
            lambda h: np.average(h, axis=0, weights=np.arange(1, len(h) + 1)),
        ),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            lambda h: np.concatenate([h[0], h.mean(0)]),
        ),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_pooling_follows_the_checkpoint_config(checkpoint: Path, pooling, by_hand):
    write_pooling_config(checkpoint, "Transformer", "Pooling", **pooling)
    vectors = open_encoder(checkpoint).encode_documents(TEXTS)
    expected = [by_hand(hidden_states(checkpoint, text)) for text in TEXTS]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_normalize_module_gives_unit_vectors(checkpoint: Path):
    plain = open_encoder(checkpoint).encode_queries(TEXTS)
    write_pooling_config(
        checkpoint, "Transformer", "Pooling", "Normalize", pooling_mode_mean_tokens=True
    )
    normalised = open_encoder(checkpoint).encode_queries(TEXTS)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(normalised, plain / lengths, atol=1e-6)


def test_prompts_are_prepended_to_queries_and_documents(checkpoint: Path):
    prompts = {"prompts": {"query": "query: ", "passage": "doc: "}}
    config_file = checkpoint / "config_sentence_transformers.json"
    config_file.write_text(json.dumps(prompts), encoding="utf-8")
    encoder = open_encoder(checkpoint)
    query, document = encoder.encode_queries(["cat"])[0], encoder.encode_documents(["cat"])[0]
    np.testing.assert_allclose(query, hidden_states(checkpoint, "query: cat").mean(0), atol=1e-6)
    np.testing.assert_allclose(document, hidden_states(checkpoint, "doc: cat").mean(0), atol=1e-6)


def test_checkpoint_window_is_the_smallest_declared(checkpoint: Path):
    config = {"max_seq_length": 5, "do_lower_case": True}
    (checkpoint / "sentence_bert_config.json").write_text(json.dumps(config), encoding="utf-8")
    encoder = open_encoder(checkpoint)
    vector = encoder.encode_documents(["THE cat sat on the mat"])[0]
    # [CLS] and [SEP] are two of the five.
    np.testing.assert_allclose(vector, hidden_states(checkpoint, "the cat sat").mean(0), atol=1e-6)
    assert (encoder.window, encoder.truncated) == (5, 1)


def test_checkpoint_fingerprint_depends_on_its_files(checkpoint: Path):
    first = open_encoder(checkpoint).description
    assert open_encoder(checkpoint).description == first
    write_pooling_config(checkpoint, "Transformer", "Pooling", pooling_mode_cls_token=True)
    assert open_encoder(checkpoint).description.fingerprint != first.fingerprint


def test_unsupported_checkpoint_modules_are_refused(checkpoint: Path):
    write_pooling_config(
        checkpoint, "Transformer", "Pooling", "Dense", pooling_mode_mean_tokens=True
    )
    with pytest.raises(UserError, match="names a module Dense, but lmlab supports Transformer"):
        open_encoder(checkpoint)
    write_pooling_config(checkpoint, "Transformer", "Pooling", pooling_mode="sum")
    with pytest.raises(
        UserError, match=f"no pooling that lmlab supports: {', '.join(POOLING_FUNCTIONS)}"
    ):
        open_encoder(checkpoint)
    (checkpoint / "modules.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="is not a list of modules"):
        open_encoder(checkpoint)
