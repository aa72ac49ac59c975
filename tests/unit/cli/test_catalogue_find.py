"""`lmlab find`: search by the field's terms in names, docstrings, settings, glossary, docs."""

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
    "cross-attention": "layers/block.py",
    "attention mask": "core/attention_mask.py",
    "KV cache": "layers/kv_cache.py",
    "layer norm": "layers/block.py",
    "positional embedding": "layers/input_embedding.py",
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
    "SyntaxGym": "lmlab bench",
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
"""What one of the first three results must name: a file, system, command or setting."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    """Search index of the contents of a wheel, which has no docs/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "DOCS", tmp_path_factory.mktemp("no-docs"))
        return SearchIndex(search_module.entries(lambda source: True))


@pytest.mark.parametrize("query", EXPECTED)
def test_field_term_is_found_in_the_top_three_results(index: SearchIndex, query: str) -> None:
    top = index.search(query, limit=3)
    assert any(EXPECTED[query] in f"{hit.name} {hit.where} {hit.excerpt}" for hit in top), top


def test_prefiltered_search_equals_full_search(monkeypatch, tmp_path, index) -> None:
    monkeypatch.setattr(search_module, "DOCS", tmp_path)
    for query in ("vanishing gradient", "beam search", "gated recurrence"):
        quick = [(hit.name, hit.where) for hit in search(query, limit=3)]
        assert quick == [(hit.name, hit.where) for hit in index.search(query, limit=3)]


def test_exact_function_name_is_in_the_top_three(index: SearchIndex) -> None:
    assert "beam_search" in [hit.name for hit in index.search("beam search", limit=3)]


def test_query_without_words_has_no_results(index: SearchIndex) -> None:
    assert index.search("…") == []


def test_glossary_names_existing_files_and_commands() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert len(files) > 50
    assert [file for file in files if not (PACKAGE / file).is_file()] == []
    known = {name.split()[1] for name in verbs().values()}
    named = re.findall(r"`lmlab ([a-z-]+)", text)
    assert [command for command in named if command not in known] == []


def test_results_have_kind_name_excerpt_and_file(lmlab) -> None:
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


def test_docs_pages_are_searched_by_section(monkeypatch, tmp_path) -> None:
    page = "# Wombats\n\nBurrows.\n\n## Their food\n\nEucalyptus is what quokkas do not eat.\n"
    (tmp_path / "animals.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(search_module, "DOCS", tmp_path)
    [hit] = search("quokka")
    assert (hit.kind, hit.name, hit.where) == ("docs", "Their food", "docs/animals.md")


def test_options_of_a_command_are_searched(index: SearchIndex) -> None:
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
def test_inflected_forms_share_a_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_identifiers_are_split_into_words() -> None:
    assert stems("KVCache key_values log-prob") == [
        *stems("kv cache"),
        *stems("key values log prob"),
    ]


def test_search_does_not_import_torch() -> None:
    code = "import sys; from lmlab.core.search import search; search('attention'); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "False\n"
