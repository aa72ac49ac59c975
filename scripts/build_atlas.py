"""Write docs/atlas: an index of all systems, and a page and a picture for each.

    python scripts/build_atlas.py           writes the files that have changed
    python scripts/build_atlas.py --check   writes nothing, and fails where a file is stale

All of it is generated: from the zoo's files (cards, docstrings, settings), from what the parts
declare, and from tiny instances whose input dependence is measured by changing inputs. The same
sources give the same bytes.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from atlas_parts import fitting_table, part_sentences, table

import lmlab.backbones
import lmlab.emissions
import lmlab.objectives
import lmlab.retrieval
from lmlab.core.card import Card
from lmlab.core.parts import Backbone, Emission, Objective
from lmlab.core.protocols import Countable
from lmlab.core.registry import catalogue, system_module
from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.system import Assembly, System
from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.data.corpus import open_corpus
from lmlab.inspection.input_dependence import input_dependence_svg, measure_input_dependence
from lmlab.objective_figures.objective_figure import show_objective
from lmlab.training.setting_records import field_help
from lmlab.training.system_building import build_tiny

ROOT = Path(__file__).resolve().parent.parent
ATLAS = ROOT / "docs" / "atlas"
GENERATED = (
    "<!-- Written by scripts/build_atlas.py (`make atlas`): change the sources, not this. -->"
)

SENTENCE = "the big dog sees a cat"
"""The sentence of the figures; longer than the windows of the tiny sizes, so that these show."""
NAMES = (*SPECIAL_TOKENS, *SENTENCE.split())
NEW_LINE = "\n"
GRAMMAR = "grammar"
BY_OBJECTIVE = ("transformer", "memory", "retrieval")
"""Families whose systems differ in their objective."""

CHECKS = {
    "distribution": "its probabilities sum to one over an enumerable space",
    "cheat": "no prediction uses an input that is hidden from it",
    "sight": "some input changes some prediction",
    "company": "a score does not depend on the other sequences of its batch",
    "sample": "it samples what it scores",
    "fill": "what it fills in is the same distribution that it scores",
    "source": "given a source it keeps the same laws, and the source counts",
}
"""The conformance checks that a card's `exempt` can name; there is no exemption from the others."""


# Pictures ---------------------------------------------------------------------------------------


def tiny_instance(name: str) -> System:
    """The system at its tiny size; count-based ones are fitted to the sentence of the figures."""
    system = build_tiny(name, Vocabulary(size=len(NAMES))).eval()
    if isinstance(system, Countable):
        tokens = np.array(sentence_tokens(), dtype=np.int64)
        system.fit_counts(tokens, np.array([0, len(tokens)], dtype=np.int64))
    return system


def sentence_tokens() -> list[int]:
    return [NAMES.index(word) for word in ("<s>", *SENTENCE.split(), "</s>")]


def picture(card: Card) -> str | None:
    """Figure of an assembly as SVG; None for a system that is not an assembly.

    For Transformers and conditional systems the objective's inputs, targets and attention mask; for
    others the input dependence of each prediction.
    """
    system = tiny_instance(card.name)
    if not isinstance(system, Assembly):
        return None
    if card.family in BY_OBJECTIVE or card.conditional:
        # Some need their own example: entity names, subwords, an image.
        has_example = hasattr(system_module(card.name), "EXAMPLE")
        return show_objective(card.name, text=None if has_example else SENTENCE).svg
    tokens = sentence_tokens()
    generator = torch.Generator().manual_seed(0)
    sight = measure_input_dependence(system, tokens, NAMES, generator=generator)
    assert not sight.leaks, f"{type(system).__name__} uses what its view hides: {sight.leaks}"
    chain = [
        (type(system.objective).__name__, "objective"),
        (type(system.backbone).__name__, f"backbone: {system.backbone.output_kind}"),
        (type(system.emission).__name__, "emission"),
    ]
    return input_dependence_svg(sight, chain)


# Pages ------------------------------------------------------------------------------------------


def docstring_parts(module: ModuleType) -> tuple[str, str, str]:
    """Summary, formula, remarks: first, second and further paragraphs of a zoo file's docstring."""
    summary, formula, *remarks = (inspect.getdoc(module) or "").split("\n\n")
    lines = formula.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return summary, "\n".join(line[indent:] for line in lines), "\n\n".join(remarks)


def settings_table(module: ModuleType) -> str:
    """Name, type, value at each size and what it does, for each field of a system's Config."""
    helped = field_help(module.Config)
    rows = []
    for field in fields(module.Config):
        values = [f"`{as_set(getattr(size, field.name))}`" for size in module.SIZES.values()]
        name, kind = f"`{field.name}`", f"`{field.type}`"
        rows.append([name, kind, *values, helped.get(field.name, "")])
    return table(["setting", "type", *module.SIZES, "what it does"], rows)


