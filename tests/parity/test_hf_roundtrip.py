"""Every family of the Hub's format, in and out, against transformers: the same logits.

Checkpoints are made by transformers with random weights and a small tokenizer; they have a few more
token vectors than the tokenizer has tokens, as many published ones do.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

import lmlab
from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.inspection.inspected_models import make_inspected_models
from lmlab.inspection.surprisal import surprisal_figures
from lmlab.interop.hf.checkpoint_export import NEVER_PREDICTED_BIAS, export_hf, softmax_note
from lmlab.interop.hf.checkpoint_import import import_hf
from lmlab.interop.hf.family import families
from lmlab.training.run_folder import RunFolder, TrainedModel, load_run
from lmlab.training.train import train

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = "the a cat dog bird sat ran flew on under mat tree house big small red old".split()
TEXTS = ["the cat sat on the mat", "a big dog ran under the old tree", "the bird flew"]
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
FAIRSEQ = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
# Checkpoints and trainings are made once for all tests of a group.
IMPORT_GROUP, EXPORT_GROUP = (
    pytest.mark.xdist_group("hf imported"),
    pytest.mark.xdist_group("hf exported"),
)
SPARE_ROWS = 3
"""Token vectors beyond the tokenizer's."""
ENCODER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
RELU = {"intermediate_size": 40, "max_position_embeddings": 30, "hidden_act": "relu"}
GELU = RELU | {"hidden_act": "gelu"}
BART = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 30,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LLAMA = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 30,
}
T5 = {"d_model": 24, "num_layers": 2, "num_heads": 3, "d_kv": 10, "d_ff": 50}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One checkpoint of transformers."""

    kind: str
    """Its class, without Config and Model."""
    head: str
    """The class with the head, after `kind`."""
    auto: str
    """The automatic class that loads it."""
    config: dict[str, Any]
    special_tokens: dict[str, str]
    tail: tuple[str, ...] = ()
    """Special tokens at the end of the vocabulary."""
    given: tuple[str, ...] = ()
    """Inputs besides tokens and padding: segments, or a target text."""
    untied: bool = False
    tokenizer: str = "AutoTokenizer"
    """The class that loads the tokenizer."""
    first: dict[str, int] = field(default_factory=dict)
    """Tables whose first rows no text uses, by a part of their name, and how many."""


CASES = {
    "gpt2": Case(
        kind="GPT2",
        head="LMHeadModel",
        auto="AutoModelForCausalLM",
        config={"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 30},
        special_tokens={"bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    ),
    **{
        name: Case(
            kind=kind,
            head="ForCausalLM",
            auto="AutoModelForCausalLM",
            config=LLAMA | config,
            special_tokens={"unk": "<unk>", "bos": "<s>", "eos": "</s>"},
            # The automatic one gives every Qwen2 the words of Qwen2's own tokenizer.
            tokenizer="PreTrainedTokenizerFast" if kind == "Qwen2" else "AutoTokenizer",
        )
        for name, (kind, config) in {
            "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
            "smollm": ("Llama", {"tie_word_embeddings": True}),
            "mistral": ("Mistral", {"sliding_window": 3}),
            "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
            "qwen3": ("Qwen3", {"head_dim": 6}),
        }.items()
    },
    "gpt2 untied": Case(
        kind="GPT2",
        head="LMHeadModel",
        auto="AutoModelForCausalLM",
        config={
            "n_embd": 16,
            "n_layer": 1,
            "n_head": 2,
            "n_inner": 40,
            "n_positions": 30,
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
        special_tokens={"bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    ),
    "bert": Case(
        kind="Bert",
        head="ForPreTraining",
        auto="AutoModelForPreTraining",
        config=ENCODER | RELU,
        special_tokens=BERT,
        given=("segments",),
    ),
    "bert without pairs": Case(
        kind="Bert",
        head="ForMaskedLM",
        auto="AutoModelForMaskedLM",
        config=ENCODER | GELU | {"type_vocab_size": 3},
        special_tokens=BERT,
        given=("segments",),
    ),
    "roberta": Case(
        kind="Roberta",
        head="ForMaskedLM",
        auto="AutoModelForMaskedLM",
        config=ENCODER | GELU | {"type_vocab_size": 1},
        special_tokens=FAIRSEQ,
        first={"position_embeddings": 2},
    ),
    "albert": Case(
        kind="Albert",
        head="ForPreTraining",
        auto="AutoModelForPreTraining",
        config=ENCODER | RELU | {"embedding_size": 10},
        special_tokens=BERT | {"pad": "<pad>", "unk": "<unk>"},
        given=("segments",),
    ),
    "mpnet": Case(
        kind="MPNet",
        head="ForMaskedLM",
        auto="AutoModelForMaskedLM",
        config=ENCODER | GELU,
        special_tokens={"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
        tail=("<mask>",),
        first={"position_embeddings": 2},
    ),
    "xlnet": Case(
        kind="XLNet",
        head="LMHeadModel",
        auto="AutoModelForCausalLM",
        config={"d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40, "clamp_len": 4},
        special_tokens={
            "unk": "<unk>",
            "bos": "<s>",
            "eos": "</s>",
            "cls": "<cls>",
            "sep": "<sep>",
            "pad": "<pad>",
            "mask": "<mask>",
        },
        given=("segments",),
    ),
    "t5": Case(
        kind="T5",
        head="ForConditionalGeneration",
        auto="AutoModelForSeq2SeqLM",
        config=T5 | {"relative_attention_num_buckets": 8, "decoder_start_token_id": 0},
        special_tokens={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
        tail=tuple(f"<extra_id_{number}>" for number in range(5, -1, -1)),
        given=("text",),
    ),
    "t5 version 1.1": Case(
        kind="T5",
        head="ForConditionalGeneration",
        auto="AutoModelForSeq2SeqLM",
        config=T5
        | {
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "decoder_start_token_id": 0,
        },
        special_tokens={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
        tail=tuple(f"<extra_id_{number}>" for number in range(5, -1, -1)),
        given=("text",),
        untied=True,
    ),
    "bart": Case(
        kind="Bart",
        head="ForConditionalGeneration",
        auto="AutoModelForSeq2SeqLM",
        config=BART,
        special_tokens=FAIRSEQ,
        given=("text",),
        first={"embed_positions": 2},
    ),
    "pegasus": Case(
        kind="Pegasus",
        head="ForConditionalGeneration",
        auto="AutoModelForSeq2SeqLM",
        config=BART | {"scale_embedding": True, "activation_function": "relu"},
        special_tokens={"pad": "<pad>", "eos": "</s>", "mask": "<mask_2>", "unk": "<unk>"},
        tail=("<mask_1>",),
        given=("text",),
    ),
}
TRAINED_SYSTEMS = {
    "gpt": {},
    "llama": {},
    "bert": {},
    "bert-wwm": {"pairs": "none", "segments": 0},
    "ernie": {},
    "roberta": {},
    "albert": {},
    "mpnet": {},
    "xlnet": {},
    "t5": {},
    "bart": {},
    "pegasus": {},
    "electra": {},
}
"""Systems trained here, with settings beyond those of their tiny size."""


def write_checkpoint(case: Case, folder: Path):
    """A random checkpoint of transformers, and the model."""
    torch.manual_seed(0)
    vocabulary = [*dict.fromkeys(case.special_tokens.values()), *WORDS, *case.tail]
    inner = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(vocabulary)}, case.special_tokens.get("unk")
        )
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ids = {
        f"{role}_token_id": inner.token_to_id(token) for role, token in case.special_tokens.items()
    }
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    config = getattr(transformers, f"{case.kind}Config")(
        **{name: ids.get(name) for name in names},
        vocab_size=len(vocabulary) + SPARE_ROWS,
        **case.config,
    )
    model = getattr(transformers, f"{case.kind}{case.head}")(config).eval()
    if case.untied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    randomise_weights(model)
    model.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        **{f"{role}_token": token for role, token in case.special_tokens.items()},
        additional_special_tokens=list(case.tail),
    )
    fast.save_pretrained(folder)
    return model


def randomise_weights(model) -> None:
    """Weights large enough for logits with a spread; norms around one, so that positions differ."""
    for name, parameter in model.named_parameters():
        if "embed_positions" in name and not parameter.requires_grad:
            continue  # PEGASUS's sines
        norm = "norm" in name.lower() and name.endswith("weight")
        # T5 divides its logits, and a detector has one per position.
        large = "shared" in name or "dense_prediction" in name
        torch.nn.init.normal_(parameter, mean=float(norm), std=2.0 if large else 0.6)
    if hasattr(model, "final_logits_bias"):
        torch.nn.init.normal_(model.final_logits_bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Random tokens of three rows, two of them padded."""

    tokens: Tensor
    lengths: Tensor
    segments: Tensor | None
    text: Tensor | None

    @property
    def real(self) -> Tensor:
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]

    def theirs(self) -> dict[str, Tensor]:
        words = {"input_ids": self.tokens, "attention_mask": self.real.long()}
        if self.segments is not None:
            words["token_type_ids"] = self.segments
        if self.text is not None:
            words["decoder_input_ids"] = self.text
        return words

    def view(self, causal: bool) -> View:
        decoder = None
        if self.text is not None:
            lengths = torch.full((3,), self.text.shape[1])
            decoder = View(inputs=self.text, lengths=lengths, attention_mask=CausalMask())
        return View(
            inputs=self.tokens,
            lengths=self.lengths,
            attention_mask=CausalMask() if causal else FullMask(),
            segments=self.segments,
            decoder=decoder,
        )


