"""Decoding and training speed of a translator relative to a baseline, in one run.

    python benchmarks/translation_speed.py --data DATA [--run RUN] [--rounds 3] [--out FILE]

- beam: sentences per second of beam search (width 5) on 200 test sentences of multi30k, by a
  Transformer of 3 + 3 layers, 256 wide, against `generate` of transformers' Marian with the same
  weights, at the best of several batch sizes: once with sentences in corpus order, as `generate`
  takes them, and once with batches grouped by length, as lmlab does. RUN is a trained
  `transformer` of that shape; without it, one is trained for a few minutes first, so that decoding
  ends as it does for translations.
- training: target tokens per second of the same model against one built on torch.nn.Transformer
  and trained on padded batches of as many randomly chosen sentences.

Each side has its own process: lmlab with its allocator settings, the peer with the default ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from measuring import SubprocessMeasurement, measure_alternating, rate
from torch import Tensor, nn

import lmlab
from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.data.batches import LengthBatches
from lmlab.data.corpus import open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.sampling.translation import make_translator
from lmlab.training.config import TrainingConfig
from lmlab.training.loop import clip_gradients
from lmlab.training.optimizers import build_optimizer

WIDTH, LAYERS, HEADS = 256, 3, 8
SETTINGS = {
    "width": WIDTH,
    "layers": LAYERS,
    "heads": HEADS,
    "activation": "relu",
    "length": 128,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup_steps": 200,
    "tokens_per_batch": 2048,
    "vocabulary_size": 8000,
}
SENTENCES, BEAM, MAX_TOKENS = 200, 5, 60
PENALTY = 1.0
"""Length penalty. Without it both searches end most texts too early, and not the same ones."""
BATCH_SIZES = (25, 50, 100, 200)


def train_run(data: Path, minutes: float) -> Path:
    """Train a run of the right shape for some minutes."""
    out = Path(tempfile.mkdtemp()) / "run"
    corpus = f"multi30k-de-en:{data}"
    lmlab.train(
        "transformer", data=corpus, out=out, settings=SETTINGS, tokenizer="bpe", minutes=minutes
    )
    return out


def to_marian(model: Any) -> Any:
    """Convert a run to transformers' Marian with the same weights."""
    config, vocabulary = model.config.system_config, model.system.vocabulary
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=vocabulary.size,
            decoder_vocab_size=vocabulary.size,
            max_position_embeddings=config["length"],
            d_model=config["width"],
            encoder_layers=config["layers"],
            decoder_layers=config["layers"],
            encoder_attention_heads=config["heads"],
            decoder_attention_heads=config["heads"],
            encoder_ffn_dim=config["ffn_width"] or 4 * config["width"],
            decoder_ffn_dim=config["ffn_width"] or 4 * config["width"],
            activation_function=config["activation"],
            scale_embedding=config["scaled_embeddings"],
            pad_token_id=vocabulary.pad,
            eos_token_id=vocabulary.end,
            decoder_start_token_id=vocabulary.start,
            forced_eos_token_id=None,
        )
    )
    weights = theirs.state_dict()
    weights.update(
        marian_weights(
            model.system.state_dict(), never_predicted=model.system.emission.never_predicted
        )
    )
    theirs.load_state_dict(weights)
    return theirs.eval()


MARIAN_MODULES = {
    "mixer.output": "self_attn.out_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "feed_forward.up_projection": "fc1",
    "feed_forward.down_projection": "fc2",
    "mixer_connection.norm": "self_attn_layer_norm",
    "cross_attention_connection.norm": "encoder_attn_layer_norm",
    "feed_forward_connection.norm": "final_layer_norm",
}


def marian_weights(ours: dict[str, Tensor], *, never_predicted: Tensor) -> dict[str, Tensor]:
    """Weights under Marian's names; tokens that are never predicted get a bias near -inf."""
    shared = ours["emission.weight"]
    bias = ours["emission.bias"] + never_predicted.clamp(min=-1e9)
    names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    weights = {f"model.{name}.weight": shared for name in names}
    weights |= {"lm_head.weight": shared, "final_logits_bias": bias[None]}
    for name, value in ours.items():
        if ".stack.blocks." not in name:
            continue
        side, _, _, layer, rest = name.removeprefix("backbone.").split(".", 4)
        part, _, kind = rest.rpartition(".")
        prefix = f"model.{side}.layers.{layer}"
        if not part.endswith("qkv_projection"):
            weights[f"{prefix}.{MARIAN_MODULES[part]}.{kind}"] = value
            continue
        attention = "self_attn" if part == "mixer.qkv_projection" else "encoder_attn"
        for letter, projection in zip("qkv", value.chunk(3), strict=True):
            weights[f"{prefix}.{attention}.{letter}_proj.{kind}"] = projection
    return weights


