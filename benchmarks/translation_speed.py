"""Speed of decoding and training of a translator, as ratios measured in one run.

    python benchmarks/translation_speed.py --data DATA [--run RUN] [--rounds 3] [--out FILE]

- beam: texts per second of a beam of 5 over 200 test sentences of multi30k, by a Transformer of 3 +
  3 layers, 256 wide, against `generate` of transformers' Marian with the same weights, at the best
  of several batch sizes: on the sentences in their order, which is what a call of `generate` does,
  and on batches grouped by length for it, as ours does by itself. RUN is a trained `transformer` of
  that shape; without one it is trained for a few minutes first, so that sentences end as
  translations do.
- training: target tokens per second of the same model against one written with torch.nn.Transformer
  and trained on batches of as many sentences in their order, padded.

Each side has its own process; ours with lmlab's memory settings, the peer with the default ones.
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
from measuring import Apart, rate, taking_turns
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
SENTENCES, BEAM, MOST = 200, 5, 60
PENALTY = 1.0
"""By log p alone both searches end most texts too early, and not the same ones."""
BATCH_SIZES = (25, 50, 100, 200)


def trained(data: Path, minutes: float) -> Path:
    """A run of the right shape, trained for some minutes."""
    out = Path(tempfile.mkdtemp()) / "run"
    corpus = f"multi30k-de-en:{data}"
    lmlab.train(
        "transformer", data=corpus, out=out, settings=SETTINGS, tokenizer="bpe", minutes=minutes
    )
    return out


def marian_of(model: Any) -> Any:
    """transformers' Marian with the weights of our run."""
    config, vocabulary = model.config["system_config"], model.system.vocabulary
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
            encoder_ffn_dim=config["inner"] or 4 * config["width"],
            decoder_ffn_dim=config["inner"] or 4 * config["width"],
            activation_function=config["activation"],
            scale_embedding=config["scaled"],
            pad_token_id=vocabulary.pad,
            eos_token_id=vocabulary.end,
            decoder_start_token_id=vocabulary.start,
            forced_eos_token_id=None,
        )
    )
    weights = theirs.state_dict()
    weights.update(
        their_names(model.system.state_dict(), never=model.system.emission.never_predicted)
    )
    theirs.load_state_dict(weights)
    return theirs.eval()


PARTS = {
    "attention.output": "self_attn.out_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "feed_forward.up_projection": "fc1",
    "feed_forward.down_projection": "fc2",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
}


def their_names(ours: dict[str, Tensor], *, never: Tensor) -> dict[str, Tensor]:
    """Our weights under the names of Marian; what is never predicted has a bias near -inf."""
    shared = ours["emission.weight"]
    bias = ours["emission.bias"] + never.clamp(min=-1e9)
    names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    found = {f"model.{name}.weight": shared for name in names}
    found |= {"lm_head.weight": shared, "final_logits_bias": bias[None]}
    for name, value in ours.items():
        if ".stack.blocks." not in name:
            continue
        side, _, _, layer, rest = name.removeprefix("backbone.").split(".", 4)
        part, _, kind = rest.rpartition(".")
        place = f"model.{side}.layers.{layer}"
        if not part.endswith("project"):
            found[f"{place}.{PARTS[part]}.{kind}"] = value
            continue
        attention = "self_attn" if part == "attention.qkv_projection" else "encoder_attn"
        for letter, each in zip("qkv", value.chunk(3), strict=True):
            found[f"{place}.{attention}.{letter}_proj.{kind}"] = each
    return found


Texts = Callable[..., list[str]]


def test_sources(data: Path) -> list[str]:
    examples = open_corpus(f"multi30k-de-en:{data}").split("test")
    return [each.condition or "" for each in examples][:SENTENCES]


def our_texts(run: Path, data: Path) -> Texts:
    """Our beam search on the test sentences, as by `lmlab translate`."""
    model, texts = lmlab.load(run).model, test_sources(data)
    translator = make_translator(
        model.system,
        model.tokenizer,
        model.effective_source_tokenizer,
        beam=BEAM,
        length_penalty=PENALTY,
        max_length=MOST,
    )
    return lambda: [each.text for each in translator.translate([texts])]


def their_texts(run: Path, data: Path) -> Texts:
    """The same by `generate`, in batches of a size, in order or grouped by length."""
    model = lmlab.load(run).model
    theirs, vocabulary = marian_of(model), model.system.vocabulary
    encoded = [
        [vocabulary.start, *model.tokenizer.encode(text), vocabulary.end]
        for text in test_sources(data)
    ]
    come = list(range(len(encoded)))
    by_length = sorted(come, key=lambda index: len(encoded[index]))

    @torch.inference_mode()
    def generated(size: int, gathered: bool) -> list[str]:
        found: dict[int, str] = {}
        order = by_length if gathered else come
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            batch = Batch.collate([encoded[row] for row in rows], pad=vocabulary.pad)
            answers = theirs.generate(
                batch.tokens,
                attention_mask=batch.mask().long(),
                num_beams=BEAM,
                length_penalty=PENALTY,
                early_stopping=False,
                do_sample=False,
                max_new_tokens=MOST,
            )
            for row, answer in zip(rows, answers.tolist(), strict=True):
                kept = [t for t in answer[1:] if t not in (vocabulary.pad, vocabulary.end)]
                found[row] = model.tokenizer.decode(kept)
        return [found[row] for row in range(len(encoded))]

    return generated


