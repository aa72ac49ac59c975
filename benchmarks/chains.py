"""MCMC on masked models: speed, the stationary distribution of Gibbs sampling, sample quality.

    python benchmarks/chains.py speed
    python benchmarks/chains.py law --figure docs/images/gibbs-law.svg
    python benchmarks/chains.py quality --data DATA --runs FOLDER [--judge RUN]

Each part adds its results to --out (benchmarks/results/chains.json). `speed`: chain steps per
second with 1, 4, 16 and 64 chains, by wall-clock and by CPU time. `law`: a tiny BERT is trained on
texts of three tokens with a known distribution, so that the distributions of Gibbs and of exp(-E)
can be enumerated and compared with it during training. `quality`: samples of a BERT trained on
multi30k-l20 by Gibbs and by Metropolis-Hastings with equally many steps, scored by an LSTM. Models
that are not in --runs are trained (a few minutes of one core each):

    lmlab train bert --recipe glosses --steps 1500 --data multi30k-l20:DATA --out RUNS/bert \\
        --set width=64 layers=2 heads=4 length=32 pairs=none segments=0 masking=dynamic \\
              learning_rate=3e-3 tokens_per_batch=2048 warmup_steps=100
    lmlab train lstm --recipe multi30k --epochs 8 --data multi30k-l20:DATA --out RUNS/lstm
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from finishing import finished
from text_quality import bleu, distinct, self_bleu
from transition_matrices import (
    kl_divergence,
    scan_transition_matrix,
    stationary_distribution,
    text_space,
    total_variation,
)

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.sampling.mcmc.acceptance import GibbsAcceptance, MetropolisHastings
from lmlab.sampling.mcmc.diagnostics import McmcResult
from lmlab.sampling.mcmc.energy import LogitEnergy, PseudoLikelihoodEnergy
from lmlab.sampling.mcmc.mcmc_config import McmcConfig
from lmlab.sampling.mcmc.proposals import MaskedLMProposal
from lmlab.sampling.mcmc.sampler import McmcSampler

BERT = {
    "width": "64",
    "layers": "2",
    "heads": "4",
    "length": "32",
    "pairs": "none",
    "segments": "0",
    "masking": "dynamic",
    "learning_rate": "3e-3",
    "tokens_per_batch": "2048",
    "warmup_steps": "100",
}
LENGTH = 12
"""Tokens per text: about the median of the corpus."""


# Speed ------------------------------------------------------------------------------------------


class EmptyTokenizer:
    """Placeholder tokenizer: speed does not depend on the text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return [], []

    def decode(self, ids: object) -> str:
        return ""


def random_bert(size: int = 10_000, width: int = 64) -> Any:
    torch.manual_seed(0)
    module = system_module("bert")
    config = module.Config(width=width, layers=2, heads=4, length=32, pairs="none", segments=0)
    return module.build(config, Vocabulary(size=size)).eval()


def timed_chains(system: Any, method: str, chains: int, steps: int) -> tuple[float, float]:
    """Wall-clock and CPU seconds for `steps` steps of `chains` chains."""
    settings = McmcConfig(
        method=method, chains=chains, steps=steps, length=LENGTH, start="random", energy="raw"
    )
    sampler = McmcSampler(system, EmptyTokenizer(system.vocabulary), Layout(), settings)
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    sampler.run()
    return time.perf_counter() - wall_start, time.process_time() - cpu_start


def speed(rounds: int, steps: int) -> dict[str, Any]:
    """Chains × steps per second; rounds alternate so that system load affects all equally."""
    system, rates = random_bert(), {}
    for method in ("gibbs", "metropolis"):
        timed: dict[int, list[tuple[float, float]]] = {1: [], 4: [], 16: [], 64: []}
        for chains in timed:
            timed_chains(system, method, chains, 2)
        for _ in range(rounds):
            for chains, times in timed.items():
                times.append(timed_chains(system, method, chains, steps))
        rates[method] = [_rates(chains, steps, times, timed[1]) for chains, times in timed.items()]
        for row in rates[method]:
            print(method, "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    size = {"width": 64, "layers": 2, "vocabulary": 10_000, "length": LENGTH, "steps": steps}
    return {"system": size, "rounds": rounds, **rates}


def _rates(
    chains: int, steps: int, times: list[tuple[float, float]], baseline: list[tuple[float, float]]
) -> dict[str, float]:
    wall_seconds, cpu_seconds = (statistics.median(seconds) for seconds in zip(*times, strict=True))
    baseline_cpu = statistics.median(seconds for _, seconds in baseline)
    return {
        "chains": chains,
        "chain steps a second": chains * steps / wall_seconds,
        "chain steps a second of processor": chains * steps / cpu_seconds,
        "times the processor time of one chain": cpu_seconds / baseline_cpu,
    }


# Stationary distribution of Gibbs sampling -------------------------------------------------------

EVAL_STEPS = (0, 10, 30, 100, 300, 1000)
"""Training steps at which the distributions are computed."""


def true_distribution(space: Any, seed: int) -> torch.Tensor:
    """Random distribution over texts of three tokens: unigram, bigram and trigram scores."""
    generator = torch.Generator().manual_seed(seed)
    unigram, bigram, trigram = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4), (2, 4, 4), (4, 4, 4))
    )
    index_of = {token: index for index, token in enumerate(space.tokens)}
    scores = []
    for text in space.texts:
        a, b, c = (index_of[token] for token in text)
        unary = unigram[0, a] + unigram[1, b] + unigram[2, c]
        scores.append(unary + 1.5 * (bigram[0, a, b] + bigram[1, b, c]) + trigram[a, b, c])
    return torch.softmax(torch.stack(scores), 0)