Translate = Callable[..., list[str]]


def test_sources(data: Path) -> list[str]:
    examples = open_corpus(f"multi30k-de-en:{data}").split("test")
    return [example.condition or "" for example in examples][:SENTENCES]


def lmlab_translator(run: Path, data: Path) -> Translate:
    """Beam search of `lmlab translate` on the test sentences."""
    model, texts = lmlab.load(run).model, test_sources(data)
    translator = make_translator(
        model.system,
        model.tokenizer,
        model.effective_source_tokenizer,
        beam=BEAM,
        length_penalty=PENALTY,
        max_length=MAX_TOKENS,
    )
    return lambda: [translation.text for translation in translator.translate([texts])]


def marian_translator(run: Path, data: Path) -> Translate:
    """The same with `generate`, by batch size, in corpus order or grouped by length."""
    model = lmlab.load(run).model
    theirs, vocabulary = to_marian(model), model.system.vocabulary
    encoded = [
        [vocabulary.start, *model.tokenizer.encode(text), vocabulary.end]
        for text in test_sources(data)
    ]
    corpus_order = list(range(len(encoded)))
    by_length = sorted(corpus_order, key=lambda index: len(encoded[index]))

    @torch.inference_mode()
    def translate(size: int, grouped: bool) -> list[str]:
        decoded: dict[int, str] = {}
        order = by_length if grouped else corpus_order
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            batch = Batch.collate([encoded[row] for row in rows], pad=vocabulary.pad)
            outputs = theirs.generate(
                batch.tokens,
                attention_mask=batch.mask().long(),
                num_beams=BEAM,
                length_penalty=PENALTY,
                early_stopping=False,
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
            )
            for row, output in zip(rows, outputs.tolist(), strict=True):
                tokens = [
                    token for token in output[1:] if token not in (vocabulary.pad, vocabulary.end)
                ]
                decoded[row] = model.tokenizer.decode(tokens)
        return [decoded[row] for row in range(len(encoded))]

    return translate


def timed(
    make: Callable[..., Translate], *make_arguments: Any
) -> Callable[..., tuple[float, list[str]]]:
    """A function that returns sentences per second and the translations."""
    translate = make(*make_arguments)

    def measure(*arguments: Any) -> tuple[float, list[str]]:
        start = time.perf_counter()
        texts = translate(*arguments)
        return len(texts) / (time.perf_counter() - start), texts

    return measure


def compare_beam(run: Path, data: Path, rounds: int) -> dict[str, Any]:
    """lmlab against `generate`, in corpus order and with batches grouped by length."""
    threads, record = torch.get_num_threads(), {}
    with (
        SubprocessMeasurement(timed, lmlab_translator, run, data, threads=threads) as ours,
        SubprocessMeasurement(timed, marian_translator, run, data, threads=threads) as theirs,
    ):
        theirs(SENTENCES, True)
        their_output = theirs(SENTENCES, True)[1]
        same = sum(a == b for a, b in zip(ours()[1], their_output, strict=True)) / SENTENCES
        for grouped in (False, True):
            rates = {size: theirs(size, grouped)[0] for size in BATCH_SIZES}
            best = max(rates, key=lambda size: rates[size])
            turns = measure_alternating(
                lambda: ours()[0],
                lambda size=best, by_length=grouped: theirs(size, by_length)[0],  # type: ignore[misc]
                rounds,
            )
            title = "batches gathered by length for it" if grouped else "sentences as they come"
            record[title] = {**turns, "best batch of generate": best}
    return {**record, "same texts": same}