def timed(make: Callable[..., Texts], *made_of: Any) -> Callable[..., tuple[float, list[str]]]:
    """Texts per second, and the texts."""
    write = make(*made_of)

    def measure(*asked: Any) -> tuple[float, list[str]]:
        began = time.perf_counter()
        found = write(*asked)
        return len(found) / (time.perf_counter() - began), found

    return measure


def compare_beam(run: Path, data: Path, rounds: int) -> dict[str, Any]:
    """Against `generate` on sentences in order, and on batches grouped by length for it."""
    threads, record = torch.get_num_threads(), {}
    with (
        Apart(timed, our_texts, run, data, threads=threads) as ours,
        Apart(timed, their_texts, run, data, threads=threads) as theirs,
    ):
        theirs(SENTENCES, True)
        found = theirs(SENTENCES, True)[1]
        same = sum(a == b for a, b in zip(ours()[1], found, strict=True)) / SENTENCES
        for gathered in (False, True):
            tried = {size: theirs(size, gathered)[0] for size in BATCH_SIZES}
            best = max(tried, key=lambda size: tried[size])
            turns = taking_turns(
                lambda: ours()[0],
                lambda size=best, how=gathered: theirs(size, how)[0],  # type: ignore[misc]
                rounds,
            )
            title = "batches gathered by length for it" if gathered else "sentences as they come"
            record[title] = {**turns, "best batch of generate": best}
    return {**record, "same texts": same}


class PlainTransformer(nn.Module):
    """A plain translator on torch.nn.Transformer."""

    def __init__(self, words: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.tokens = nn.Embedding(words, WIDTH)
        self.places = nn.Embedding(SETTINGS["length"], WIDTH)
        self.core = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, 4 * WIDTH, dropout=0.1, batch_first=True
        )
        self.head = nn.Linear(WIDTH, words)
        self.head.weight = self.tokens.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        shown, wanted = target[:, :-1], target[:, 1:]
        unseen = nn.Transformer.generate_square_subsequent_mask(shown.shape[1])
        read, written = (
            self.tokens(side) * WIDTH**0.5 + self.places.weight[: side.shape[1]]
            for side in (source, shown)
        )
        values = self.core(
            read,
            written,
            tgt_mask=unseen.isinf(),
            src_key_padding_mask=source == self.pad,
            tgt_key_padding_mask=shown == self.pad,
            memory_key_padding_mask=source == self.pad,
            tgt_is_causal=True,
        )
        logits = self.head(values)
        return F.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=self.pad, reduction="mean"
        )


def read_pairs(run: Path, data: Path) -> tuple[Any, TokenDataset, LengthBatches]:
    model = lmlab.load(run).model
    corpus = open_corpus(f"multi30k-de-en:{data}")
    dataset = TokenDataset.build(corpus.splits["train"], model.tokenizer, corpus.layout)
    return (
        model,
        dataset,
        LengthBatches(dataset, tokens_per_batch=SETTINGS["tokens_per_batch"], seed=0),
    )


def our_training(run: Path, data: Path) -> Callable[[float], float]:
    """Target tokens per second of ours, with the memory settings of `lmlab train`."""
    retain_freed_memory()
    model, _, batches = read_pairs(run, data)
    return partial(rate, our_steps(model.system.train(), batches))


def plain_training(run: Path, data: Path) -> Callable[[float], float]:
    """The same of the plain one."""
    model, dataset, batches = read_pairs(run, data)
    rows = max(1, len(dataset) // batches.batches_per_epoch())
    return partial(rate, plain_steps(dataset, rows, model.system.vocabulary))


def compare_training(run: Path, data: Path, rounds: int, seconds: float) -> dict[str, Any]:
    threads = torch.get_num_threads()
    with (
        Apart(our_training, run, data, threads=threads) as ours,
        Apart(plain_training, run, data, threads=threads) as theirs,
    ):
        ours(seconds / 3), theirs(seconds / 3)
        return taking_turns(lambda: ours(seconds), lambda: theirs(seconds), rounds)


def our_steps(system: Any, batches: LengthBatches) -> Callable[[], int]:
    config = TrainingConfig(learning_rate=1e-4)
    optimizer = build_optimizer(system, config)
    parameters = [p for p in system.parameters() if p.requires_grad]
    under_way = iter(())

    def step() -> int:
        nonlocal under_way
        batch = next(under_way, None)
        if batch is None:
            under_way = batches.epoch(0)
            batch = next(under_way)
        loss, _ = system(batch)
        loss.total.backward()
        clip_gradients(parameters, 1 / float(loss.count), config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return int(loss.count)

    return step


def plain_steps(dataset: TokenDataset, rows: int, vocabulary: Any) -> Callable[[], int]:
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
    parser.add_argument("--run", type=Path, help="a trained transformer of 3 + 3 layers, 256 wide")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="minutes of training without --run"
    )
    parser.add_argument("--only", choices=["beam", "training"], action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of training per round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run = options.run or trained(options.data, options.minutes)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "beam": lambda: compare_beam(run, options.data, options.rounds),
        "training": lambda: compare_training(run, options.data, options.rounds, options.seconds),
    }
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    if options.out and options.out.exists():
        found |= json.loads(options.out.read_text(encoding="utf-8"))
    for name in options.only or parts:
        found[name] = parts[name]()
        print(name, json.dumps(found[name], indent=1), flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
