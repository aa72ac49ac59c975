"""Scoring speed on multi30k against minicons, as ratios measured in one run, the sides alternating.

    python benchmarks/masked_scoring.py [--data FOLDER] [--only norm,gpt] [--rounds 5] [--out FILE]

Both sides load the same checkpoint in Hugging Face format, with random weights, which take as long
as trained ones.

- norm: pseudo-log-likelihood by a BERT of BERT-small's sizes (4 layers, 512 wide, 8 heads, 30,522
  tokens). minicons uses the best of several batch sizes, found first; lmlab its defaults.
- norm-8000: the same with a vocabulary of 8,000, where unneeded logits cost less.
- gpt: left to right by a GPT-2 of the same sizes, against minicons at its best batch size, with one
  call per sentence, and with all sentences in one call, which is how its list argument is used. For
  comparison the matrix products of the same tokens alone, one per linear map: the cost of a scorer
  that computes all logits of every token at once. Ours computes them in blocks that stay in the
  cache, and once for texts that share a prefix, so it can be faster.

Each side has its own process with one thread; ours with lmlab's memory settings, minicons with the
default ones. Seconds are CPU time (`time.process_time`), since the machine may be shared. Texts are
the English side of multi30k's test split in file order, the same for both sides; tokens per second
count scored tokens. Before timing, both sides' sums are compared. transformers 5 dropped a
method that minicons calls (`batch_encode_plus`), so it is added to the tokenizer; nothing else is
changed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from measuring import SubprocessMeasurement, measure_alternating, rate
from minicons import scorer as minicons
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import lmlab
from lmlab.core.allocator import retain_freed_memory
from lmlab.interop.hf.checkpoint_import import import_hf

LAYERS, WIDTH, HEADS, POSITIONS = 4, 512, 8, 512
BERT_VOCABULARY_SIZE = 30_522
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
"""Batch sizes tried for minicons; the best is used."""
SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
END = "<|endoftext|>"
SECONDS = 0.5
"""Minimum seconds per turn; most are longer, as all texts are scored."""
ZERO_PROBABILITY_BIAS = -1e4
"""Output bias that gives a token practically zero probability."""


def make_wordpiece(lines: Sequence[str], size: int) -> Tokenizer:
    """A WordPiece tokenizer like BERT's, padded with unused tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special_tokens = list(SPECIAL_TOKENS.values())
    trainer = trainers.WordPieceTrainer(
        vocab_size=min(size, 8000), special_tokens=special_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    vocabulary = tokenizer.get_vocab()
    for number in range(size - len(vocabulary)):
        vocabulary[f"[unused{number}]"] = len(vocabulary)
    padded = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    padded.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    padded.decoder = decoders.WordPiece()
    padded.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return padded


def save_bert(folder: Path, lines: Sequence[str], size: int) -> None:
    tokenizer = make_wordpiece(lines, size)
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=POSITIONS,
    )
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config)
    excluded = [tokenizer.token_to_id(SPECIAL_TOKENS[role]) for role in ("pad", "cls", "mask")]
    with torch.no_grad():
        # lmlab gives these tokens zero probability; make the sums comparable.
        model.cls.predictions.bias[excluded] = ZERO_PROBABILITY_BIAS
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{role}_token": token for role, token in SPECIAL_TOKENS.items()},
    ).save_pretrained(folder)


def save_gpt(folder: Path, lines: Sequence[str], size: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens(
        [f"[unused{number}]" for number in range(size - tokenizer.get_vocab_size())]
    )
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
    )
    end = tokenizer.token_to_id(END)
    config.bos_token_id = config.eos_token_id = end
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, unk_token=END, pad_token=END
    ).save_pretrained(folder)


Measure = Callable[..., tuple[float, list[float]]]
"""Given texts and a batch size, returns texts per second and the summed scores."""


def total(values: torch.Tensor) -> float:
    return float(values.sum())


def our_scores(run: Path, **options: Any) -> Measure:
    """Scoring by lmlab with default settings."""
    model = lmlab.load(run)

    def score(texts: Sequence[str], _: int) -> list[float]:
        return [result.total for result in model.score(texts, per_token=False, **options)]

    return timed(score)


def our_norm(run: Path) -> Measure:
    return our_scores(run, method="norm")


def their_scores(folder: Path, masked: bool) -> Measure:
    """Scoring by minicons of the checkpoint in `folder`."""
    transformers.PreTrainedTokenizerFast.batch_encode_plus = lambda self, *texts, **more: self(
        *texts, **more
    )
    transformers.utils.logging.disable_progress_bar()
    scorer_class = minicons.MaskedLMScorer if masked else minicons.IncrementalLMScorer
    scorer = scorer_class(str(folder), "cpu")
    options: dict[str, Any] = {} if masked else {"bos_token": True, "eos_token": True}

    def score(texts: Sequence[str], size: int) -> list[float]:
        scores: list[float] = []
        for first in range(0, len(texts), size):
            part = list(texts[first : first + size])
            scores += scorer.sequence_score(part, reduction=total, **options)
        return scores

    return timed(score)


def timed(score: Callable[[Sequence[str], int], list[float]]) -> Measure:
    """Wrap a scoring function to return texts per second and the scores."""

    def measure(texts: Sequence[str], size: int = 0) -> tuple[float, list[float]]:
        scores: list[float] = []

        def step() -> int:
            scores[:] = score(texts, size)
            return len(texts)

        return rate(step, SECONDS, time.process_time), scores

    return measure


