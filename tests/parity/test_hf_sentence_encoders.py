"""A BERT without its head becomes a run of dpr, with the vectors of transformers' BertModel."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn.functional import normalize

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.limits import set_limit
from lmlab.data.readers import Example
from lmlab.interop.hf.checkpoint_import import import_hf
from lmlab.interop.text_encoders import open_encoder
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.xdist_group("sentence encoders")  # the base run is made once
WORDS = "the a cat dog bird sat ran flew on under mat tree what where did".split()
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = ["the cat sat", "a dog ran under the tree", "bird", "the bird flew on a mat"]
PAIRS = [
    Example("the cat sat on the mat", condition="where did the cat"),
    Example("a dog ran under the tree", condition="what ran"),
    Example("a bird flew on the tree", condition="what flew"),
    Example("the dog sat under a tree", condition="where did the dog"),
]
SETTINGS = {
    "vocab_size": len(SPECIAL_TOKENS) + len(WORDS) + 3,  # some have vectors of no token
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}


def write_encoder(folder: Path, kind: str = "Bert", **more: object) -> Path:
    """A model of that kind without a head, with random weights and a tokenizer of words."""
    transformers.set_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SETTINGS, **more)
    model = getattr(transformers, f"{kind}Model")(config)
    for parameter in model.parameters():
        # Wide enough for every part to count in the vectors.
        torch.nn.init.normal_(parameter, mean=0.5 * (parameter.dim() == 1), std=0.5)
    model.save_pretrained(folder)
    inner = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([*SPECIAL_TOKENS, *WORDS])}, "[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = {f"{name[1:-1].lower()}_token": name for name in SPECIAL_TOKENS}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(folder)
    return folder


def write_module_files(
    folder: Path, *modules: str, pooling: str = "mean_tokens", **files: object
) -> None:
    """The files that sentence-transformers writes next to a model."""
    rows = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"st.models.{name}"}
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling_config = {f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling_config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def their_vectors(folder: Path, *, first: bool, length: float) -> np.ndarray:
    """(B, W) by transformers, text by text: no padding can play a part."""
    model = transformers.BertModel.from_pretrained(folder).eval()
    result = []
    for text in TEXTS:
        ids = [2, *(len(SPECIAL_TOKENS) + WORDS.index(word) for word in text.split()), 3]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        vector = hidden[0] if first else hidden.mean(0)
        result.append(length * normalize(vector, dim=0) if length else vector)
    return torch.stack(result).numpy()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("sentences") / "checkpoint")


@pytest.fixture(scope="module")
def base(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of it, its vectors of length √20."""
    folder = tmp_path_factory.mktemp("base")
    described = Path(shutil.copytree(checkpoint, folder / "checkpoint"))
    write_module_files(described, "Transformer", "Pooling", "Normalize")
    import_hf(described, folder / "run")
    return folder / "run"


@pytest.fixture
def modified_checkpoint(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("pooling", "normalized"),
    [
        (None, False),  # a folder without a pooling config
        ("mean_tokens", False),
        ("mean_tokens", True),
        ("cls_token", False),
        ("cls_token", True),
    ],
)
def test_vectors_equal_transformers(modified_checkpoint, tmp_path, pooling, normalized):
    if pooling is not None:
        modules = ("Transformer", "Pooling", "Normalize")[: 3 if normalized else 2]
        write_module_files(modified_checkpoint, *modules, pooling=pooling)
    model = import_hf(modified_checkpoint, tmp_path / "run")
    settings = model.config.system_config
    first = pooling == "cls_token"
    assert (model.card.name, settings["shared_encoders"], settings["vector_width"]) == (
        "dpr",
        "all",
        0,
    )
    assert settings["pooling"] == ("first" if first else "mean")
    length = 20**0.5 if normalized else 0.0
    expected = their_vectors(modified_checkpoint, first=first, length=length)
    encoder = open_encoder(tmp_path / "run")
    assert (encoder.width, encoder.window) == (12, 24)
    # All together and in both roles; the second row is longer than the others.
    for actual in (encoder.encode_documents(TEXTS), encoder.encode_queries(TEXTS)):
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    if normalized:
        np.testing.assert_allclose((expected**2).sum(1), 20, rtol=1e-5)
    # The folder itself, as sentence-transformers would read it, has the same but for the length.
    own = open_encoder(modified_checkpoint).encode_documents(TEXTS)
    np.testing.assert_allclose(own * (length or 1), expected, atol=1e-5)