def make_inputs(model: TrainedModel, given: tuple[str, ...]) -> Inputs:
    """Words only; rows end in padding, from which some of theirs derive positions."""
    generator = torch.Generator().manual_seed(1)
    tokenizer = model.tokenizer
    words = torch.tensor(sorted({i for text in TEXTS for i in tokenizer.encode(text)}))

    def sample_words(time: int) -> Tensor:
        return words[torch.randint(len(words), (3, time), generator=generator)]

    lengths = torch.tensor([9, 7, 4])
    padding = torch.arange(9) >= lengths[:, None]
    pad = min(tokenizer.vocabulary.pad, tokenizer.vocabulary.size - 2)
    segments = torch.randint(0, 2, (3, 9), generator=generator) if "segments" in given else None
    return Inputs(
        tokens=sample_words(9).masked_fill(padding, pad),
        lengths=lengths,
        segments=segments,
        text=sample_words(5) if "text" in given else None,
    )


@torch.no_grad()
def our_logits(model: TrainedModel, inputs: Inputs) -> Tensor:
    hidden = model.system.hidden(inputs.view(causal=model.card.name in ("gpt", "llama"))).values
    return model.system.emission.logits(hidden)


@torch.no_grad()
def their_logits(model, inputs: Inputs) -> Tensor:
    answer = model.eval()(**inputs.theirs())
    return answer.prediction_logits if "prediction_logits" in answer else answer.logits