def as_set(value: object) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def recipes_table(module: ModuleType) -> str:
    """The system's own recipes, where it has any."""
    recipes: dict[str, dict[str, Any]] = getattr(module, "RECIPES", {})
    if not recipes:
        return ""
    rows = [
        [f"`{name}`", ", ".join(f"`{key}={as_set(value)}`" for key, value in recipe.items())]
        for name, recipe in recipes.items()
    ]
    return "\n\nIts recipes (`--recipe NAME`):\n\n" + table(["recipe", "settings"], rows)


def switches_table(card: Card) -> str:
    """The terms that can be switched off, by number and name, where there are any."""
    if not card.switches:
        return ""
    rows = [[str(number), f"`{name}`"] for number, name in enumerate(card.switches)]
    return (
        "\n\nTerms that can be switched off, by number or by name (`--set off=0,1`); "
        f"`lmlab ablate {card.name} --each` measures what each is worth:\n\n"
        + table(["switch", "term"], rows)
    )


def runnable_lines(card: Card) -> str:
    """Train, score and sample on a built-in corpus, from the shell and from Python."""
    run = f"runs/{card.name}"
    base = f"runs/{card.base}"
    trained = f"lmlab train {card.base} --data grammar --out {base} --epochs 2\n"
    by_gradient = card.fitting == "gradient"
    budget = " --epochs 2 --set learning_rate=0.01" if by_gradient else ""
    words = ',\n            epochs=2, settings={"learning_rate": 0.01}' if by_gradient else ""
    words += f',\n            base="{base}"' if card.base else ""
    samples = {"Step", "Sample"} & set(card.protocols)
    if card.corpus != GRAMMAR:
        trained = trained.replace("--data grammar", f"--data {card.corpus}")
        on_base = f" --base {base}" if card.base else ""
        return f"""```bash
{trained if card.base else ""}\
lmlab train {card.name} --data {card.corpus}{on_base} --out {run}{budget}
{tried(card, run)}
```"""
    fills = {"Fill", "Infill"} & set(card.protocols)
    return f"""```bash
{trained if card.base else ""}\
lmlab train {card.name} --data grammar{f" --base {base}" if card.base else ""} --out {run}{budget}
lmlab score {run} --text "the dog sees a cat" --per-token
{f"lmlab sample {run} -n 3 --seed 1{NEW_LINE}" if samples else ""}\
{f'lmlab fill {run} "the dog <mask> a cat"{NEW_LINE}' if fills else ""}\
lmlab inspect {run} --out {run}/inspection
```

```python
import lmlab

lmlab.train("{card.name}", data="grammar", out="{run}-python"{words})
model = lmlab.load("{run}-python")
print(model.score(["the dog sees a cat"])[0].total)
{f"print(model.sample(3, seed=1)[0].text){NEW_LINE}" if samples else ""}```"""


def tried(card: Card, run: str) -> str:
    """What shows at a glance what a system on a corpus of its own is for."""
    first = open_corpus(card.corpus).split("test").first()[0]
    text = first.condition or first.text
    lines = []
    if "Link" in card.protocols:
        lines.append(f'lmlab link {run} "{first.text}"')
    if first.mentions:
        last = first.mentions[-1]
        text = f"{text[: last.start]}<mask>{text[last.end :]}"
    elif first.condition is None and "Fill" in card.protocols:
        lines.append(f'lmlab fill {run} "{text.rpartition(" ")[0]} <mask>"')
    if "Ask" in card.protocols and (first.mentions or first.condition):
        lines.append(f'lmlab ask {run} "{text}" --show-evidence')
    if "EncodeQueries" in card.protocols and not lines:
        lines.append(f"lmlab index build wordnet --encoder {run} --out {run}-index")
        lines.append(f'lmlab index search {run}-index "{text}"')
    lines += [each.replace("RUN", run) for each in card.example_commands]
    return "\n".join(lines or [f"lmlab compare {run}"])


def facts(card: Card) -> str:
    linked = re.sub(r"\b((?:tests|docs)/[\w/.-]+\.\w+)", r"[\1](../../\1)", card.oracle)
    told = {
        "paper": card.paper,
        "in the notes": card.source,
        "other names": ", ".join(card.aliases),
        "kind of its scores": f"`{card.kind}`",
        "can do": ", ".join(f"`{name}`" for name in card.protocols),
        "fitted by": card.fitting,
        "objectives": ", ".join(f"`{name}`" for name in card.objectives),
        "needs": ", ".join(f"`--{name}`" for name in card.needs),
        "must beat": f"the {card.baseline} model, after a short training",
        "checked against": linked,
    }
    return table(["", ""], [[name, value] for name, value in told.items() if value])


