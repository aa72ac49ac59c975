"""`lmlab find`: ideas by the field's terms, in names, docstrings, settings, glossary and docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import lmlab.core.search as search_module
from lmlab.core.search import GLOSSARY, PACKAGE, SearchIndex, search, stem, stems, verbs

EXPECTED = {
    "vanishing gradient": "inspection/gradient_flow.py",
    "beam search": "sampling/beam_search.py",
    "gated recurrence": "lstm",
    "self-attention": "layers/attention.py",
    "cross-attention": "layers/transformer_block.py",
    "attention mask": "core/attention_mask.py",
    "KV cache": "layers/kv_cache.py",
    "layer norm": "layers/transformer_block.py",
    "positional embedding": "layers/positional_embedding.py",
    "rotary": "layers/relative_positions.py",
    "special token": "core/vocabulary.py",
    "BPTT": "training/config.py",
    "gradient accumulation": "training/config.py",
    "gradient clipping": "training/config.py",
    "early stopping": "training/config.py",
    "learning rate": "training/config.py",
    "label smoothing": "zoo/_recurrent_seq2seq.py",
    "dropout": "dropout",
    "cross-entropy": "core/loss.py",
    "teacher forcing": "objectives/conditional_lm.py",
    "masked language model": "objectives/masked_language_modelling.py",
    "permutation language model": "objectives/permutation_lm.py",
    "span corruption": "objectives/span_corruption.py",
    "replaced token detection": "objectives/replaced_token_detection.py",
    "nucleus sampling": "sampling/decoding.py",
    "greedy decoding": "sampling/decoding.py",
    "MCMC": "sampling/mcmc/sampler.py",
    "effective sample size": "sampling/mcmc/diagnostics.py",
    "perplexity": "perplexity",
    "surprisal": "surprisal",
    "pseudo-log-likelihood": "scoring/pseudo_log_likelihood.py",
    "minimal pairs": "lmlab pairs",
    "Kneser-Ney": "inference/kneser_ney.py",
    "forward-backward": "models/hmm.py",
    "Viterbi": "inference/linear_chain.py",
    "inside algorithm": "inference/inside.py",
    "ELBO": "objectives/elbo.py",
    "posterior collapse": "lmlab doctor",
    "noise-contrastive estimation": "objectives/sampled_losses.py",
    "word2vec": "skipgram",
    "mixture of softmaxes": "emissions/mixture_of_softmaxes.py",
    "in-batch negatives": "models/dual_encoder.py",
    "retrieval-augmented generation": "rag-token",
    "entity linking": "lmlab link",
    "few-shot": "lmlab prompt",
    "tokenization": "data/tokenizer_training.py",
    "byte-pair encoding": "data/tokenizer_training.py",
    "Hochreiter": "lstm",
}
"""What must be named in one of the first three results: a file, a system, a verb or a setting."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    """Of what a wheel holds: the pages of docs/ are not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "DOCS", tmp_path_factory.mktemp("no-docs"))
        return SearchIndex(search_module.entries(lambda source: True))


@pytest.mark.parametrize("query", EXPECTED)
def test_a_term_of_the_field_finds_where_it_is_in_three_results(
    index: SearchIndex, query: str
) -> None:
    top = index.search(query, limit=3)
    assert any(EXPECTED[query] in f"{hit.name} {hit.where} {hit.excerpt}" for hit in top), top


def test_skipping_files_without_the_words_loses_nothing(monkeypatch, tmp_path, index) -> None:
    monkeypatch.setattr(search_module, "DOCS", tmp_path)
    for query in ("vanishing gradient", "beam search", "gated recurrence"):
        quick = [(hit.name, hit.where) for hit in search(query, limit=3)]
        assert quick == [(hit.name, hit.where) for hit in index.search(query, limit=3)]


def test_code_that_is_named_so_is_among_the_first_three(index: SearchIndex) -> None:
    assert "beam_search" in [hit.name for hit in index.search("beam search", limit=3)]


def test_nothing_is_found_for_no_word(index: SearchIndex) -> None:
    assert index.search("…") == []


def test_the_files_systems_and_verbs_that_the_glossary_points_to_exist() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert len(files) > 50
    assert [file for file in files if not (PACKAGE / file).is_file()] == []
    known = {name.split()[1] for name in verbs().values()}
    named = re.findall(r"`lmlab ([a-z-]+)", text)
    assert [verb for verb in named if verb not in known] == []


def test_results_say_kind_name_excerpt_and_file(lmlab) -> None:
    lines = lmlab("find", "gradient", "accumulation").out.splitlines()
    assert lines[0].split() == ["kind", "name", "what", "it", "is", "where"]
    [setting] = [line for line in lines if line.startswith("setting")]
    assert setting.split()[1] == "grad_accumulation"
    assert "Gradient accumulation: batches whose gradients are summed" in setting
    assert "lmlab/training/config.py:" in setting


def test_json_has_the_same_results(lmlab) -> None:
    records = json.loads(lmlab("find", "beam search", "--json", "--limit", "2").out)
    assert [record["name"] for record in records] == [h.name for h in search("beam search", 2)]
    assert json.loads(lmlab("find", "qqqqzzzz", "--json").out) == []


def test_pages_of_a_checkout_are_searched_by_section(monkeypatch, tmp_path) -> None:
    page = "# Wombats\n\nBurrows.\n\n## Their food\n\nEucalyptus is what quokkas do not eat.\n"
    (tmp_path / "animals.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(search_module, "DOCS", tmp_path)
    [hit] = search("quokka")
    assert (hit.kind, hit.name, hit.where) == ("docs", "Their food", "docs/animals.md")


def test_options_of_a_verb_are_searched_with_it(index: SearchIndex) -> None:
    assert "lmlab sample" in [hit.name for hit in index.search("width of the beam")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("normalization", "normalisation"),
        ("tokenizer", "tokenised"),
        ("sampling", "samples"),
        ("entities", "entity"),
        ("recurrence", "recurrent"),
        ("masked", "masking"),
    ],
)
def test_forms_of_a_word_have_one_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_names_in_code_are_words() -> None:
    assert stems("KVCache key_values log-prob") == [
        *stems("kv cache"),
        *stems("key values log prob"),
    ]


def test_searching_imports_no_torch() -> None:
    code = "import sys; from lmlab.core.search import search; search('attention'); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "False\n"