def assert_same(actual: Tensor, expected: Tensor, inputs: Inputs) -> None:
    """At unpadded positions, of the tokens that both have."""
    real = inputs.real if inputs.text is None else torch.ones(inputs.text.shape).bool()
    tokens = min(actual.shape[-1], expected.shape[-1])
    actual, expected = actual[real][:, :tokens], expected[real][:, :tokens]
    assert expected.std() > 1
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def predictable(model: TrainedModel) -> Tensor:
    """(V,) bool: tokens that our softmax gives probability."""
    never = getattr(model.system.emission, "never_predicted", None)
    if never is None:
        never = model.system.objective.generator.emission.never_predicted
    return never == 0


def assert_same_probabilities(
    ours: Tensor, theirs: Tensor, predictable_tokens: Tensor, inputs: Inputs, *, biased: bool
) -> None:
    """Our log-probabilities are those of their softmax over all tokens, where there is a bias."""
    real = inputs.real if inputs.text is None else torch.ones(inputs.text.shape).bool()
    expected = (
        ours[real][:, : len(predictable_tokens)]
        .masked_fill(~predictable_tokens, -torch.inf)
        .log_softmax(-1)[:, predictable_tokens]
    )
    whole = theirs[real].log_softmax(-1)
    assert (whole[:, ~predictable_tokens].exp().sum(-1) < 1e-6).all() == biased
    if not biased:
        whole = theirs[real].masked_fill(~predictable_tokens, -torch.inf).log_softmax(-1)
    # Plus the rounding of float32, of log-probabilities down to -50.
    torch.testing.assert_close(whole[:, predictable_tokens], expected, atol=1e-5, rtol=1e-5)