def test_import_notes_list_unsupported_features(modified_checkpoint, tmp_path):
    notes = list(import_hf(modified_checkpoint, tmp_path / "plain").config.imported.notes)
    assert notes == ["the pooler was dropped: dpr in lmlab has none."]
    bert_config = {"max_seq_length": 16, "do_lower_case": True}
    prompts = {"prompts": {"query": "ask: "}}
    files = {"sentence_bert_config": bert_config, "config_sentence_transformers": prompts}
    write_module_files(modified_checkpoint, "Transformer", "Pooling", **files)
    assert list(import_hf(modified_checkpoint, tmp_path / "told").config.imported.notes[1:]) == [
        "texts are cut after 16 tokens, as the checkpoint's own files specify; it has positions "
        "for 24.",
        "the checkpoint expects lower-cased texts; lower-case them.",
        "the checkpoint expects 'ask: ' before a query; add it.",
    ]


def test_texts_are_truncated_at_max_seq_length(modified_checkpoint, tmp_path):
    """sentence_bert_config.json's max_seq_length is less than the positions that there are."""
    write_module_files(
        modified_checkpoint, "Transformer", "Pooling", sentence_bert_config={"max_seq_length": 8}
    )
    model = import_hf(modified_checkpoint, tmp_path / "run")
    assert model.config.system_config["length"] == 8
    texts = ["the cat sat on a mat", "the cat sat on a mat under the tree where a dog ran"]
    for path in (tmp_path / "run", modified_checkpoint):
        encoder = open_encoder(path)
        assert encoder.window == 8
        short, cut = encoder.encode_documents(texts)
        # <s>, six words, </s>: later tokens are truncated.
        np.testing.assert_allclose(short, cut, atol=1e-6)
        assert encoder.truncated == 1
    runs, folders = (
        open_encoder(p).encode_documents(texts) for p in (tmp_path / "run", modified_checkpoint)
    )
    np.testing.assert_allclose(runs, folders, atol=1e-5)
    [first, second] = lmlab.load(tmp_path / "run").encode(texts)
    assert (first.truncated, second.truncated) == (False, True)
    np.testing.assert_allclose(second.vector, folders[1], atol=1e-5)


def corpus(tmp_path: Path, kind: str = "pairs") -> str:
    lines = [f"{each.condition}\t{each.text}" for each in PAIRS]
    texts = [each.text for each in PAIRS]
    path = tmp_path / ("corpus.tsv" if kind == "pairs" else "corpus.txt")
    path.write_text("\n".join((lines if kind == "pairs" else texts) * 6) + "\n")
    return str(path)


def test_dpr_initialised_with_base_sizes_and_vectors(base, tmp_path):
    words = {"data": corpus(tmp_path), "base": base, "steps": 3, "quiet": True}
    train("dpr", out=tmp_path / "still", settings={"learning_rate": 1e-12}, **words)
    train("dpr", out=tmp_path / "moved", settings={"learning_rate": 1e-2}, **words)
    before, still, moved = (
        open_encoder(run).encode_queries(TEXTS)
        for run in (base, tmp_path / "still", tmp_path / "moved")
    )
    np.testing.assert_allclose(still, before, atol=1e-5)
    assert abs(moved - before).max() > 1e-2
    np.testing.assert_allclose((moved**2).sum(1), 20, rtol=1e-5)
    own, given = (load_run(run).config.system_config for run in (tmp_path / "still", base))
    assert own == given
    train("dpr", out=tmp_path / "moved", resume=True, **words | {"steps": 4, "base": None})
    with pytest.raises(UserError, match=r"other sizes .* remove the settings"):
        train("dpr", out=tmp_path / "wide", settings={"width": 24}, **words)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layers": 1}, r"only the base has backbone\.stack\.blocks\.1"),
        ({"layers": 3}, r"only the new run has backbone\.stack\.blocks\.2"),
        ({"vector_width": 4}, r"only the new run has projection"),
    ],
)
def test_base_with_mismatched_layers_is_refused(base, tmp_path, settings, named):
    with pytest.raises(UserError, match=named):
        train("dpr", data=corpus(tmp_path), base=base, out=tmp_path / "other", settings=settings)
    assert not (tmp_path / "other" / "model.safetensors").exists()


