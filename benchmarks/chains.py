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
"""Tokens of a text: about the middle of the corpus."""


# Speed ------------------------------------------------------------------------------------------


class NoText:
    """A stand-in for a tokenizer: speed does not depend on the text."""

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
    """Wall-clock and CPU seconds for that many steps of that many chains."""
    settings = McmcConfig(
        method=method, chains=chains, steps=steps, length=LENGTH, start="random", energy="raw"
    )
    runner = McmcSampler(system, NoText(system.vocabulary), Layout(), settings)
    clock, processor = time.perf_counter(), time.process_time()
    runner.run()
    return time.perf_counter() - clock, time.process_time() - processor


def speed(rounds: int, steps: int) -> dict[str, Any]:
    """Chains × steps per second; rounds alternate, so that load affects all alike."""
    system, found = random_bert(), {}
    for method in ("gibbs", "metropolis"):
        timed: dict[int, list[tuple[float, float]]] = {1: [], 4: [], 16: [], 64: []}
        for chains in timed:
            timed_chains(system, method, chains, 2)
        for _ in range(rounds):
            for chains, times in timed.items():
                times.append(timed_chains(system, method, chains, steps))
        found[method] = [_rates(chains, steps, times, timed[1]) for chains, times in timed.items()]
        for row in found[method]:
            print(method, "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    size = {"width": 64, "layers": 2, "vocabulary": 10_000, "length": LENGTH, "steps": steps}
    return {"system": size, "rounds": rounds, **found}


def _rates(
    chains: int, steps: int, times: list[tuple[float, float]], alone: list[tuple[float, float]]
) -> dict[str, float]:
    clock, processor = (statistics.median(each) for each in zip(*times, strict=True))
    of_one = statistics.median(processor for _, processor in alone)
    return {
        "chains": chains,
        "chain steps a second": chains * steps / clock,
        "chain steps a second of processor": chains * steps / processor,
        "times the processor time of one chain": processor / of_one,
    }


# Stationary distribution of Gibbs sampling -------------------------------------------------------

AT = (0, 10, 30, 100, 300, 1000)
"""Training steps at which the distributions are computed."""


def true_law(space: Any, seed: int) -> torch.Tensor:
    """Four tokens at three positions, with an energy for each token, bigram and text."""
    generator = torch.Generator().manual_seed(seed)
    alone, pair, whole = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4), (2, 4, 4), (4, 4, 4))
    )
    place = {token: index for index, token in enumerate(space.tokens)}
    scores = []
    for text in space.texts:
        a, b, c = (place[token] for token in text)
        unary = alone[0, a] + alone[1, b] + alone[2, c]
        scores.append(unary + 1.5 * (pair[0, a, b] + pair[1, b, c]) + whole[a, b, c])
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


def laws(system: Any, space: Any, truth: torch.Tensor) -> dict[str, float]:
    """Distances between the distributions of Gibbs, of exp(-E) and the true one."""
    with evaluation_mode(system):
        energies = {t.name: t.energies(space.batch) for t in _targets(system)}
        proposal = MaskedLMProposal(system)
        gibbs = stationary_distribution(
            scan_transition_matrix(space, "random", 1, proposal, GibbsAcceptance(), energies["raw"])
        ).clamp(min=1e-300)
        mended = {
            t.name: stationary_distribution(
                scan_transition_matrix(
                    space, "random", 1, proposal, MetropolisHastings(t), energies[t.name]
                )
            )
            for t in _targets(system)
        }
    found = {"gibbs to truth": total_variation(gibbs, truth)}
    for name, energy in energies.items():
        law = torch.softmax(-energy, 0)
        found |= {
            f"gibbs to {name}": total_variation(gibbs, law),
            f"{name} to truth": total_variation(law, truth),
            f"kl of {name} from gibbs": kl_divergence(law, gibbs),
            f"metropolis to {name}": total_variation(mended[name], law),
        }
    return found


def _targets(system: Any) -> tuple[LogitEnergy, PseudoLikelihoodEnergy]:
    return LogitEnergy(system), PseudoLikelihoodEnergy(system)