def test_every_family_has_import_and_export_cases():
    tested = {json_type(case) for case in CASES.values()}
    assert tested | {"electra"} == families().keys()
    assert {
        name for family in families().values() for name in family.systems
    } == TRAINED_SYSTEMS.keys()


def json_type(case: Case) -> str:
    return str(getattr(transformers, f"{case.kind}Config").model_type)


@pytest.fixture(scope="module", params=CASES)
def imported(request, tmp_path_factory):
    """A case, the model of transformers, and the folder with it and the imported run."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("imported")
    theirs = write_checkpoint(case, folder / "theirs")
    import_hf(folder / "theirs", folder / "run")
    return case, theirs, folder


@IMPORT_GROUP
def test_imported_logits_equal_transformers(imported):
    case, theirs, folder = imported
    model = load_run(folder / "run")
    inputs = make_inputs(model, case.given)
    assert_same(our_logits(model, inputs), their_logits(theirs, inputs), inputs)


@IMPORT_GROUP
def test_imported_checkpoint_is_exported_unchanged(imported):
    """The same weights under the same names, but for rows that no token and no position has."""
    case, theirs, folder = imported
    export_hf(folder / "run", folder / "again")
    before, after = (load_file(folder / name / "model.safetensors") for name in ("theirs", "again"))
    tokens = after_rows(folder / "again")
    assert before.keys() - after.keys() <= {"lm_head.weight"}  # the tied one, stored twice by some
    assert after.keys() <= before.keys()
    for name, value in after.items():
        expected = before[name]
        if tokens + SPARE_ROWS in expected.shape:
            expected = expected[..., :tokens] if expected.ndim == 1 or "bias" in name else expected
            expected = expected[:tokens]
        skipped = next((rows for part, rows in case.first.items() if part in name), 0)
        if case.kind == "Pegasus" and "embed_positions" in name:
            # Sines are not weights: theirs are computed in float64, ours in float32.
            torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)
            continue
        assert torch.equal(value[skipped:], expected[skipped:]), name
    auto = getattr(transformers, case.auto)
    loaded, info = auto.from_pretrained(folder / "again", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = make_inputs(load_run(folder / "run"), case.given)
    assert_same(their_logits(loaded, inputs), their_logits(theirs, inputs), inputs)


@IMPORT_GROUP
def test_imported_checkpoint_scores_samples_and_fills(imported):
    """It scores; and samples or fills, by what its system can."""
    _, _, folder = imported
    model = lmlab.load(folder / "run")
    scores = model.score(TEXTS)
    assert [score.kind for score in scores] == [model.card.kind] * len(TEXTS)
    # What fills blanks predicts no end.
    ends = 0 if model.card.kind == "pseudo" else 1
    assert [score.tokens for score in scores] == [len(text.split()) + ends for text in TEXTS]
    assert all(-1000 < score.total < 0 for score in scores)
    if "Step" in model.card.protocols:
        [text] = model.sample(1, prefix="the", max_length=5)
        assert text.text.startswith("the") and text.log_prob < 0
    if "Fill" in model.card.protocols:
        [filled] = model.fill(["the <mask> sat"], top=3)
        assert len(filled.masks[0].options) == 3


@IMPORT_GROUP
@torch.no_grad()
def test_imported_gpt2_score_equals_transformers(tmp_path):
    """log p of each token and of the end, after the end token; of the tokens that there are."""
    theirs = write_checkpoint(CASES["gpt2"], tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "run")
    model = lmlab.load(tmp_path / "run")
    [score] = model.score([TEXTS[0]])
    end = model.tokenizer.vocabulary.end
    ids = torch.tensor([[end, *model.tokenizer.encode(TEXTS[0]), end]])
    known = theirs(ids).logits[0, :, : model.tokenizer.vocabulary.size - 1]
    expected = torch.log_softmax(known, -1)[range(ids.shape[1] - 1), ids[0, 1:]]
    actual = torch.tensor([token.log_prob for token in score.per_token])
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def after_rows(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


@IMPORT_GROUP
def test_imported_tokenizer_is_exported_unchanged(imported):
    case, _, folder = imported
    if not (folder / "again").exists():
        export_hf(folder / "run", folder / "again")
    before, after = (
        getattr(transformers, case.tokenizer).from_pretrained(folder / name)
        for name in ("theirs", "again")
    )
    assert before(TEXTS)["input_ids"] == after(TEXTS)["input_ids"]
    assert before.special_tokens_map == after.special_tokens_map
    run = load_run(folder / "run").tokenizer
    assert [run.encode(text) for text in TEXTS] == [
        after(text, add_special_tokens=False)["input_ids"] for text in TEXTS
    ]


@pytest.fixture(scope="module", params=TRAINED_SYSTEMS)
def trained(request, tmp_path_factory):
    """A system trained here for two steps, its weights made large, and the folder of its run."""
    name, folder = request.param, tmp_path_factory.mktemp("trained")
    (folder / "corpus.txt").write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    train(
        name,
        data=folder / "corpus.txt",
        out=folder / "run",
        size="tiny",
        settings=TRAINED_SYSTEMS[name],
        steps=2,
        quiet=True,
    )
    enlarge_weights(folder / "run")
    return name, folder


def enlarge_weights(run: Path) -> None:
    """So that logits have a spread, which those of two steps have not."""
    torch.manual_seed(0)
    model = load_run(run)
    for name, parameter in model.system.named_parameters():
        large = "tokens" in name or "score" in name
        mean = float("norm.weight" in name)
        torch.nn.init.normal_(parameter, mean=mean, std=2.0 if large else 0.5)
    RunFolder(run).save_weights(model.system.state_dict())


@EXPORT_GROUP
def test_exported_run_has_the_same_logits_and_ids(trained):
    name, folder = trained
    model = load_run(folder / "run")
    family = export_hf(folder / "run", folder / "out")
    auto = "AutoModelForSeq2SeqLM" if model.card.conditional else "AutoModelForMaskedLM"
    auto = "AutoModelForCausalLM" if name in ("gpt", "llama", "xlnet") else auto
    auto = "AutoModelForPreTraining" if name in ("bert", "albert", "electra") else auto
    theirs, info = getattr(transformers, auto).from_pretrained(
        folder / "out", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    inputs = make_inputs(model, ("text",) if model.card.conditional else ())
    their_inputs = inputs
    if family.pad is not None:
        # Padding and the token of its number are swapped; no word is one of the two.
        their_inputs = Inputs(
            tokens=inputs.tokens.masked_fill(~inputs.real, family.pad),
            lengths=inputs.lengths,
            segments=None,
            text=None,
        )
    result = their_logits(theirs, their_inputs)
    if name == "electra":
        ours = model.system.emission.log_odds(model.system.hidden(inputs.view(False)).values)
        torch.testing.assert_close(
            ours.detach()[inputs.real], result[inputs.real], atol=1e-4, rtol=0
        )
    else:
        predictable_tokens = predictable(model)
        ours = our_logits(model, inputs)
        ours = ours if family.pad is None else swap_tokens(ours, model.tokenizer.vocabulary.pad, 1)
        predictable_tokens = (
            predictable_tokens
            if family.pad is None
            else swap_tokens(predictable_tokens, model.tokenizer.vocabulary.pad, 1)
        )
        predictable_tokens = predictable_tokens[: result.shape[-1]]
        assert_same(
            ours[..., : len(predictable_tokens)][..., predictable_tokens],
            result[..., predictable_tokens],
            inputs,
        )
        assert_same_probabilities(
            ours, result, predictable_tokens, inputs, biased=family.output_bias is not None
        )
    if name == "electra":
        generator = transformers.AutoModelForMaskedLM.from_pretrained(folder / "out" / "generator")
        shares = their_logits(generator, inputs)[inputs.real].softmax(-1)
        assert shares[:, ~predictable(model)].sum(-1).max() < 1e-6
    note = softmax_note(family)
    assert (note is None) == (name not in ("gpt", "llama", "t5"))
    for text in TEXTS:
        words = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert words == model.tokenizer.encode(text)
        framed = tokenizer(text)["input_ids"]
        assert [i for i in framed if i in words] == words and len(framed) > len(words)


@EXPORT_GROUP
def test_masked_model_trained_by_nce_is_exported(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    words = {"data": tmp_path / "corpus.txt", "out": tmp_path / "run", "size": "tiny"}
    settings = {"noise_samples": 5, "log_z": "learned", "noise": "uniform"}
    train("roberta", objective="nce", settings=settings, steps=2, quiet=True, **words)
    export_hf(tmp_path / "run", tmp_path / "out")
    scored = [
        [each.total for each in lmlab.load(tmp_path / name).score(TEXTS)] for name in ("run", "out")
    ]
    assert scored[0] == pytest.approx(scored[1], abs=1e-4)


def swap_tokens(logits: Tensor, first: int, second: int) -> Tensor:
    order = list(range(logits.shape[-1]))
    order[first], order[second] = second, first
    return logits[..., order]


@EXPORT_GROUP
def test_export_import_round_trip_keeps_all_weights(trained):
    """Every weight to the bit but biases of tokens that are never predicted; tokens may have got
    other ids, and our special tokens be ordinary tokens."""
    name, folder = trained
    if not (folder / "out").exists():
        export_hf(folder / "run", folder / "out")
    back = import_hf(folder / "out", folder / "back")
    before = load_run(folder / "run")
    assert back.card.name == families()[back.config.imported.config["model_type"]].systems[0]
    ours, again = before.system.state_dict(), back.system.state_dict()
    only_back = again.keys() - ours.keys()
    assert ours.keys() <= again.keys()
    assert all("segments" in name and not again[name].any() for name in only_back)
    pad = families()[back.config.imported.config["model_type"]].pad
    for name, value in ours.items():
        result = again[name]
        if pad is not None and len(value) == before.tokenizer.vocabulary.size:
            result = result[[1, 0, *range(2, len(result))]]
        if name.endswith("emission.bias"):
            # Tokens that are never predicted are exported with a bias of their own.
            predictable_tokens = predictable(before)
            assert (result[~predictable_tokens] == NEVER_PREDICTED_BIAS).all()
            result, value = result[predictable_tokens], value[predictable_tokens]
        assert torch.equal(result, value), name


@EXPORT_GROUP
def test_export_import_round_trip_keeps_scores(trained):
    """Also with settings that config.json can't express, such as source_has_start."""
    _, folder = trained
    if not (folder / "back").exists():
        export_hf(folder / "run", folder / "out")
        import_hf(folder / "out", folder / "back")
    assert_equal_scores(folder / "run", folder / "back")