def test_partial_bert_and_two_encoder_bases_are_refused(base, tmp_path):
    words = {"data": corpus(tmp_path, "texts"), "steps": 1, "quiet": True}
    train("bert", out=tmp_path / "bert", size="tiny", settings={"pairs": "none"}, **words)
    with pytest.raises(UserError, match=r"only the base has stack\.blocks\.1"):
        train("dpr", base=tmp_path / "bert", out=tmp_path / "a", settings={"layers": 1}, **words)
    train("dpr", base=base, out=tmp_path / "two", settings={"shared_encoders": "nothing"}, **words)
    with pytest.raises(UserError, match="a base with two encoders"):
        train(
            "dpr",
            base=tmp_path / "two",
            out=tmp_path / "b",
            settings={"shared_encoders": "all"},
            **words,
        )


def test_incompatible_base_is_named_in_the_error(tmp_path):
    words = {"data": corpus(tmp_path, "texts"), "steps": 1, "quiet": True}
    train("lstm", out=tmp_path / "lstm", size="tiny", settings={"width": 7}, **words)
    with pytest.raises(UserError, match=r"the base does not fit dpr: width .* got 7"):
        train("dpr", base=tmp_path / "lstm", out=tmp_path / "other", **words)


def test_scoring_without_documents_is_refused(base, tmp_path):
    with pytest.raises(UserError, match="has no documents to compare"):
        lmlab.load(base).score(["the cat sat"])


def test_given_settings_override_those_of_the_base(base, tmp_path):
    settings = {"dropout": 0.0, "shared_encoders": "nothing", "vector_norm": 3}
    words = {"data": corpus(tmp_path), "base": base, "steps": 1, "quiet": True}
    train("dpr", out=tmp_path / "own", settings=settings | {"learning_rate": 1e-12}, **words)
    result = load_run(tmp_path / "own").config.system_config
    assert {name: result[name] for name in settings} == settings
    before, after = (open_encoder(run).encode_queries(TEXTS) for run in (base, tmp_path / "own"))
    np.testing.assert_allclose(after, 3 / 20**0.5 * before, atol=1e-5)


@pytest.mark.parametrize("system", ["rag-token", "rag-sequence", "realm"])
def test_retrieval_models_initialised_from_sentence_encoder(base, tmp_path, system):
    documents = tmp_path / "documents.txt"
    documents.write_text("\n".join(TEXTS) + "\n")
    kind = "sentences" if system == "realm" else "pairs"
    # The encoders all but rest, so that they can be compared.
    settings = {"learning_rate": 1e-12, "document_length": 16}
    settings |= {"salient_spans": False} if system == "realm" else {}
    train(
        system,
        data=corpus(tmp_path, kind),
        documents=str(documents),
        base=base,
        out=tmp_path / "run",
        size="tiny",
        steps=2,
        settings=settings,
        quiet=True,
    )
    run, before = open_encoder(tmp_path / "run"), open_encoder(base)
    for name in ("encode_documents", "encode_queries"):
        actual, expected = (getattr(each, name)(TEXTS) for each in (run, before))
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    # RAG's generator has its own sizes; REALM's reader has those of the encoders.
    width = load_run(tmp_path / "run").config.system_config["width"]
    assert width == (12 if system == "realm" else 16)


def test_index_built_with_sentence_encoder(base, tmp_path):
    (tmp_path / "documents.txt").write_text("\n".join(TEXTS) + "\n")
    index = lmlab.index_build(tmp_path / "documents.txt", base, tmp_path / "index")
    for text, [best] in zip(TEXTS, index.search(TEXTS, k=1), strict=True):
        assert best.document.text == text and best.score == pytest.approx(20, rel=1e-5)


