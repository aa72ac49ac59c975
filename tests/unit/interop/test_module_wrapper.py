"""Wrapping any torch module: properties of its scores, and errors for invalid modules."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers as hf
import torch
from torch import Tensor, nn

import lmlab
from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import PROTOCOLS
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout, Split
from lmlab.data.dataset import TokenDataset
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.cloze import cloze_accuracy
from lmlab.scoring.score_tables import write_word_csv

pytestmark = pytest.mark.xdist_group("module_wrapper")  # shares its trained runs
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 8
TEXTS = ["the cat ran", "a bird flew on the big mat", "dog", "the old zebra sat"]
LETTERS = " abcdefghijklmnopqrstuvwxyz.#"


def letter_tokenizer(size: int = len(LETTERS)) -> SimpleNamespace:
    """A minimal tokenizer: encode, decode and vocab_size."""
    return SimpleNamespace(
        vocab_size=size,
        encode=lambda text: [LETTERS.index(letter) for letter in text],
        decode=lambda ids: "".join(LETTERS[id] for id in ids),
    )


class RecurrentLM(nn.Module):
    """GRU from ids (B, T) to logits (B, T, V), causal or bidirectional, without padding support."""

    def __init__(
        self, size: int = len(LETTERS), *, bidirectional: bool = False, rows: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding = nn.Embedding(size, 12)
            self.cell = nn.GRU(12, 12, batch_first=True, bidirectional=bidirectional)
            self.dropout = nn.Dropout(0.5)
            self.output = nn.Linear(24 if bidirectional else 12, rows or size)
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=0.8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.dropout(self.cell(self.embedding(ids))[0]))


class RunModule(nn.Module):
    """An lmlab run as an external module that returns an object with logits."""

    def __init__(self, system: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.system, self.attention_mask = system, CausalMask() if causal else FullMask()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        view = View(inputs=input_ids, lengths=mask.sum(1), attention_mask=self.attention_mask)
        return SimpleNamespace(logits=self.system.emission.logits(self.system.hidden(view).values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wrapping")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    for name in ("gpt", "bert"):
        lmlab.train(
            name, data=folder / "corpus.txt", out=folder / name, size="tiny", steps=20, quiet=True
        )
    return folder


@pytest.fixture(scope="module")
def run_and_wrapped(folder) -> Callable[[str], tuple[lmlab.LanguageModel, lmlab.LanguageModel]]:
    """A run, and the same network as a wrapped module."""

    def make(name: str) -> tuple[lmlab.LanguageModel, lmlab.LanguageModel]:
        run = lmlab.load(folder / name)
        kind = "causal" if name == "gpt" else "masked"
        module = RunModule(run.system, causal=kind == "causal")
        window = 64 if name == "gpt" else None
        return run, lmlab.wrap(module, run.tokenizer, kind=kind, name="stranger", window=window)

    return make


def close(value: float, expected: float) -> bool:
    return value == pytest.approx(expected, abs=1e-4)


# A wrapped run equals the run -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_wrapped_run_has_equal_scores(run_and_wrapped, name):
    run, wrapped = run_and_wrapped(name)
    for one, other in zip(run.score(TEXTS), wrapped.score(TEXTS), strict=True):
        assert close(other.total, one.total) and other.kind == one.kind
        assert [t.token for t in other.per_token] == [t.token for t in one.per_token]
        assert other.unknown == one.unknown and other.convention.start


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_wrapped_run_has_equal_pairs_cloze_and_surprisal(run_and_wrapped, name, tmp_path):
    run, wrapped = run_and_wrapped(name)
    row = {"sentence_good": "the cat sat on the mat", "sentence_bad": "mat the on sat cat the"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row), encoding="utf-8")
    reports = [model.pairs(tmp_path / "pairs.jsonl").overall for model in (run, wrapped)]
    assert reports[0] == reports[1]
    one, other = (cloze_accuracy(model.system, model.tokenizer, TEXTS) for model in (run, wrapped))
    assert close(other.nats, one.nats) and other.method == one.method
    tables = [io.StringIO(), io.StringIO()]
    for model, table in zip((run, wrapped), tables, strict=True):
        assert write_word_csv(lmlab.score_stream([model], TEXTS), table) == sum(
            len(t.split()) + (name == "gpt")  # and its end token
            for t in TEXTS
        )
    one, other = (table.getvalue().splitlines() for table in tables)
    assert [line.split(",")[1:5] for line in one] == [line.split(",")[1:5] for line in other]


def test_wrapped_run_generates_equal_texts(run_and_wrapped):
    run, wrapped = run_and_wrapped("gpt")
    for options in ({"seed": 3}, {"method": "greedy"}, {"method": "beam", "beam": 4}):
        one, other = (
            model.sample(2, prefix="the", max_length=8, **options) for model in (run, wrapped)
        )
        assert [text.text for text in one] == [text.text for text in other]
        for a, b in zip(one, other, strict=True):
            assert close(b.log_prob, a.log_prob)


def test_wrapped_run_fills_masks_equally(run_and_wrapped):
    run, wrapped = run_and_wrapped("bert")
    for options in ({}, {"joint": True}, {"among": ["cat", "dog"]}):
        one, other = (
            model.fill(["the <mask> sat on <mask>"], **options)[0] for model in (run, wrapped)
        )
        gaps = [
            [option.text for gap in filled.masks for option in gap.options]
            for filled in (one, other)
        ]
        assert gaps[0] == gaps[1]
        for a, b in zip(one.candidates, other.candidates, strict=True):
            assert a.text == b.text and close(b.log_prob, a.log_prob)


def test_wrapped_run_has_equal_logits(run_and_wrapped):
    run, wrapped = run_and_wrapped("bert")
    batch = Batch.collate([[2, 6, 7, 8, 3], [2, 9, 3]], pad=0)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, 2] = masked[1, 1] = True
    targets = masked.clone()
    targets[0, 3] = True
    with torch.no_grad():
        logits, expected = (model.system.logits(batch, masked, targets) for model in (wrapped, run))
    assert logits.shape == (3, run.system.vocabulary.size)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    with pytest.raises(UserError, match="head= does not apply"):
        wrapped.system.logits(batch, masked, head="none")


def test_wrapped_models_are_compared_with_runs(run_and_wrapped, folder, tmp_path):
    run, wrapped = run_and_wrapped("gpt")
    comparison = lmlab.compare(
        [run, wrapped], data=folder / "corpus.txt", out=tmp_path / "report.html"
    )
    rows = {row.name: row for row in comparison.rows}
    assert rows.keys() == {"gpt", "stranger"}
    assert close(rows["stranger"].nats_per_token, rows["gpt"].nats_per_token)
    assert rows["stranger"]["perplexity"] is not None and rows["stranger"]["train_seconds"] is None
    assert "stranger" in (tmp_path / "report.html").read_text(encoding="utf-8")
    unnamed = lmlab.wrap(RecurrentLM(), letter_tokenizer(), end=".")
    with pytest.raises(UserError, match=r"lmlab\.wrap takes a name="):
        lmlab.compare(
            [unnamed, lmlab.wrap(RecurrentLM(), letter_tokenizer(), end=".")], data="capitals"
        )
    with pytest.raises(UserError, match="not trained here"):
        lmlab.compare([unnamed])


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_wrapped_model_figures_go_to_the_given_folder(run_and_wrapped, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, wrapped = run_and_wrapped(name)
    inspection = lmlab.inspect(
        [wrapped], texts=["the cat sat on the mat"], out=tmp_path / "pictures"
    )
    assert {"surprisal", "view"} <= {figure.name for figure in inspection.figures}
    assert {path.name for path in tmp_path.iterdir()} == {"pictures"}, "nothing beside it"
    with pytest.raises(UserError, match="give --out"):
        lmlab.inspect([wrapped], texts=["the cat"])
    examination = lmlab.doctor(wrapped, text="the cat sat", out=tmp_path / "pictures")
    assert (tmp_path / "pictures" / "causality.svg").exists()
    assert examination.causality is not None and examination.findings == ()
    assert examination.causality.verdict == ("causal" if name == "gpt" else "bidirectional")
    # The wrapped network depends on what the run depends on.
    report = lmlab.doctor(run, text="the cat sat").causality
    assert report is not None and report.tokens == examination.causality.tokens
    assert report.verdict == examination.causality.verdict
    for own, other in zip(report.token_effects, examination.causality.token_effects, strict=True):
        assert other == pytest.approx(own, abs=1e-4)


# Properties of the scores -----------------------------------------------------------------------


def test_wrapped_causal_model_is_normalised():
    """Texts of at most 3 letters and the mass of longer ones sum to one."""
    model = lmlab.wrap(RecurrentLM(4), letter_tokenizer(4), end=3, start=0)
    system, vocabulary = model.system, model.system.vocabulary
    assert vocabulary == Vocabulary(size=5, pad=4, unknown=None, start=0, end=3, mask=None)
    rows, whole = [], []
    for length in range(4):
        for inside in itertools.product((1, 2), repeat=length):
            rows.append([0, *inside, 3])
            if length == 3:
                whole.append([0, *inside])
    batch = Batch.collate([*rows, *whole], pad=4)
    with torch.no_grad():
        totals = system.eval().log_prob(batch).totals
    # Longer texts have a prefix of three letters without an end token.
    ended, unfinished = totals[: len(rows)].exp().sum(), totals[len(rows) :].exp().sum()
    ends = totals[len(rows) - len(whole) : len(rows)].exp().sum()
    assert float(ended + unfinished - ends) == pytest.approx(1, abs=1e-5)
    with torch.no_grad():
        first = system.peek(system.start(1)).log_probs[0]
    assert first[[0, 4]].tolist() == [-math.inf, -math.inf]
    assert float(first.exp().sum()) == pytest.approx(1, abs=1e-6)


def test_stepwise_log_probs_sum_to_the_score():
    model = lmlab.wrap(RecurrentLM(), letter_tokenizer(), end=".")
    [score] = model.score(["a cat"])
    system = model.system.eval()
    ids = [*model.tokenizer.encode("a cat"), 27]
    state, total = system.start(1), 0.0
    with torch.no_grad():
        for id in ids:
            total += float(system.peek(state).log_probs[0, id])
            state = system.advance(state, torch.tensor([id]))
    assert total == pytest.approx(score.total, abs=1e-4)
    assert not score.convention.start and score.convention.end  # the end token also precedes a text


@pytest.mark.parametrize("bidirectional", [False, True])
def test_score_is_independent_of_the_batch(bidirectional):
    """A bidirectional module without attention mask gets batches of equal length."""
    kind = "masked" if bidirectional else "causal"
    model = lmlab.wrap(
        RecurrentLM(bidirectional=bidirectional), letter_tokenizer(), end=".", mask="#", kind=kind
    )
    assert model.config.wrapped.pads is not bidirectional
    texts = ["a cat", "the dog ran", "a", "the cat ran off"]
    together = model.score(texts)
    for text, batched in zip(texts, together, strict=True):
        [alone] = model.score([text])
        assert batched.total == pytest.approx(alone.total, abs=1e-5)
    assert together[0].kind == ("pseudo" if bidirectional else "exact")


def test_ignored_attention_mask_disables_padding():
    class IgnoresAttentionMask(RecurrentLM):
        def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return super().forward(ids)

    model = lmlab.wrap(
        IgnoresAttentionMask(bidirectional=True),
        letter_tokenizer(),
        end=".",
        mask="#",
        kind="masked",
    )
    assert model.system.backbone.takes_attention_mask and not model.config.wrapped.pads


def test_scoring_in_chunks_limits_logits_in_memory(monkeypatch):
    model = lmlab.wrap(RecurrentLM(), letter_tokenizer(), end=".")
    texts = ["a cat", "the dog ran", "a", "the cat ran off"] * 3
    expected = model.score(texts)
    monkeypatch.setattr("lmlab.models.wrapped.MAX_LOGITS_IN_MEMORY", 600)
    seen: list[int] = []
    read = model.system.backbone.read
    monkeypatch.setattr(
        model.system.backbone,
        "read",
        lambda ids, lengths: seen.append(len(ids)) or read(ids, lengths),
    )
    for one, other in zip(expected, model.score(texts), strict=True):
        assert other.total == pytest.approx(one.total, abs=1e-5)
    assert len(seen) > 3


def test_wrapping_shares_the_module_and_restores_its_mode():
    module = RecurrentLM()
    module.dropout.eval()  # each submodule has its own mode
    model = lmlab.wrap(module, letter_tokenizer(), end=".")
    [before] = model.score(["a cat"])
    assert module.training and not module.dropout.training
    assert model.system.backbone.module is module
    with torch.no_grad():
        module.output.bias[1] += 3.0  # later updates affect later scores
    [after] = model.score(["a cat"])
    assert after.per_token[0].log_prob > before.per_token[0].log_prob + 0.1  # 1 is "a"


def test_wrapped_system_protocols_match_its_card():
    for kind, bidirectional in (("causal", False), ("masked", True)):
        model = lmlab.wrap(
            RecurrentLM(bidirectional=bidirectional),
            letter_tokenizer(),
            end=".",
            mask="#",
            kind=kind,
        )
        supported = {
            name for name, protocol in PROTOCOLS.items() if isinstance(model.system, protocol)
        }
        assert supported == set(model.card.protocols)


def test_text_longer_than_the_window_is_scored_with_stride():
    model = lmlab.wrap(RecurrentLM(), letter_tokenizer(), end=".", window=6)
    [score] = model.score(["the cat ran off"])
    assert (score.convention.window, score.convention.stride, score.tokens) == (6, 3, 16)
    [text] = model.sample(1, prefix="a c", max_length=50)
    assert text.tokens <= 3


def test_count_end_false_omits_the_end_token():
    module = RecurrentLM()
    whole, open_end = (
        lmlab.wrap(module, letter_tokenizer(), end=".", count_end=count).score(["a cat"])[0]
        for count in (True, False)
    )
    assert (whole.tokens, open_end.tokens) == (6, 5) and not open_end.convention.end
    assert open_end.total == pytest.approx(whole.total - whole.per_token[-1].log_prob, abs=1e-5)
    started = lmlab.wrap(module, letter_tokenizer(), start="#")
    assert not started.score(["a cat"])[0].convention.end
    assert not started.sample(1, max_length=4)[0].finished


# External tokenizers ----------------------------------------------------------------------------


def word_tokenizer() -> hf.Tokenizer:
    words = ["[PAD]", "[UNK]", "<go>", "<stop>", "the", "cat", "sat"]
    inner = hf.Tokenizer(hf.models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = hf.pre_tokenizers.WhitespaceSplit()
    return inner


def test_special_tokens_are_given_by_name_or_id():
    module = RecurrentLM(7)
    wrapped = lmlab.wrap(module, word_tokenizer(), start="<go>", end=3)
    expected = Vocabulary(size=7, pad=0, unknown=1, start=2, end=3, mask=None)
    assert wrapped.system.vocabulary == wrapped.tokenizer.vocabulary == expected
    [score] = wrapped.score(["the zebra sat"])
    assert (score.tokens, score.unknown) == (4, 1)
    no_pad = lmlab.wrap(module, word_tokenizer(), start="<go>", end=3, pad=None)
    assert no_pad.system.vocabulary.pad == 7  # beyond all tokens


def test_pad_token_shared_with_another_stays_predictable():
    model = lmlab.wrap(RecurrentLM(7), word_tokenizer(), start="<go>", end="<stop>", pad="[UNK]")
    assert model.system.vocabulary.pad == 7
    assert math.isfinite(model.score(["zebra"])[0].total)


def test_transformers_tokenizer_provides_special_tokens():
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(),
        bos_token="<go>",
        eos_token="<stop>",
        unk_token="[UNK]",
        pad_token="[PAD]",
    )
    model = lmlab.wrap(RecurrentLM(7), fast)
    assert model.system.vocabulary == Vocabulary(
        size=7, pad=0, unknown=1, start=2, end=3, mask=None
    )
    assert model.tokenizer.encode("the cat") == [4, 5]


def tokenizer_with_end_as_unknown() -> hf.Tokenizer:
    """GPT-2 style: the end token is the unknown token as well."""
    words = ["[PAD]", "<|endoftext|>", "the", "cat", "sat"]
    inner = hf.Tokenizer(hf.models.WordLevel({w: i for i, w in enumerate(words)}, words[1]))
    inner.pre_tokenizer = hf.pre_tokenizers.WhitespaceSplit()
    return inner


def test_end_token_equal_to_unknown_is_not_counted_unknown():
    model = lmlab.wrap(RecurrentLM(5), tokenizer_with_end_as_unknown(), end="<|endoftext|>")
    assert model.system.vocabulary.unknown == model.system.vocabulary.end == 1
    known, zebra, last = model.score(["the cat sat", "the zebra sat", "the zebra"])
    assert [score.unknown for score in (known, zebra, last)] == [0, 1, 1]
    assert [token.unknown for token in zebra.per_token] == [False, True, False, False]
    assert [token.token for token in last.per_token] == ["the", "zebra", "</s>"]
    assert 1 in model.tokenizer.symbols
    split = Split.from_list(["the cat", "a cat"], identity="shared end", name="test")
    dataset = TokenDataset.build(split, model.tokenizer, Layout(), progress=False)
    assert dataset.unknown_counts.tolist() == [0, 1]


def test_lmlab_tokenizer_is_used_unchanged():
    tokenizer = train_tokenizer("word", LINES)
    model = lmlab.wrap(RecurrentLM(tokenizer.vocabulary.size), tokenizer)
    assert model.system.vocabulary == tokenizer.vocabulary
    assert model.tokenizer.fingerprint() == tokenizer.fingerprint()


def test_offsets_are_recovered_from_decoded_tokens():
    """By searching each decoded token, ignoring case, with bytes of one character together."""
    pieces = {1: "the", 2: " cat", 3: "\ufffd", 4: "\ufffd", 5: " "}

    def decode(ids: list[int]) -> str:
        return "".join(pieces[id] for id in ids).replace("\ufffd\ufffd", "é")

    table = {"The caté ": [1, 2, 3, 4, 5], "": []}
    odd = SimpleNamespace(encode=table.__getitem__, decode=decode, n_vocab=6)
    model = lmlab.wrap(RecurrentLM(6), odd, end=0)
    ids, spans = model.tokenizer.encode_with_offsets("The caté ")
    assert ids == [1, 2, 3, 4, 5]
    assert spans == [(0, 3), (4, 7), (7, 8), (7, 8), (9, 9)]
    assert model.tokenizer.characters_of("The caté ", 2) == 7


# Invalid modules and arguments ------------------------------------------------------------------


class FixedOutput(nn.Module):
    """Return whatever `answer` gives."""

    def __init__(self, answer: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, ids: Tensor) -> object:
        return self.answer(ids)


def scores(ids: Tensor, size: int = len(LETTERS)) -> Tensor:
    return torch.zeros(*ids.shape, size)


INVALID_MODULES: dict[str, tuple[Callable[[], object], str]] = {
    "few": (
        lambda: RecurrentLM(rows=20),
        "the tokenizer has 29 tokens, but the module outputs .* 20",
    ),
    "small": (lambda: RecurrentLM(20), "the tokenizer has 29 tokens, but the module outputs .* 20"),
    "short": (lambda: FixedOutput(lambda ids: scores(ids)[:, [9]]), "give window= if"),
    "last": (lambda: FixedOutput(lambda ids: scores(ids)[:, -1:]), r"\(1, 8, .*got \(1, 1, 29\)"),
    "flat": (lambda: FixedOutput(lambda ids: scores(ids).flatten(0, 1)), r"got \(8, 29\)"),
    "dict": (lambda: FixedOutput(lambda ids: {"scores": 1}), "got dict"),
    "nan": (lambda: FixedOutput(lambda ids: scores(ids) * math.nan), "not finite"),
    "never": (lambda: FixedOutput(lambda ids: scores(ids) - math.inf), "not finite"),
    "both": (
        lambda: RecurrentLM(bidirectional=True),
        "not causal: changing the token at position 8 changes",
    ),
    "crash": (lambda: FixedOutput(lambda ids: 1 / 0), "ZeroDivisionError"),
    "no module": (lambda: len, "a torch module, got builtin_function_or_method"),
}


@pytest.mark.parametrize(("make", "message"), INVALID_MODULES.values(), ids=INVALID_MODULES)
def test_invalid_modules_are_refused(make, message):
    with pytest.raises(UserError, match=message) as error:
        lmlab.wrap(make(), letter_tokenizer(), end=".")
    assert str(error.value).count(". ") == 0


INVALID_ARGUMENTS: dict[str, tuple[dict[str, object], str]] = {
    "no mask": ({"kind": "masked", "end": "."}, "give mask="),
    "causal as masked": ({"kind": "masked", "end": ".", "mask": "#"}, "wrap it with kind='causal'"),
    "no frame": ({}, "no start and no end token"),
    "no such token": ({"end": "!"}, "end is '!'"),
    "no such id": ({"end": 29}, "none of the 29 tokens"),
    "no such argument": ({"finish": "."}, "finish"),
    "no such kind": ({"kind": "casual", "end": "."}, "did you mean 'causal'"),
    "no window": ({"end": ".", "window": 1}, "at least 2 tokens"),
}


@pytest.mark.parametrize(("options", "message"), INVALID_ARGUMENTS.values(), ids=INVALID_ARGUMENTS)
def test_invalid_wrap_arguments_are_refused(options, message):
    tokenizer = letter_tokenizer()
    with pytest.raises(UserError, match=message):
        lmlab.wrap(RecurrentLM(), tokenizer, **options)


def test_invalid_tokenizers_are_refused():
    with pytest.raises(UserError, match="a tokenizer must have encode and decode, got dict"):
        lmlab.wrap(RecurrentLM(), {})
    sizeless = letter_tokenizer()
    del sizeless.vocab_size
    with pytest.raises(UserError, match="vocab_size"):
        lmlab.wrap(RecurrentLM(), sizeless)
    framing = letter_tokenizer()
    framing.encode = lambda text: [28]
    with pytest.raises(UserError, match=r"encodes an empty text as \[28\]"):
        lmlab.wrap(RecurrentLM(), framing)


def test_unencodable_text_is_reported():
    """Its encode raises at < and at !: a mask token must not reach it, a text gives a UserError."""
    model = lmlab.wrap(
        RecurrentLM(bidirectional=True), letter_tokenizer(), kind="masked", mask="#", end="."
    )
    [filled] = model.fill(["the <mask>at"], top=2)
    assert len(filled.masks[0].options) == 2
    with pytest.raises(UserError, match=r"can't encode 'the cat!' \(ValueError: substring not"):
        model.score(["the cat!"])


def test_excess_logits_are_dropped_with_a_warning():
    with pytest.warns(UserWarning, match="scores for 32 ids and the tokenizer has 29"):
        model = lmlab.wrap(RecurrentLM(rows=32), letter_tokenizer(), end=".")
    with torch.no_grad():
        log_probs = model.system.eval().peek(model.system.start(1)).log_probs
    assert log_probs.shape == (1, 30)  # 29 and padding
    assert float(log_probs.exp().sum()) == pytest.approx(1, abs=1e-6)


def test_wrapped_module_refuses_a_condition():
    model = lmlab.wrap(RecurrentLM(), letter_tokenizer(), end=".")
    with pytest.raises(UserError, match="a condition does not apply to"):
        model.system.start(1, condition=Batch.collate([[1, 2]], pad=0))