LMLAB_ONLY_SETTINGS = {
    "bart": {"source_has_start": False, "noises": ("infilling", "permutation")},
    "pegasus": {"source_has_start": False, "full_mask_rate": 0.25},
    "t5": {"objective": "language-modelling"},
    "xlnet": {"length": 3, "memory": 2},
}
"""Settings that a text's score depends on, or further training, and theirs can't say."""


@EXPORT_GROUP
@pytest.mark.parametrize("name", LMLAB_ONLY_SETTINGS)
def test_settings_unknown_to_transformers_round_trip(name, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    words = {"settings": LMLAB_ONLY_SETTINGS[name], "size": "tiny", "steps": 1, "quiet": True}
    train(name, data=tmp_path / "corpus.txt", out=tmp_path / "run", **words)
    enlarge_weights(tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "out")
    back = import_hf(tmp_path / "out", tmp_path / "back")
    for setting, value in LMLAB_ONLY_SETTINGS[name].items():
        result = back.config.system_config[setting]
        assert result == (list(value) if isinstance(value, tuple) else value), setting
    assert_equal_scores(tmp_path / "run", tmp_path / "back")
    # An invalid entry is validated and refused like any setting.
    path = tmp_path / "out" / "config.json"
    for lmlab_entry in ({"width": "9"}, {"full_mask_rate": 1}, "x"):
        config = json.loads(path.read_text(encoding="utf-8")) | {"lmlab": lmlab_entry}
        path.write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(
            UserError, match=r"lmlab in the checkpoint's config.json must be .*; remove it"
        ):
            import_hf(tmp_path / "out", tmp_path / "other")


def assert_equal_scores(before: Path, after: Path) -> None:
    """With every token known: where ids were exchanged, the same words have the same scores."""
    ours, again = (lmlab.load(path).score(TEXTS) for path in (before, after))
    assert [s.total for s in again] == pytest.approx([s.total for s in ours], abs=1e-5, rel=1e-6)


@pytest.fixture(scope="module")
def electra(tmp_path_factory):
    """A detector and a generator of transformers over one embedding, each in its folder."""
    folder = tmp_path_factory.mktemp("electra")
    sizes = ENCODER | GELU | {"embedding_size": 10}
    small = sizes | {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 20}
    common = {"special_tokens": BERT, "auto": "", "kind": "Electra"}
    detector = write_checkpoint(
        Case(head="ForPreTraining", config=sizes, **common), folder / "detector"
    )
    generator = write_checkpoint(
        Case(head="ForMaskedLM", config=small, **common), folder / "generator"
    )
    generator.electra.embeddings.load_state_dict(detector.electra.embeddings.state_dict())
    generator.save_pretrained(folder / "generator")
    shutil.copytree(folder / "detector", folder / "both")
    shutil.copytree(folder / "generator", folder / "both" / "generator")
    return folder, detector, generator


def assert_detects(model: TrainedModel, detector, inputs: Inputs) -> None:
    """Our log-odds at unpadded positions are their logits."""
    with torch.no_grad():
        actual = model.system.emission.log_odds(model.system.hidden(inputs.view(False)).values)
    expected = their_logits(detector, inputs)[inputs.real]
    assert expected.std() > 1
    torch.testing.assert_close(actual[inputs.real], expected, atol=1e-4, rtol=0)


def assert_generates(model: TrainedModel, generator, inputs: Inputs) -> None:
    decoder = model.system.objective.generator
    with torch.no_grad():
        result = decoder.emission.logits(decoder.hidden(inputs.view(False)).values)
    assert_same(result, their_logits(generator, inputs), inputs)


@IMPORT_GROUP
def test_electra_detector_and_generator_round_trip(electra, tmp_path):
    folder, detector, generator = electra
    whole = import_hf(folder / "both", tmp_path / "run")
    assert list(whole.config.imported.notes) == []
    inputs = make_inputs(whole, ("segments",))
    assert_detects(whole, detector, inputs)
    assert_generates(whole, generator, inputs)
    export_hf(tmp_path / "run", tmp_path / "again")
    for name, kind in (("again", type(detector)), ("again/generator", type(generator))):
        loaded, info = kind.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        if kind is type(detector):
            assert_detects(whole, loaded, inputs)
        else:
            assert_generates(whole, loaded, inputs)


@IMPORT_GROUP
def test_pegasus_stored_positions_must_be_sinusoidal(tmp_path):
    theirs = tmp_path / "theirs"
    write_checkpoint(CASES["pegasus"], theirs)
    path, name = theirs / "model.safetensors", "model.encoder.embed_positions.weight"
    weights = load_file(path)
    sines = transformers.PegasusForConditionalGeneration.from_pretrained(theirs).get_encoder()
    sinusoid_table = sines.embed_positions.weight.detach().clone()
    save_file({**weights, name: sinusoid_table.bfloat16()}, path, {"format": "pt"})
    import_hf(theirs, tmp_path / "run")
    save_file({**weights, name: sinusoid_table.flip(1).contiguous()}, path, {"format": "pt"})
    with pytest.raises(
        UserError, match=r"encoder\.embed_positions\.weight are not PEGASUS' sinusoidal"
    ):
        import_hf(theirs, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@IMPORT_GROUP
def test_partial_electra_import_notes_the_missing_network(electra, tmp_path):
    folder, detector, generator = electra
    one = import_hf(folder / "detector", tmp_path / "one")
    inputs = make_inputs(one, ("segments",))
    assert list(one.config.imported.notes) == [
        "the checkpoint has no generator, so the run neither scores nor fills."
    ]
    assert_detects(one, detector, inputs)
    other = import_hf(folder / "generator", tmp_path / "other")
    assert list(other.config.imported.notes) == [
        "the checkpoint has no detector, so the run neither detects nor encodes."
    ]
    assert_generates(other, generator, inputs)


@IMPORT_GROUP
def test_partial_electra_supports_only_its_own_network(electra, tmp_path):
    """Whenever the run is loaded again; and only its own network is exported."""
    folder, _, _ = electra
    for name in ("detector", "generator"):
        import_hf(folder / name, tmp_path / name)
    detector, generator = (lmlab.load(tmp_path / name) for name in ("detector", "generator"))
    for refused in (detector.score, detector.fill):
        with pytest.raises(UserError, match=r"only a detector .* lmlab finetune"):
            refused(["the <mask> sat"])
    # Figures leave out the generator's predictions.
    assert surprisal_figures(make_inspected_models([detector.model], [TEXTS[0]])) == []
    batch = Batch.collate([[2, *detector.tokenizer.encode(TEXTS[0]), 3]], pad=0)
    assert detector.system.detect(batch).shape == (1, 8)
    assert detector.system.encode(batch).shape == (1, 24)
    rows = tmp_path / "rows.jsonl"
    row = {"text": "the cat sat", "label": "cat"}, {"text": "the dog ran", "label": "dog"}
    rows.write_text("\n".join(json.dumps(each) for each in row * 20), encoding="utf-8")
    words = {"task": "classify", "data": rows, "steps": 1, "quiet": True}
    lmlab.finetune(tmp_path / "detector", out=tmp_path / "tuned", **words)
    assert generator.score([TEXTS[0]])[0].kind == "pseudo"
    assert generator.fill(["the <mask> sat"])
    for refused in (generator.system.detect, generator.system.encode):
        with pytest.raises(UserError, match=r"only a generator .* lmlab score or fill"):
            refused(batch)
    for name in ("detector", "generator"):
        export_hf(tmp_path / name, tmp_path / f"{name}-out")
        assert not (tmp_path / f"{name}-out" / "generator").exists()
        before, after = (
            load_file(path / "model.safetensors")
            for path in (folder / name, tmp_path / f"{name}-out")
        )
        assert after.keys() <= before.keys() and len(after) > 10
        again = import_hf(tmp_path / f"{name}-out", tmp_path / f"{name}-again")
        assert again.config.system_config["networks"] == name