def refused(folder: Path, tmp_path: Path) -> str:
    """The sentence that an import is refused with; no trace of a run is left."""
    with pytest.raises(UserError) as caught:
        import_hf(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "new")
    (folder / "new").replace(folder / "model.safetensors")


def test_missing_misshaped_or_truncated_weights_are_refused(modified_checkpoint, tmp_path):
    name = "encoder.layer.1.output.dense.bias"
    rewrite(modified_checkpoint, lambda weights: weights.pop(name))
    assert f"lacks weights of bert: bert.{name}; fetch or copy it again." in refused(
        modified_checkpoint, tmp_path
    )
    rewrite(modified_checkpoint, lambda weights: weights.update({name: torch.zeros(13)}))
    assert (
        "questions.backbone.stack.blocks.1.feed_forward.down_projection.bias must have shape"
        in (refused(modified_checkpoint, tmp_path))
    )
    whole = (modified_checkpoint / "model.safetensors").read_bytes()
    (modified_checkpoint / "model.safetensors").write_bytes(whole[:-10])
    assert "is damaged or cut short" in refused(modified_checkpoint, tmp_path)
    (modified_checkpoint / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(modified_checkpoint, tmp_path)


def test_encoder_with_classification_head_is_refused(modified_checkpoint, tmp_path):
    def classify(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[f"bert.{name}"] = weights.pop(name)
        weights["classifier.weight"] = torch.zeros(2, 12)

    rewrite(modified_checkpoint, classify)
    assert "with its language modelling head." in refused(modified_checkpoint, tmp_path)


@pytest.mark.parametrize("kind", ["Roberta", "MPNet"])
def test_headless_encoder_of_other_family_is_refused(tmp_path, kind):
    folder = write_encoder(tmp_path / "checkpoint", kind)
    assert refused(folder, tmp_path) == (
        f"this {kind.lower()} checkpoint is an encoder without its language modelling head, "
        "which lmlab imports for bert only; use one saved with its head, or its "
        "folder as it is (lmlab index build DOCS --encoder FOLDER)."
    )
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "deberta"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "got 'deberta'" in refused(folder, tmp_path)


def test_unsupported_pooling_modules_are_refused(modified_checkpoint, tmp_path):
    write_module_files(modified_checkpoint, "Transformer", "Pooling", pooling="max_tokens")
    assert "pools hidden states by max, but a run supports one of cls or mean" in (
        refused(modified_checkpoint, tmp_path)
    )
    write_module_files(modified_checkpoint, "Transformer", "Pooling", "Dense")
    assert "names a module Dense, but lmlab supports" in refused(modified_checkpoint, tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("config.json", {"num_hidden_layers": 10**7}, "parameter tensors; use fewer layers"),
        ("config.json", {"intermediate_size": 10**12}, "of memory"),
        ("tokenizer.json", {"added_tokens": [{"id": 2**31, "content": "x"}]}, "can't be the id"),
    ],
)
def test_oversized_encoder_config_is_refused(modified_checkpoint, file, change, says):
    """Before transformers builds it, which would take all the memory."""
    content = json.loads((modified_checkpoint / file).read_text())
    (modified_checkpoint / file).write_text(json.dumps({**content, **change}))
    set_limit("parameters", 300)  # which is quicker to reach than that of the weights
    try:
        with pytest.raises(UserError, match=says):
            open_encoder(modified_checkpoint)
    finally:
        set_limit("parameters", None)


def test_encoding_failure_gives_a_user_error(modified_checkpoint):
    """A dropout of NaN passes transformers' own checks and fails in the first batch."""
    content = json.loads((modified_checkpoint / "config.json").read_text())
    (modified_checkpoint / "config.json").write_text(
        json.dumps({**content, "hidden_dropout_prob": math.nan})
    )
    with pytest.raises(UserError, match=r"can't encode texts \(dropout probability"):
        open_encoder(modified_checkpoint).encode_documents(TEXTS)
