"""The papers' own ablations, as comparisons of settings: what varies, and what the paper found.

Settings are fixed here, before any reported seed. A comparison trains each variant likewise (its
protocol, see `protocols.py`); a finding says which of two variants the paper has ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The paper has `better` ahead of `worse`."""

    better: str
    worse: str
    where: str
    """Table, figure or section of the paper, with its figures where they are short."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants of one system, trained alike."""

    name: str
    paper: str
    protocol: str
    system: str
    variants: Mapping[str, Settings]
    findings: tuple[Finding, ...]
    common: Settings = field(default_factory=dict)
    """Settings of all variants, besides those of the protocol."""
    systems: Mapping[str, str] = field(default_factory=dict)
    """The system of a variant, where it is another one."""
    minutes: float
    """Estimate for one variant and seed."""
    missing: str = ""
    """What of the paper's ablation has no switch here."""


def _finding(better: str, worse: str, where: str) -> Finding:
    return Finding(better=better, worse=worse, where=where)


SINGLE = {"pairs": "none"}
FIRST_LAYERS = {"layers": 1}

COMPARISONS = (
    Comparison(
        name="mass-share",
        paper="Song et al. 2019, MASS",
        protocol="documents",
        system="mass",
        variants={
            "one token": {"tokens": 1},
            "share 0.1": {"share": 0.1},
            "share 0.5": {},
            "share 0.9": {"share": 0.9},
        },
        findings=(
            _finding("share 0.5", "share 0.1", "study of k: about half of the sentence is best"),
            _finding("share 0.5", "share 0.9", "study of k: about half of the sentence is best"),
            _finding("share 0.5", "one token", "study of k: k = 1 is BERT's case"),
        ),
        minutes=2.5,
    ),
    Comparison(
        name="bart-noises",
        paper="Lewis et al. 2020, BART",
        protocol="documents",
        system="bart",
        variants={
            noise: {"noises": noise}
            for noise in (
                *("masking", "deletion", "infilling", "rotation", "permutation"),
                "permutation,infilling",
            )
        },
        findings=(
            _finding("infilling", "rotation", "Table 1, CNN/DM perplexity 5.83 and 10.59"),
            _finding("infilling", "permutation", "Table 1, CNN/DM perplexity 5.83 and 7.89"),
            _finding("deletion", "masking", "Table 1, CNN/DM perplexity 5.87 and 6.10"),
            _finding(
                "permutation,infilling", "infilling", "Table 1, CNN/DM perplexity 5.41 and 5.83"
            ),
        ),
        minutes=2.5,
    ),
    Comparison(
        name="pegasus-choice",
        paper="Zhang et al. 2020, PEGASUS",
        protocol="documents",
        system="pegasus",
        variants={"ind-orig": {}, "random": {"choice": "random"}, "lead": {"choice": "lead"}},
        findings=(
            _finding("ind-orig", "random", "§6.1.2: ind-orig is best of six choices"),
            _finding("ind-orig", "lead", "§6.1.2: lead is decent on news alone"),
        ),
        minutes=2.5,
    ),
    Comparison(
        name="pegasus-share",
        paper="Zhang et al. 2020, PEGASUS",
        protocol="documents",
        system="pegasus",
        variants={"15 %": {"rate": 0.15}, "30 %": {}, "75 %": {"rate": 0.75}},
        findings=(_finding("30 %", "75 %", "§6.1.2: the best share is always below 50 %"),),
        minutes=2.5,
    ),
    Comparison(
        name="t5-structures",
        paper="Raffel et al. 2020, T5",
        protocol="documents",
        system="t5",
        common={"optimizer": "adafactor", "learning_rate": 0.03},
        variants={
            "denoising": {},
            "shared": {"tied_encoder_decoder": True},
            "half the layers": FIRST_LAYERS,
            "language modelling": {"objective": "language-modelling"},
            "prefix LM": {"objective": "prefix-lm"},
        },
        findings=(
            _finding("denoising", "language modelling", "Table 2, GLUE, for all five structures"),
            _finding("denoising", "half the layers", "Table 2, GLUE 83.28 and 80.88"),
            _finding("denoising", "shared", "Table 2, GLUE 83.28 and 82.81: little"),
            _finding(
                "denoising",
                "prefix LM",
                "Table 2 (its LM has a prefix as source), GLUE 83.28 and 79.56; "
                "Table 4, BERT-style denoising, 82.96 and 80.69",
            ),
        ),
        minutes=2.5,
        missing="decoders without an encoder: T5 has the structure of an encoder-decoder alone; "
        "encoder-decoders read a prefix in the paper's LM, and nothing in `language modelling`",
    ),
    Comparison(
        name="spanbert",
        paper="Joshi et al. 2020, SpanBERT",
        protocol="glosses",
        system="spanbert",
        variants={
            "tokens": {"max_span_length": 1, "sbo_positions": 0},
            "spans": {"sbo_positions": 0},
            "spans, SBO": {},
            "spans, NSP": {"sbo_positions": 0, "pairs": "next", "segments": 2},
        },
        findings=(
            _finding("spans", "tokens", "Table 6: on all tasks but coreference"),
            _finding("spans, SBO", "spans", "Table 7, GLUE 84.0 and 83.8"),
            _finding("spans", "spans, NSP", "Table 7, GLUE 83.8 and 83.4, two sequences with NSP"),
        ),
        minutes=3,
    ),
    Comparison(
        name="roberta",
        paper="Liu et al. 2019, RoBERTa",
        protocol="glosses",
        system="roberta",
        variants={
            "dynamic": {},
            "static": {"masking": "static"},
            "static, one mask": {"masking": "static", "duplicates": 1},
            "NSP": {"pairs": "next", "segments": 2},
        },
        findings=(
            _finding("dynamic", "static", "Table 1: comparable or slightly better"),
            _finding("dynamic", "NSP", "§4.2 and Table 2: without NSP as good or slightly better"),
        ),
        minutes=3,
    ),
    Comparison(
        name="albert",
        paper="Lan et al. 2020, ALBERT",
        protocol="glosses",
        system="albert",
        common={"embedding_width": 64},
        variants={
            "shared, E = 64, SOP": {},
            "not shared": {"shared_layers": False},
            "E = 16": {"embedding_width": 16},
            "E = 128": {"embedding_width": 128},
            "NSP": {"pairs": "next"},
            "no pairs": SINGLE,
        },
        findings=(
            _finding("not shared", "shared, E = 64, SOP", "Table 4, E = 128: 81.6 and 80.1"),
            _finding(
                "shared, E = 64, SOP",
                "E = 16",
                "Table 3, shared: of E = 64 to 768 at width 768 the narrowest is worst, average "
                "79.0, and 128 best, 80.1; here the width is 96",
            ),
            _finding("shared, E = 64, SOP", "NSP", "Table 5, average 80.1 and 79.2"),
            _finding("shared, E = 64, SOP", "no pairs", "Table 5, average 80.1 and 79.0"),
        ),
        minutes=3,
    ),
    Comparison(
        name="electra",
        paper="Clark et al. 2020, ELECTRA",
        protocol="glosses",
        system="electra",
        variants={"all tokens": {}, "15 %": {"detected": "masked"}, "BERT": SINGLE},
        systems={"BERT": "bert"},
        findings=(
            _finding("all tokens", "15 %", "Table 5, GLUE 85.0 and 82.4"),
            _finding("all tokens", "BERT", "Table 5, GLUE 85.0 and 82.2"),
        ),
        minutes=4,
        missing="Replace MLM and All-Tokens MLM: objectives of their own, which `electra` lacks",
    ),
    Comparison(
        name="xlnet-memory",
        paper="Yang et al. 2019, XLNet",
        protocol="stream",
        system="xlnet",
        variants={"memory": {"memory": 32}, "no memory": {"memory": 0}},
        findings=(
            _finding("memory", "no memory", "Table 6, rows 4 and 5, most on RACE: 66.66 and 65.55"),
        ),
        minutes=4,
    ),
    Comparison(
        name="mpnet",
        paper="Song et al. 2020, MPNet",
        protocol="glosses",
        system="mpnet",
        variants={"compensated": {}, "without compensation": {"compensated": False}},
        findings=(
            _finding(
                "compensated",
                "without compensation",
                "abstract: ahead of permuted LM, which it is without compensation, as we "
                "understand the paper",
            ),
        ),
        minutes=4,
    ),
    Comparison(
        name="unilm-shares",
        paper="Dong et al. 2019, UniLM",
        protocol="documents",
        system="unilm",
        variants={
            "a third, a third, a sixth, a sixth": {},
            "bidirectional": {"shares": "1,0,0,0"},
            "sequence to sequence": {"shares": "0,1,0,0"},
            "left to right": {"shares": "0,0,1,0"},
        },
        # The paper gives the shares (§2.4) and no ablation of them; it claims that sharing helps.
        findings=(
            _finding(
                "a third, a third, a sixth, a sixth",
                "bidirectional",
                "introduction: sharing makes it more general; no ablation",
            ),
            _finding(
                "a third, a third, a sixth, a sixth",
                "left to right",
                "introduction: sharing makes it more general; no ablation",
            ),
        ),
        minutes=3,
    ),
    Comparison(
        name="glm",
        paper="Du et al. 2022, GLM",
        protocol="documents",
        system="glm",
        variants={
            "half long, shuffled": {},
            "in order": {"shuffled": False},
            "short spans": {"long_span_rate": 0.0},
            "long spans": {"long_span_rate": 1.0},
        },
        findings=(
            _finding("half long, shuffled", "in order", "§3.4 and Table 6, SuperGLUE"),
            _finding(
                "short spans",
                "half long, shuffled",
                "§3.3: document-level spans help less in generating from a source",
            ),
        ),
        minutes=3,
        missing="one-dimensional positions: `glm` has positions in pairs alone",
    ),
    Comparison(
        name="transformer-xl",
        paper="Dai et al. 2019, Transformer-XL",
        protocol="stream",
        system="transformer-xl",
        variants={
            "recurrence, relative": {"memory": 32},
            "recurrence, Shaw": {"memory": 32, "positions": "shaw"},
            "relative": {"memory": 0},
            "Shaw": {"memory": 0, "positions": "shaw"},
            # `transformer-xl` takes no absolute positions; `gpt` does.
            "sinusoidal": {
                **{"positions": "sinusoidal", "activation": "relu", "pre_norm": False},
                "attention_biases": False,
            },
        },
        systems={"sinusoidal": "gpt"},
        findings=(
            _finding("recurrence, relative", "relative", "Table 6, perplexity 26.77 and 29.02"),
            _finding(
                "recurrence, relative", "recurrence, Shaw", "Table 6, perplexity 26.77 and 27.94"
            ),
            _finding("relative", "sinusoidal", "Table 6, half losses, 30.10 and 30.97"),
        ),
        minutes=2,
    ),
    Comparison(
        name="realm",
        paper="Guu et al. 2020, REALM",
        protocol="retrieval masks",
        system="realm",
        variants={
            "salient spans": {"refresh": 50},
            "random tokens": {"refresh": 50, "salient_spans": False},
            "stale index": {"refresh": 0},
        },
        findings=(
            _finding("salient spans", "random tokens", "Table 2, exact match 38.2 and 32.3"),
            _finding("salient spans", "stale index", "Table 2, exact match 38.2 and 28.7"),
        ),
        minutes=5,
        missing="exact match after fine-tuning on questions, as in the paper's table; its stale "
        "index is refreshed 30 times less often, ours never",
    ),
    Comparison(
        name="rag",
        paper="Lewis et al. 2020, RAG",
        protocol="retrieved answers",
        system="rag-sequence",
        variants={
            "K = 5": {},
            "K = 1": {"retrieved": 1},
            "K = 10": {"retrieved": 10},
            "frozen": {"question_encoder": "fixed"},
        },
        findings=(
            _finding("K = 5", "frozen", "Table 6, Natural Questions 44.0 and 41.2"),
            _finding(
                "K = 10",
                "K = 1",
                "Figure 3, left: more documents at test time, better answers; here in training too",
            ),
        ),
        minutes=5,
    ),
    Comparison(
        name="reversed-sources",
        paper="Sutskever et al. 2014",
        protocol="translation",
        system="seq2seq",
        common={"cell": "lstm"},
        variants={"reversed": {"reverse_source": True}, "as it is": {}},
        findings=(_finding("reversed", "as it is", "§3.3, perplexity 4.7 and 5.8"),),
        minutes=5,
    ),
    Comparison(
        name="luong-scores",
        paper="Luong et al. 2015",
        protocol="translation",
        system="seq2seq-attention",
        common={"query_state": "after"},
        variants={score: {"score": score} for score in ("dot", "general", "additive")},
        findings=(
            _finding(
                "dot", "general", "Table 4, global: BLEU 18.6 and 17.3, perplexity 6.1 for both"
            ),
            _finding(
                "general", "additive", "§5.3, global, additive as concat: perplexity 6.1 and 6.7"
            ),
        ),
        minutes=6,
    ),
    Comparison(
        name="elmo-layers",
        paper="Peters et al. 2018, ELMo",
        protocol="features",
        system="elmo",
        variants={"all layers": {}, "last layer": {"mix": "last"}},
        findings=(
            _finding("all layers", "last layer", "Table 2, SQuAD (development) 85.2 and 84.7"),
        ),
        minutes=4,
    ),
)