def exemptions(card: Card) -> str:
    if not card.exempt:
        return "It passes every check of the [conformance suite](../../tests/conformance)."
    lines = [f"- *{CHECKS[check]}* (`{check}`): {why}." for check, why in card.exempt.items()]
    return (
        "It passes the [conformance suite](../../tests/conformance) but for what does not apply "
        "to it:\n\n" + "\n".join(lines)
    )


SIGHT = """
## Input dependence

![which inputs each prediction of {name} uses](pictures/{name}.svg)

Its parts, and for each prediction the inputs that its attention mask allows and those that it uses
at the tiny size, found by changing them one at a time.
"""
OBJECTIVE = """
## Inputs, targets and attention mask

![what the objective of {name} does with a text](pictures/{name}.svg)

Drawn by `lmlab show-objective {name}`: orange tokens are masked from their
prediction, violet is a special token instead of them, green a prediction target; below, the
attention mask.
"""


def page(card: Card, module: ModuleType, has_picture: bool) -> str:
    summary, formula, remarks = docstring_parts(module)
    file = f"src/lmlab/zoo/{card.name.replace('-', '_')}.py"
    seen = (OBJECTIVE if card.family in BY_OBJECTIVE else SIGHT).format(name=card.name)
    return f"""{GENERATED}

# {card.name}

{summary}

```
{formula}
```
{chr(10) + remarks + chr(10) if remarks else ""}
{facts(card)}

The whole system: [{file}](../../{file}).
{seen if has_picture else ""}
## Run it

{runnable_lines(card)}

## Settings

Each is given as `--set name=value`; `--size` chooses the column.

{settings_table(module)}{recipes_table(module)}{switches_table(card)}

## Conformance

{exemptions(card)}
"""


def index() -> str:
    cards = list(catalogue().values())
    families = sorted({card.family for card in cards})
    sections = []
    for family in families:
        rows = [
            [f"[{c.name}]({c.name}.md)", c.summary, f"`{c.kind}`", c.fitting, ", ".join(c.aliases)]
            for c in cards
            if c.family == family
        ]
        header = ["system", "what it is", "kind", "fitted by", "other names"]
        sections.append(f"### {family.capitalize()}\n\n{table(header, rows)}")
    listed = "\n\n".join(sections)
    return f"""{GENERATED}

# Atlas of systems

{len(cards)} systems, each one file of [src/lmlab/zoo](../../src/lmlab/zoo) and one page here. A
system is a backbone, an emission and an objective put together; see [how to add
one](../add-a-system.md). The words are explained in the
[glossary](../../src/lmlab/core/glossary.md).

## Systems by family

{listed}

A number such as 003 in a page's sources is one of the notes that the zoo follows: 000 on BERT's
implicit distribution (CATSMILE-9008), 001 on hidden states in sequence generation (CATSMILE-3002),
002 a lecture on sequence modelling, 003 on diagnostic tools for language models (CATSMILE-9020,
whose models are numbered DLM1, DLM2, …), 004 a survey of pre-trained models.

## What fits what

Any backbone of a row goes with any emission of the same row. Any other pair is refused with a
sentence that says so. An objective fits a backbone that keeps to the visibility it asks for.

{fitting_table()}

### Backbones

{part_sentences(lmlab.backbones, Backbone)}
{part_sentences(lmlab.retrieval, Backbone)}

### Emissions

{part_sentences(lmlab.emissions, Emission)}

### Objectives

{part_sentences(lmlab.objectives, Objective)}

### Contrasts

What may train a softmax in the place of its log-probabilities, whatever the objective asks.

{part_sentences(lmlab.objectives, SampledLoss)}
"""


def build() -> Iterator[tuple[Path, str]]:
    """Every file of the atlas with its text."""
    yield ATLAS / "README.md", index()
    for card in catalogue().values():
        module = system_module(card.name)
        drawn = picture(card)
        if drawn is not None:
            yield ATLAS / "pictures" / f"{card.name}.svg", drawn
        yield ATLAS / f"{card.name}.md", page(card, module, drawn is not None)


def stale(files: dict[Path, str]) -> list[str]:
    """What is missing, differs, or belongs to no system any more."""
    there = {path for path in ATLAS.rglob("*") if path.is_file()}
    wrong = [path for path, text in files.items() if path not in there or path.read_text() != text]
    return sorted(str(path.relative_to(ROOT)) for path in {*wrong, *(there - files.keys())})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    files = dict(build())
    found = stale(files)
    if parser.parse_args().check:
        for name in found:
            print(f"{name} is stale: run `make atlas`", file=sys.stderr)
        return 1 if found else 0
    for name in found:
        path = ROOT / name
        if path not in files:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    print(f"{len(files)} files in {ATLAS.relative_to(ROOT)}, {len(found)} of them changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