def measure_products(vocabulary_size: int) -> Measure:
    """Tokens per second of the matrix products alone, with our memory settings."""
    retain_freed_memory()
    step = matrix_products(vocabulary_size)
    return lambda: (rate(step, SECONDS, time.process_time), [])


def measure(
    peer: SubprocessMeasurement,
    ours: SubprocessMeasurement,
    texts: Sequence[str],
    tokens: int,
    *,
    rounds: int,
    fixed: dict[str, int],
    products: SubprocessMeasurement | None = None,
) -> dict[str, Any]:
    """Compare sums, find the best batch size, then measure both sides in alternation.

    `products`, the matrix products alone, is measured in alternation with minicons too.
    """
    sample = texts[: max(8, len(texts) // 4)]
    pairs = zip(ours(sample)[1], peer(sample, 8)[1], strict=True)
    difference = max(abs(a - b) for a, b in pairs)
    rates = {size: peer(sample, size)[0] for size in BATCH_SIZES}
    best = max(rates, key=lambda size: rates[size])
    record: dict[str, Any] = {
        "sentences": len(texts),
        "tokens scored": tokens,
        "greatest difference of sums": difference,
        "sentences per second by batch size": rates,
    }
    tokens_per_text = tokens / len(texts)
    for name, size in {f"minicons, batches of {best}": best, **fixed}.items():
        record[name] = measure_alternating(
            lambda: ours(texts)[0] * tokens_per_text,
            lambda size=size: peer(texts, size)[0] * tokens_per_text,  # type: ignore[misc]
            rounds,
        )
        if products is not None:
            record[f"products alone over {name}"] = measure_alternating(
                lambda: products()[0],
                lambda size=size: peer(texts, size)[0] * tokens_per_text,  # type: ignore[misc]
                rounds,
            )
    return record


@torch.inference_mode()
def matrix_products(vocabulary_size: int, rows: int = 512) -> Callable[[], int]:
    """Step that computes only the matrix products of such a GPT for `rows` tokens."""
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] * LAYERS
    weights = [torch.randn(out, into) for into, out in [*shapes, (WIDTH, vocabulary_size)]]
    inputs = [torch.randn(rows, weight.shape[1]) for weight in weights]

    def step() -> int:
        with torch.inference_mode():
            for values, weight in zip(inputs, weights, strict=True):
                torch.nn.functional.linear(values, weight)
        return rows

    return step


def norm(
    lines: Sequence[str], texts: Sequence[str], vocabulary_size: int, rounds: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        theirs, run = Path(folder) / "theirs", Path(folder) / "run"
        save_bert(theirs, lines, vocabulary_size)
        import_hf(str(theirs), run)
        tokens = count_scored_tokens(run, texts, method="simple")
        with (
            SubprocessMeasurement(their_scores, theirs, True, threads=1) as peer,
            SubprocessMeasurement(our_norm, run, threads=1) as ours,
        ):
            return measure(peer, ours, texts, tokens, rounds=rounds, fixed={})


def gpt(lines: Sequence[str], texts: Sequence[str], rounds: int) -> dict[str, Any]:
    fixed = {"minicons, a call a sentence": 1, "minicons, one call": len(texts)}
    with tempfile.TemporaryDirectory() as folder:
        theirs, run = Path(folder) / "theirs", Path(folder) / "run"
        save_gpt(theirs, lines, BERT_VOCABULARY_SIZE)
        import_hf(str(theirs), run)
        tokens = count_scored_tokens(run, texts)
        with (
            SubprocessMeasurement(their_scores, theirs, False, threads=1) as peer,
            SubprocessMeasurement(our_scores, run, threads=1) as ours,
            SubprocessMeasurement(measure_products, BERT_VOCABULARY_SIZE, threads=1) as products,
        ):
            return measure(peer, ours, texts, tokens, rounds=rounds, fixed=fixed, products=products)


def count_scored_tokens(run: Path, texts: Sequence[str], **options: Any) -> int:
    """Number of scored tokens."""
    return sum(result.tokens for result in lmlab.load(run).score(texts, per_token=False, **options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--only", default="norm,norm-8000,gpt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=64, help="sentences for the masked models")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/masked_scoring.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.data is None:
        parser.error("--data is required; give it or set LMLAB_DATA.")
    transformers.utils.logging.disable_progress_bar()
    folder = options.data / "multi30k"
    lines = (folder / "train.en").read_text(encoding="utf-8").splitlines()
    texts = (folder / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()
    parts = {
        "norm": lambda: norm(
            lines, texts[: options.sentences], BERT_VOCABULARY_SIZE, options.rounds
        ),
        "norm-8000": lambda: norm(lines, texts[: options.sentences], 8000, options.rounds),
        "gpt": lambda: gpt(lines, texts[: 4 * options.sentences], options.rounds),
    }
    # Parts that are not measured now keep their records and commands.
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    record |= {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "sizes": {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "words": BERT_VOCABULARY_SIZE},
    }
    for name in options.only.split(","):
        command = " ".join(["python", *sys.argv]).replace(str(options.data), "DATA")
        record[name] = {"command": command, **parts[name]()}
        print(name, json.dumps(record[name], indent=2), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