def law(widths: list[int], seeds: int) -> dict[str, Any]:
    """Distributions during training, for each width and seed."""
    rows = []
    for width in widths:
        for seed in range(seeds):
            system = small_bert(width, seed)
            space = text_space(system, [3])
            truth = true_law(space, seed)
            for step, row in _while_learning(system, space, truth, seed):
                rows.append({"width": width, "seed": seed, "step": step, **row})
                print("  ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()))
    return {"texts": 64, "batch": 128, "rate": 0.34, "learning rate": 3e-3, "rows": rows}


def _while_learning(system: Any, space: Any, truth: torch.Tensor, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(system.parameters(), lr=3e-3)
    for step in range(max(AT) + 1):
        if step in AT:
            yield step, laws(system, space, truth)
        drawn = torch.multinomial(truth, 128, replacement=True, generator=generator)
        batch: Batch = space.batch.select(drawn)
        loss, _ = system.loss(batch, generator=generator)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()


def draw_law(found: dict[str, Any], path: Path) -> None:
    """Plot total variation by training step, a line for each pair of distributions."""
    from lmlab.plotting.figure import (
        FOREGROUND_COLOUR,
        add_legend,
        as_svg,
        canvas,
        line_style,
        standalone_svg,
    )

    rows, widths = found["rows"], sorted({row["width"] for row in found["rows"]})
    names = ("gibbs to raw", "gibbs to norm", "gibbs to truth", "raw to truth", "norm to truth")
    with canvas("gibbs-law", width=8.0, height=3.2) as figure:
        every = figure.subplots(1, len(widths), sharey=True, squeeze=False)[0]
        for axes, width in zip(every, widths, strict=True):
            for look, name in enumerate((*names, "metropolis to raw")):
                means = [_mean(rows, width, step, name) for step in AT]
                axes.plot(
                    range(len(AT)), means, marker="o", markersize=3, label=name, **line_style(look)
                )
            axes.set_xticks(range(len(AT)), [str(step) for step in AT])
            axes.set_title(f"width {width}", fontsize=10, color=FOREGROUND_COLOUR, loc="left")
            axes.set_xlabel("training steps", color=FOREGROUND_COLOUR)
            axes.set_ylim(0, None)
        every[0].set_ylabel("total variation", color=FOREGROUND_COLOUR)
        add_legend(every[-1])
        path.write_text(standalone_svg(as_svg(figure)), encoding="utf-8")


def _mean(rows: list[dict[str, float]], width: int, step: int, name: str) -> float:
    found = [row[name] for row in rows if row["width"] == width and row["step"] == step]
    return statistics.mean(found)


# Sample quality ---------------------------------------------------------------------------------


def trained(name: str, given: argparse.Namespace) -> Any:
    """The run of that name, trained if it is not there."""
    run = given.judge if name == "lstm" and given.judge is not None else given.runs / name
    if not (run / "model.safetensors").exists():
        data = f"multi30k-l20:{given.data}"
        if name == "bert":
            words = {"recipe": "glosses", "settings": BERT, "steps": 1500}
        else:
            words = {"recipe": "multi30k", "epochs": 8}
        finished(lmlab.train(name, data=data, out=run, **words))  # type: ignore[arg-type]
    return lmlab.load(run)


def quality(given: argparse.Namespace) -> dict[str, Any]:
    """Gibbs and Metropolis from the same initial states with equal steps, against real texts."""
    bert, judge = trained("bert", given), trained("lstm", given)
    held_out = _real_texts(given.data)
    references = held_out[: given.references]
    same_length = [text for text in held_out[given.references :] if len(text.split()) == LENGTH]
    rows = {"held-out texts": _figures(same_length[: given.chains], references, judge)}
    written = [each.text for each in judge.sample(given.chains, max_length=LENGTH + 1)]
    rows["lstm, ancestral"] = _figures(written, references, judge)
    for name, method, energy in (
        ("gibbs", "gibbs", "norm"),
        ("metropolis raw", "metropolis", "raw"),
        ("metropolis norm", "metropolis", "norm"),
    ):
        began = time.process_time()
        found: McmcResult = bert.chains(
            given.chains,
            method=method,
            energy=energy,
            chains=given.chains,
            length=LENGTH,
            steps=given.steps,
            start="masked",
        )
        texts = [each.text for each in found.texts]
        mixing = found.diagnostics
        rows[name] = {
            **_figures(texts, references, judge),
            "accepted": mixing.acceptance_rate,
            "changed": mixing.change_rate,
            "r_hat": mixing.r_hat,
            "effective size": mixing.effective_sample_size,
            "processor seconds": time.process_time() - began,
            "examples": texts[:5],
        }
    for name, row in rows.items():
        print(name, {key: value for key, value in row.items() if key != "examples"}, flush=True)
    return {
        "chains": given.chains,
        "steps": given.steps,
        "length": LENGTH,
        "references": given.references,
        "trainings": {"bert": _training(bert), "lstm": _training(judge)},
        "rows": rows,
    }


def _training(model: Any) -> dict[str, Any]:
    """The training settings of a run, without its path."""
    config = model.config
    training = {name: config["training"].get(name) for name in ("epochs", "steps", "seed")}
    return {"recipe": config["recipe"], "system": config["system_config"], **training}


def _real_texts(data: Path) -> list[str]:
    """Held-out texts of both, truncated alike."""
    from lmlab.data.corpus import open_corpus

    split = open_corpus(f"multi30k-l20:{data}").split("test")
    return [" ".join(text.split()[:18]) for text in split.texts()]


def _figures(texts: list[str], references: list[str], judge: Any) -> dict[str, Any]:
    summary = judge.summary(texts)
    return {
        "texts": len(texts),
        "nats a token by the lstm": summary.nats_per_token,
        "bleu": bleu(texts, references),
        "self bleu": self_bleu(texts),
        **{f"distinct {n}": distinct(texts, n) for n in (1, 2, 3)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=("speed", "law", "quality"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/chains.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="20 for speed, 120 for quality")
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--judge", type=Path, help="an lstm trained on multi30k-l20 elsewhere")
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--references", type=int, default=500)
    given = parser.parse_args()
    began = time.process_time()
    if given.part == "speed":
        found = speed(given.rounds, given.steps or 20)
    elif given.part == "law":
        found = law(given.widths, given.seeds)
        if given.figure is not None:
            draw_law(found, given.figure)
    else:
        given.steps = given.steps or 120
        found = quality(given)
    record = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    record[given.part] = {
        "command": f"python benchmarks/chains.py {given.part}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor seconds": time.process_time() - began,
        **found,
    }
    given.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
