"""NCE on the four sentences of 002: after 我 come 是 with 2/3 and 爆 with 1/3.

    python benchmarks/notes/nce_four_sentences.py [--seeds 3]

An LSTM over characters is trained by maximum likelihood and by NCE (log Z fixed at 0) with k noise
samples, with the same optimiser and steps. Measured: the probabilities after 我, normalised and as
NCE has them with Z assumed to be 1; the mean over all contexts of KL(counts || model); and the
log-normaliser over contexts.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

from lmlab.core.batch import Batch
from lmlab.objectives.sampled_losses import log_normalisers

SENTENCES = ("我是人", "你很强", "我爆零了", "我是吊打")
SETTINGS: Record = {
    "width": 32,
    "dropout": 0.0,
    "learning_rate": 0.01,
    "schedule": "cosine",
    "tokens_per_batch": 400,
    "steps": 2000,
}
LOSSES = ("maximum likelihood", "nce 1", "nce 5", "nce 25")


def counts() -> dict[str, Counter[str]]:
    """How often each character, or the end, follows each beginning of a sentence."""
    following: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in SENTENCES:
        for index in range(len(sentence) + 1):
            following[sentence[:index]][sentence[index : index + 1]] += 1
    return following


def measure(loss: str, seed: int) -> Record:
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name)
        for split in ("train", "valid", "test"):
            repeats = 20 if split == "train" else 1
            lines = "\n".join(SENTENCES * repeats)
            (corpus / f"{split}.txt").write_text(lines + "\n", encoding="utf-8")
        settings = {k: v for k, v in SETTINGS.items() if k != "steps"}
        if loss.startswith("nce"):
            settings |= {"objective": "nce", "noise_samples": int(loss.split()[1])}
        model = train_model(
            "lstm", str(corpus), settings, seed=seed, steps=SETTINGS["steps"], tokenizer="char"
        )
    divergences, normalisers = [], []
    for beginning, following in counts().items():
        log_probs, log_z = next_log_probs(model, beginning)
        total = sum(following.values())
        divergences.append(
            sum(n / total * (math.log(n / total) - log_probs[c]) for c, n in following.items())
        )
        normalisers.append(log_z)
    after, log_z = next_log_probs(model, "我")
    return {
        "p(是|我)": math.exp(after["是"]),
        "p(爆|我)": math.exp(after["爆"]),
        "p(else|我)": 1 - math.exp(after["是"]) - math.exp(after["爆"]),
        "u(是|我), Z taken as 1": math.exp(after["是"] + log_z),
        "KL from the counts": sum(divergences) / len(divergences),
        "log Z, mean": sum(normalisers) / len(normalisers),
        "log Z, largest size": max(map(abs, normalisers)),
    }


@torch.no_grad()
def next_log_probs(model: Any, beginning: str) -> tuple[dict[str, float], float]:
    """Log-probability of each next character ("" is the end), and the log-normaliser."""
    vocabulary, system = model.system.vocabulary, model.system
    ids = [vocabulary.start, *model.tokenizer.encode(beginning), vocabulary.end]
    view = system.objective.view(Batch.collate([ids], pad=vocabulary.pad))
    last = system.emission.log_probs(system.hidden(view).values[0, -1])
    characters = sorted(set("".join(SENTENCES)))
    log_probs = {c: float(last[model.tokenizer.encode(c)[0]]) for c in characters}
    log_probs[""] = float(last[vocabulary.end])
    return log_probs, float(log_normalisers(system, view).log_probs.flatten()[-1])


def main() -> None:
    options = parse_arguments(__doc__, "nce-four-sentences")
    torch.set_num_threads(1)
    records = measure_missing(options, SETTINGS, [{"loss": loss} for loss in LOSSES], measure)
    print_means(records, ("loss",))


if __name__ == "__main__":
    main()
