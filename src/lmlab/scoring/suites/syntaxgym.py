"""SyntaxGym: predictions about the surprisal of regions in the conditions of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.score import Score
from lmlab.core.untrusted_input import parse_json
from lmlab.core.word_scores import Span, word_scores
from lmlab.scoring.json_rows import files_of
from lmlab.scoring.region_formulas import Formula, Region, parse_formula
from lmlab.scoring.suite import AnyScore, ItemResult, Suite, SuiteItem, TextRequest

CIRCUITS = {
    "center": "center embedding",
    "cleft": "long-distance dependencies",
    "fgd": "long-distance dependencies",
    "mvrr": "garden-path effects",
    "nn": "garden-path effects",
    "npz": "garden-path effects",
    "npi": "licensing",
    "reflexive": "licensing",
    "number": "agreement",
    "subordination": "gross syntactic state",
}
"""The circuits of Hu et al. 2020, by the beginning of a suite's name."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A sentence divided into regions: its text, and the characters of each region by number."""

    name: str
    text: str
    spans: Mapping[int, Span]

    def surprisals(self, score: AnyScore) -> dict[Region, float]:
        """Surprisal of each region in bits: the sum over the tokens that end in it.

        An empty region has 0. The end of the sentence belongs to the whole sentence alone.
        """
        assert isinstance(score, Score), "regions need the score of a whole text"
        words = word_scores(score, list(self.spans.values()))
        regions = [word for word in words if not word.end_token]
        if len(regions) < len(self.spans):
            raise UserError(f"the model cuts {self.text[:40]!r} …, so its last regions have none.")
        found: dict[Region, float] = {
            (self.name, number): region.surprisal_bits
            for number, region in zip(self.spans, regions, strict=True)
        }
        found[self.name, None] = sum(word.surprisal_bits for word in words)
        return found


@dataclass(frozen=True, kw_only=True)
class PredictionItem(SuiteItem):
    """An item's conditions and one prediction about them."""

    phenomenon: str
    paradigm: str
    conditions: tuple[Condition, ...]
    formula: Formula

    def requests(self) -> Sequence[TextRequest]:
        """The sentence of each condition."""
        return [TextRequest(continuation=condition.text) for condition in self.conditions]

    def result(self, scores: Sequence[AnyScore]) -> ItemResult:
        """Right if the prediction holds; a tie does not fulfil < or >."""
        surprisals = dict.fromkeys(self.formula.regions, 0.0)  # of empty regions
        for condition, score in zip(self.conditions, scores, strict=True):
            surprisals |= condition.surprisals(score)
        holds, tied = self.formula.holds(surprisals)
        return ItemResult(
            phenomenon=self.phenomenon,
            paradigm=self.paradigm,
            credit=float(holds),
            tie=tied,
            unknown=any(score.unknown > 0 for score in scores),
        )


def read_syntaxgym(path: Path) -> Sequence[PredictionItem]:
    """The items of JSON suites, once for each prediction."""
    items: list[PredictionItem] = []
    for file in files_of(path, ".json", "SyntaxGym"):
        try:
            items += _items(parse_json(file.read_bytes()), file.stem)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(f"{file} is not a suite of SyntaxGym ({reason}).") from None
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
    return items


def _items(suite: Mapping[str, Any], name: str) -> list[PredictionItem]:
    metric = suite["meta"]["metric"]
    if metric != "sum":
        raise UserError(f"the metric of regions must be sum, got {metric!r}.")
    name = str(suite["meta"].get("name") or name)
    circuit = next((CIRCUITS[start] for start in CIRCUITS if name.startswith(start)), name)
    formulas = [parse_formula(prediction["formula"]) for prediction in suite["predictions"]]
    items = []
    for item in suite["items"]:
        conditions = tuple(map(_condition, item["conditions"]))
        _check_regions(item, formulas)
        for formula in formulas:
            items.append(
                PredictionItem(
                    phenomenon=circuit, paradigm=name, conditions=conditions, formula=formula
                )
            )
    return items


def _condition(condition: Mapping[str, Any]) -> Condition:
    """The sentence of a condition: regions without outer spaces, joined by one, empty ones left
    out, as SyntaxGym itself does."""
    text, spans = "", {}
    for region in condition["regions"]:
        content = " ".join(region["content"].split())
        if content:
            text += " " if text else ""
            spans[int(region["region_number"])] = (len(text), len(text) + len(content))
            text += content
    if not text:
        raise UserError(f"the condition {condition['condition_name']!r} has no text.")
    return Condition(name=str(condition["condition_name"]), text=text, spans=spans)


def _check_regions(item: Mapping[str, Any], formulas: Sequence[Formula]) -> None:
    there: set[Region] = {
        (str(condition["condition_name"]), int(region["region_number"]))
        for condition in item["conditions"]
        for region in condition["regions"]
    }
    there |= {(name, None) for name, _ in there}
    for formula in formulas:
        for condition, number in sorted(formula.regions - there, key=str):
            raise UserError(
                f"the formula {formula.text!r} mentions region {number} of {condition!r}, which "
                f"item {item.get('item_number')} lacks."
            )


SUITE = Suite(
    name="syntaxgym",
    title="SyntaxGym: surprisal in targeted syntactic tests",
    source="Gauthier et al. 2020, SyntaxGym; Hu et al. 2020, A Systematic Assessment of Syntactic "
    "Generalization in Neural Language Models",
    read=read_syntaxgym,
    by_token=True,
)