def small_bert(width: int, seed: int) -> Any:
    torch.manual_seed(seed)
    module = system_module("bert")
    config = module.Config(
        width=width,
        layers=2,
        heads=2,
        length=8,
        pairs="none",
        segments=0,
        masking="dynamic",
        rate=0.34,
        dropout=0.0,
        attention_dropout=0.0,
    )
    return module.build(config, Vocabulary(size=8))


def distribution_distances(system: Any, space: Any, truth: torch.Tensor) -> dict[str, float]:
    """Distances between the distributions of Gibbs, of exp(-E) and the true one."""
    with evaluation_mode(system):
        energies = {t.name: t.energies(space.batch) for t in _targets(system)}
        proposal = MaskedLMProposal(system)
        gibbs = stationary_distribution(
            scan_transition_matrix(space, "random", 1, proposal, GibbsAcceptance(), energies["raw"])
        ).clamp(min=1e-300)
        metropolis = {
            t.name: stationary_distribution(
                scan_transition_matrix(
                    space, "random", 1, proposal, MetropolisHastings(t), energies[t.name]
                )
            )
            for t in _targets(system)
        }
    distances = {"gibbs to truth": total_variation(gibbs, truth)}
    for name, energy in energies.items():
        distribution = torch.softmax(-energy, 0)
        distances |= {
            f"gibbs to {name}": total_variation(gibbs, distribution),
            f"{name} to truth": total_variation(distribution, truth),
            f"kl of {name} from gibbs": kl_divergence(distribution, gibbs),
            f"metropolis to {name}": total_variation(metropolis[name], distribution),
        }
    return distances


def _targets(system: Any) -> tuple[LogitEnergy, PseudoLikelihoodEnergy]:
    return LogitEnergy(system), PseudoLikelihoodEnergy(system)


