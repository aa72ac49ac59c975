"""Corpus checks: duplicates, leakage between splits, unknown tokens, size, no held-out split."""

from __future__ import annotations

from lmlab.data.corpus_summary import DuplicateCounter
from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.measurements import unknown_token_rate
from lmlab.diagnosis.run_evidence import NotApplicable, RunEvidence, TokenizedSplits

MIN_CHARACTERS = 20
"""Minimum length of a text whose repetition counts: short ones repeat by chance."""
MAX_LEAKED = 0.01
"""Share of held-out texts that occur in train. Captions by many authors have 0.1 %."""
MAX_REPEATED = 0.1
"""Share of training texts that repeat an earlier one."""
MAX_UNKNOWN = 0.08
"""Share of unknown tokens in held-out text. The Penn Treebank, cut at 10,000 words, has 5 %."""
MIN_TOKENS = 1000
"""Minimum training tokens: with fewer, even unigram frequencies are a guess."""


def leakage_between_splits(evidence: RunEvidence) -> Finding | None:
    """Leakage: held-out texts that occur in the training data."""
    texts = _natural_texts(evidence)
    if texts.held_out is None or texts.split is None:
        raise NotApplicable("nothing is held out")
    train, _ = _count_duplicates(texts, "train")
    held_out, total = _count_duplicates(texts, texts.split)
    leaked = held_out.seen_in(train)
    share = leaked / max(total, 1)
    if share < MAX_LEAKED:
        return None
    return Finding(
        name="leakage between splits",
        severity="serious",
        observed=f"{leaked:,} of {total:,} {texts.split} texts ({share:.1%}) also occur in train",
        why="the held-out loss is partly that of memorised text, and too low",
        suggestions=("remove from train what is held out", "remove duplicates before splitting"),
        numbers={"share": share, "texts": float(leaked)},
    )


def repeated_training_texts(evidence: RunEvidence) -> Finding | None:
    """Duplicate texts in train."""
    texts = _natural_texts(evidence)
    counter, total = _count_duplicates(texts, "train")
    share = counter.duplicates / max(total, 1)
    if share < MAX_REPEATED:
        return None
    return Finding(
        name="repeated training texts",
        severity="mild",
        observed=f"{counter.duplicates:,} of {total:,} training texts ({share:.0%}) repeat an "
        f"earlier "
        "one",
        why="repeated text is memorised, and the corpus is smaller than it seems",
        suggestions=("keep each text once", "look for boilerplate: headers, footers, adverts"),
        numbers={"share": share, "texts": float(counter.duplicates)},
    )


def _natural_texts(evidence: RunEvidence) -> TokenizedSplits:
    """The texts, if natural: in a generated language probable ones must repeat."""
    texts = evidence.texts
    if texts.corpus.truth is not None:
        raise NotApplicable("its texts are independent samples, of which the probable ones repeat")
    return texts


def _count_duplicates(texts: TokenizedSplits, split: str) -> tuple[DuplicateCounter, int]:
    counter, total = DuplicateCounter(), 0
    for example in texts.corpus.splits[split]:
        if len(example.text) >= MIN_CHARACTERS:
            counter.add(example)
            total += 1
    return counter, total


def many_unknown_tokens(evidence: RunEvidence) -> Finding | None:
    """A large share of the held-out text is <unk>."""
    texts = evidence.texts
    dataset = texts.train if texts.held_out is None else texts.held_out
    share = unknown_token_rate(dataset)
    if share < MAX_UNKNOWN:
        return None
    split = texts.split or "train"
    return Finding(
        name="many unknown tokens",
        severity="serious" if share > 3 * MAX_UNKNOWN else "mild",
        observed=f"{share:.1%} of the {split} tokens are unknown to the vocabulary of "
        f"{evidence.config.vocabulary.size:,}",
        why="predicting that a word is unknown is easy, so the loss looks better than the "
        "model is, and scores do not compare with those of another vocabulary",
        suggestions=(
            "--tokenizer bpe, which knows no unknown words",
            "a larger vocabulary (--set vocabulary_size=…, --set min_count=1)",
            "more training text",
        ),
        numbers={"share": share},
    )


def tiny_corpus(evidence: RunEvidence) -> Finding | None:
    """Too few training tokens to learn from."""
    tokens = evidence.texts.train.total_tokens
    if tokens >= MIN_TOKENS:
        return None
    return Finding(
        name="tiny corpus",
        severity="mild",
        observed=f"the training text has {tokens:,} tokens",
        why="a model of it is a model of these few sentences; its scores say nothing about "
        "the language",
        suggestions=("more text", "a smaller vocabulary: characters, or bpe"),
        numbers={"tokens": float(tokens)},
    )


def nothing_held_out(evidence: RunEvidence) -> Finding | None:
    """No held-out split to distinguish generalisation from memorisation."""
    if evidence.texts.held_out is not None:
        return None
    return Finding(
        name="nothing held out",
        severity="mild",
        observed="the corpus has neither a validation nor a test split",
        why="the training loss falls for a model that memorises as well, and nothing else "
        "was measured",
        suggestions=("a folder with train*, valid* and test* files", "more lines: 20 are divided"),
    )
