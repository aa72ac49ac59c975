"""Generated documents about countries; the task is to name a document's country and its capital.

A document is ten sentences of the templates of `capitals-en`, in random order: five about one
country, three about another, two about a third. The task is `generate`: from a document to `China :
Beijing`, the country with five sentences and its capital. Test documents are new; their countries
are those of the training rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from finishing import finished

from lmlab.data.countries import Country, country_table
from lmlab.data.languages.capitals_en import TEMPLATES

SENTENCES_PER_COUNTRY = (5, 3, 2)
DOCUMENTS = {"train": 6000, "valid": 200}
ROWS = {"train": 1000, "valid": 100, "test": 200}
COUNTRIES = 80
"""Only the best-known countries, so that a small model learns their names in minutes."""
NETWORK = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "length": 192,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def document(generator: np.random.Generator) -> tuple[str, Country]:
    """A document and the country it is about."""
    countries = country_table()[:COUNTRIES]
    main_country = countries[generator.integers(len(countries))]
    others = [other for other in countries if other is not main_country]
    chosen = [main_country, *(others[i] for i in generator.choice(len(others), 2, replace=False))]
    sentences = [
        TEMPLATES[generator.integers(len(TEMPLATES) if country.city_en else 4)].fill(country)
        for country, count in zip(chosen, SENTENCES_PER_COUNTRY, strict=True)
        for _ in range(count)
    ]
    return " . ".join(sentences[i] for i in generator.permutation(len(sentences))), main_country


def write_data(folder: Path) -> tuple[Path, Path]:
    """Folders of the documents and the task rows, generated once and deterministically."""
    texts, rows = folder / "documents", folder / "rows"
    if (rows / "test.jsonl").exists():
        return texts, rows
    generator = np.random.default_rng(0)
    for path in (texts, rows):
        path.mkdir(parents=True, exist_ok=True)
    for split, count in DOCUMENTS.items():
        lines = [document(generator)[0] for _ in range(count)]
        (texts / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split, count in ROWS.items():
        lines = []
        for _ in range(count):
            text, country = document(generator)
            target = f"{country.country_en} : {country.capital_en}"
            lines.append(json.dumps({"source": text, "target": target}))
        (rows / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return texts, rows


def pretrained(system: str, out: Path, settings: dict[str, Any], *, steps: int, seed: int) -> Path:
    """Pre-train on the documents; with one step, the baseline without pre-training."""
    import lmlab

    # The word tokenizer must know the separator of the targets.
    texts, _ = write_data(out.parent)
    finished(
        lmlab.train(
            system,
            data=str(texts),
            out=out,
            settings=NETWORK | settings,
            tokenizer=str(tokenizer(out.parent)),
            steps=steps,
            seed=seed,
            resume=(out / "config.json").exists(),
            quiet=True,
        )
    )
    return out


def tokenizer(folder: Path) -> Path:
    """Word tokenizer of the documents and the targets."""
    from lmlab.data.tokenizers import train_tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        lines = (folder / "documents" / "train.txt").read_text(encoding="utf-8").splitlines()
        train_tokenizer("word", [*lines, ":"]).save(path)
    return path


def finetuned(
    base: Path, out: Path, settings: dict[str, Any], *, examples: int, steps: int, seed: int
) -> dict[str, float]:
    """Test metrics of the run after fine-tuning on `examples` rows."""
    import lmlab

    _, rows = write_data(base.parent)
    result = lmlab.finetune(
        base,
        task="generate",
        data=rows,
        out=out,
        examples=examples,
        steps=steps,
        settings={"tokens_per_batch": 1024, "evaluate_every": 50} | settings,
        seed=seed,
        resume=(out / "config.json").exists(),
        quiet=True,
    )
    return {name: float(result.metrics[name]) for name in ("exact_match", "rouge1", "rougeL")}
