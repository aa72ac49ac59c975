"""GLM fine-tuned as cloze, against a classification head, with few examples.

    python benchmarks/cloze.py [--seeds 2] [--steps 300] [--runs FOLDER] [--out FILE.json]

One GLM (width 128, 2 layers) is pre-trained on WordNet's glosses. It is then fine-tuned on the part
of speech of a gloss, once as cloze (noun, verb, adjective or adverb in a blank after the gloss;
nothing is added) and once with a head on the hidden state of the first token, in 60 steps of 512
tokens each. Accuracy on 1,000 glosses that the pre-training has not seen.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from record_file import RESULTS, Record, add_missing, mean_and_half_range

import lmlab

OUT = RESULTS / "cloze.json"
EXAMPLES = (32, 512)
STEPS = 60
TASKS = ("cloze", "classify")
DATA = "gloss-part-of-speech"


def pretrain(folder: Path, steps: int) -> Path:
    """A GLM trained on glosses for so many steps, reused if it is there."""
    run = folder / f"glm-{steps}"
    if not (run / "manifest.json").exists():
        lmlab.train(
            "glm",
            data="wordnet",
            out=run,
            steps=steps,
            recipe="glosses",
            settings={
                "width": 128,
                "layers": 2,
                "length": 128,
                "tokens_per_batch": 2048,
                "vocabulary_size": 4000,
            },
            quiet=True,
        )
    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs", type=Path, default=Path(tempfile.gettempdir()) / "lmlab-cloze")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    run = pretrain(arguments.runs, arguments.steps)

    def measure(task: str, examples: int, seed: int) -> Record:
        with tempfile.TemporaryDirectory() as folder:
            result = lmlab.finetune(
                run,
                task=task,
                data=DATA,
                out=Path(folder) / "run",
                examples=examples,
                steps=STEPS,
                seed=seed,
                settings={"learning_rate": 5e-4, "tokens_per_batch": 512, "evaluate_every": STEPS},
                quiet=True,
            )
        return {name: result.metrics[name] for name in ("accuracy", "macro_f1", "majority")}

    configurations: list[Record] = [
        {"task": task, "examples": examples, "seed": seed}
        for seed in range(arguments.seeds)
        for examples in EXAMPLES
        for task in TASKS
    ]
    records = add_missing(arguments.out, configurations, measure)
    print("\n| examples | cloze | head |\n|---|---|---|")
    for examples in EXAMPLES:
        accuracy = {
            task: [
                100 * record["accuracy"]
                for record in records
                if (record["task"], record["examples"]) == (task, examples)
            ]
            for task in TASKS
        }
        cells = (mean_and_half_range(accuracy[task], 1) for task in TASKS)
        print(f"| {examples} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