class PlainTransformer(nn.Module):
    """A plain translator on torch.nn.Transformer."""

    def __init__(self, words: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.tokens = nn.Embedding(words, WIDTH)
        self.positions = nn.Embedding(SETTINGS["length"], WIDTH)
        self.core = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, 4 * WIDTH, dropout=0.1, batch_first=True
        )
        self.head = nn.Linear(WIDTH, words)
        self.head.weight = self.tokens.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        inputs, labels = target[:, :-1], target[:, 1:]
        causal_mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        source_vectors, target_vectors = (
            self.tokens(side) * WIDTH**0.5 + self.positions.weight[: side.shape[1]]
            for side in (source, inputs)
        )
        values = self.core(
            source_vectors,
            target_vectors,
            tgt_mask=causal_mask.isinf(),
            src_key_padding_mask=source == self.pad,
            tgt_key_padding_mask=inputs == self.pad,
            memory_key_padding_mask=source == self.pad,
            tgt_is_causal=True,
        )
        logits = self.head(values)
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=self.pad, reduction="mean"
        )


def load_pairs(run: Path, data: Path) -> tuple[Any, TokenDataset, LengthBatches]:
    model = lmlab.load(run).model
    corpus = open_corpus(f"multi30k-de-en:{data}")
    dataset = TokenDataset.build(corpus.splits["train"], model.tokenizer, corpus.layout)
    return (
        model,
        dataset,
        LengthBatches(dataset, tokens_per_batch=SETTINGS["tokens_per_batch"], seed=0),
    )


def lmlab_training(run: Path, data: Path) -> Callable[[float], float]:
    """Target tokens per second of lmlab, with the allocator settings of `lmlab train`."""
    retain_freed_memory()
    model, _, batches = load_pairs(run, data)
    return partial(rate, lmlab_stepper(model.system.train(), batches))


def plain_training(run: Path, data: Path) -> Callable[[float], float]:
    """The same for the model on torch.nn.Transformer."""
    model, dataset, batches = load_pairs(run, data)
    rows = max(1, len(dataset) // batches.batches_per_epoch())
    return partial(rate, plain_stepper(dataset, rows, model.system.vocabulary))


def compare_training(run: Path, data: Path, rounds: int, seconds: float) -> dict[str, Any]:
    threads = torch.get_num_threads()
    with (
        SubprocessMeasurement(lmlab_training, run, data, threads=threads) as ours,
        SubprocessMeasurement(plain_training, run, data, threads=threads) as theirs,
    ):
        ours(seconds / 3), theirs(seconds / 3)
        return measure_alternating(lambda: ours(seconds), lambda: theirs(seconds), rounds)


def lmlab_stepper(system: Any, batches: LengthBatches) -> Callable[[], int]:
    config = TrainingConfig(learning_rate=1e-4)
    optimizer = build_optimizer(system, config)
    parameters = [p for p in system.parameters() if p.requires_grad]
    batch_iterator = iter(())

    def step() -> int:
        nonlocal batch_iterator
        batch = next(batch_iterator, None)
        if batch is None:
            batch_iterator = batches.epoch(0)
            batch = next(batch_iterator)
        loss, _ = system(batch)
        loss.total.backward()
        clip_gradients(parameters, 1 / float(loss.count), config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return int(loss.count)

    return step


def plain_stepper(dataset: TokenDataset, rows: int, vocabulary: Any) -> Callable[[], int]:
    model = PlainTransformer(vocabulary.size, vocabulary.pad).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)

    def step() -> int:
        chosen = torch.randint(len(dataset), (rows,), generator=generator).tolist()
        sides = [[dataset[i] for i in chosen], [dataset.condition(i) for i in chosen]]
        target, source = (Batch.collate(side, vocabulary.pad).tokens for side in sides)
        optimizer.zero_grad(set_to_none=True)
        model(source, target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return sum(len(side) - 1 for side in sides[0])

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="trained transformer of 3 + 3 layers, 256 wide")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="minutes of training without --run"
    )
    parser.add_argument("--only", choices=["beam", "training"], action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of training per round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run = options.run or train_run(options.data, options.minutes)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "beam": lambda: compare_beam(run, options.data, options.rounds),
        "training": lambda: compare_training(run, options.data, options.rounds, options.seconds),
    }
    record: dict[str, Any] = {"threads": torch.get_num_threads()}
    if options.out and options.out.exists():
        record |= json.loads(options.out.read_text(encoding="utf-8"))
    for name in options.only or parts:
        record[name] = parts[name]()
        print(name, json.dumps(record[name], indent=1), flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