def distributions_during_training(widths: list[int], seeds: int) -> dict[str, Any]:
    """Distances between the distributions during training, for each width and seed."""
    rows = []
    for width in widths:
        for seed in range(seeds):
            system = small_bert(width, seed)
            space = text_space(system, [3])
            truth = true_distribution(space, seed)
            for step, row in _evaluate_during_training(system, space, truth, seed):
                rows.append({"width": width, "seed": seed, "step": step, **row})
                print("  ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()))
    return {"texts": 64, "batch": 128, "rate": 0.34, "learning rate": 3e-3, "rows": rows}


def _evaluate_during_training(system: Any, space: Any, truth: torch.Tensor, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(system.parameters(), lr=3e-3)
    for step in range(max(EVAL_STEPS) + 1):
        if step in EVAL_STEPS:
            yield step, distribution_distances(system, space, truth)
        sampled = torch.multinomial(truth, 128, replacement=True, generator=generator)
        batch: Batch = space.batch.select(sampled)
        loss, _ = system.loss(batch, generator=generator)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()


def plot_distances(results: dict[str, Any], path: Path) -> None:
    """Plot total variation by training step, one line per pair of distributions."""
    from lmlab.plotting.figure import (
        FOREGROUND_COLOUR,
        add_legend,
        as_svg,
        canvas,
        line_style,
        standalone_svg,
    )

    rows, widths = results["rows"], sorted({row["width"] for row in results["rows"]})
    names = ("gibbs to raw", "gibbs to norm", "gibbs to truth", "raw to truth", "norm to truth")
    ticks = range(len(EVAL_STEPS))
    with canvas("gibbs-law", width=8.0, height=3.2) as figure:
        panels = figure.subplots(1, len(widths), sharey=True, squeeze=False)[0]
        for axes, width in zip(panels, widths, strict=True):
            for style, name in enumerate((*names, "metropolis to raw")):
                means = [_mean(rows, width, step, name) for step in EVAL_STEPS]
                axes.plot(ticks, means, marker="o", markersize=3, label=name, **line_style(style))
            axes.set_xticks(ticks, [str(step) for step in EVAL_STEPS])
            axes.set_title(f"width {width}", fontsize=10, color=FOREGROUND_COLOUR, loc="left")
            axes.set_xlabel("training steps", color=FOREGROUND_COLOUR)
            axes.set_ylim(0, None)
        panels[0].set_ylabel("total variation", color=FOREGROUND_COLOUR)
        add_legend(panels[-1])
        path.write_text(standalone_svg(as_svg(figure)), encoding="utf-8")


def _mean(rows: list[dict[str, float]], width: int, step: int, name: str) -> float:
    values = [row[name] for row in rows if row["width"] == width and row["step"] == step]
    return statistics.mean(values)


# Sample quality ---------------------------------------------------------------------------------


def load_or_train(name: str, options: argparse.Namespace) -> Any:
    """Load the run called `name`; train it first if it does not exist."""
    run = options.judge if name == "lstm" and options.judge is not None else options.runs / name
    if not (run / "model.safetensors").exists():
        data = f"multi30k-l20:{options.data}"
        if name == "bert":
            training_options = {"recipe": "glosses", "settings": BERT, "steps": 1500}
        else:
            training_options = {"recipe": "multi30k", "epochs": 8}
        finished(lmlab.train(name, data=data, out=run, **training_options))  # type: ignore[arg-type]
    return lmlab.load(run)


def quality(options: argparse.Namespace) -> dict[str, Any]:
    """Gibbs and Metropolis from the same initial states with equal steps, against real texts."""
    bert, scorer = load_or_train("bert", options), load_or_train("lstm", options)
    held_out = _real_texts(options.data)
    references = held_out[: options.references]
    same_length = [text for text in held_out[options.references :] if len(text.split()) == LENGTH]
    rows = {"held-out texts": _sample_metrics(same_length[: options.chains], references, scorer)}
    generated = [sample.text for sample in scorer.sample(options.chains, max_length=LENGTH + 1)]
    rows["lstm, ancestral"] = _sample_metrics(generated, references, scorer)
    for name, method, energy in (
        ("gibbs", "gibbs", "norm"),
        ("metropolis raw", "metropolis", "raw"),
        ("metropolis norm", "metropolis", "norm"),
    ):
        start = time.process_time()
        result: McmcResult = bert.chains(
            options.chains,
            method=method,
            energy=energy,
            chains=options.chains,
            length=LENGTH,
            steps=options.steps,
            start="masked",
        )
        texts = [sample.text for sample in result.texts]
        diagnostics = result.diagnostics
        rows[name] = {
            **_sample_metrics(texts, references, scorer),
            "accepted": diagnostics.acceptance_rate,
            "changed": diagnostics.change_rate,
            "r_hat": diagnostics.r_hat,
            "effective size": diagnostics.effective_sample_size,
            "processor seconds": time.process_time() - start,
            "examples": texts[:5],
        }
    for name, row in rows.items():
        print(name, {key: value for key, value in row.items() if key != "examples"}, flush=True)
    return {
        "chains": options.chains,
        "steps": options.steps,
        "length": LENGTH,
        "references": options.references,
        "trainings": {"bert": _training(bert), "lstm": _training(scorer)},
        "rows": rows,
    }


def _training(model: Any) -> dict[str, Any]:
    """The training settings of a run, without its path."""
    config = model.config
    training = {name: getattr(config.training, name) for name in ("epochs", "steps", "seed")}
    return {"recipe": config.recipe, "system": config.system_config, **training}


def _real_texts(data: Path) -> list[str]:
    """Held-out texts, truncated to 18 words."""
    from lmlab.data.corpus import open_corpus

    split = open_corpus(f"multi30k-l20:{data}").split("test")
    return [" ".join(text.split()[:18]) for text in split.texts()]


def _sample_metrics(texts: list[str], references: list[str], scorer: Any) -> dict[str, Any]:
    summary = scorer.summary(texts)
    return {
        "texts": len(texts),
        "nats per token by the lstm": summary.nats_per_token,
        "bleu": bleu(texts, references),
        "self bleu": self_bleu(texts),
        **{f"distinct {n}": distinct(texts, n) for n in (1, 2, 3)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=("speed", "law", "quality"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/chains.json"))
    parser.add_argument("--rounds", type=int, default=3)
    steps_help = "steps per chain [default: 20 for speed, 120 for quality]"
    parser.add_argument("--steps", type=int, default=0, help=steps_help)
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument(
        "--judge", type=Path, help="LSTM that scores the samples [default: RUNS/lstm]"
    )
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--references", type=int, default=500)
    options = parser.parse_args()
    start = time.process_time()
    if options.part == "speed":
        result = speed(options.rounds, options.steps or 20)
    elif options.part == "law":
        result = distributions_during_training(options.widths, options.seeds)
        if options.figure is not None:
            plot_distances(result, options.figure)
    else:
        options.steps = options.steps or 120
        result = quality(options)
    record = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
    record[options.part] = {
        "command": f"python benchmarks/chains.py {options.part}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor seconds": time.process_time() - start,
        **result,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
