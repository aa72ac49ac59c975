"""Model card of a system: family, paper, score kind, protocols, defaults; read without torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.notebook import NotebookRecord
from lmlab.core.score import SCORE_KINDS, ScoreKind
from lmlab.core.untrusted_input import parse_dataclass


@dataclass(frozen=True, kw_only=True)
class Card(NotebookRecord):
    """Declared once as `CARD = Card(...)` with literal values in a system's zoo file.

    The registry reads it from the file's syntax tree, so listing the zoo costs no import; the
    system's name is the file's name, and its summary the first line of the file's docstring.
    """

    family: str
    """Model family: counting, window, recurrent, …"""
    kind: ScoreKind
    """The kind of score its log_prob is."""
    paper: str
    """Author, year, title of the paper that defines it."""
    source: str
    """Section of the notes behind it, or ''."""
    protocols: tuple[str, ...]
    """Protocols of `core.protocols` that it satisfies; verified by a test."""
    aliases: tuple[str, ...] = ()
    """Other names."""
    fitting: str = "gradient"
    """Default fitting method: gradient, counting, em, words or cooccurrence."""
    objectives: tuple[str, ...] = ("next-token",)
    """Objectives that it can be trained with, the default first."""
    switches: tuple[str, ...] = ()
    """Terms that `--set off=4,6` and `lmlab ablate` remove, in the order of their numbers; the
    setting `off` says what removing means."""
    needs: tuple[str, ...] = ()
    """Options of `train` that it requires or uses: base, encoder, documents, knowledge."""
    base: str = ""
    """A system that can be its base, if it needs one; used by tests and figures."""
    components: tuple[str, ...] = ()
    """Systems that it can be made of, if `lmlab mix` makes it of trained runs; used by tests and
    figures. It is not trained itself."""
    initialised_by_own_runs: bool = False
    """Whether a `--base` of the system itself initialises it as any base does, so that its sizes
    and encoders may change, instead of continuing that run's training."""
    uses_annotated_mentions: bool = False
    """Whether it uses a corpus's entity annotations although it has no knowledge base."""
    default_memories: Mapping[str, str] = field(default_factory=dict)
    """Default memories: built-in documents, built-in knowledge."""
    conditional: bool = False
    """Whether it is conditioned on another text (a translation model)."""
    corpus: str = "grammar"
    """A built-in corpus to try it on, used by its page of the atlas."""
    example_commands: tuple[str, ...] = ()
    """Example shell commands for its page; `RUN` stands for the run."""
    baseline: str = "unigram"
    """Baseline that it must beat after a short training: unigram or uniform; chance, if its scores
    are no log-probabilities and only rank texts above their corruptions."""
    oracle: str = ""
    """The independent check that it passes, and where."""
    exempt: Mapping[str, str] = field(default_factory=dict)
    """Conformance checks that don't apply to it, each with the reason."""
    name: str = ""
    """Set by the registry from the file's name."""
    summary: str = ""
    """Set by the registry from the file's docstring."""
    package: str = ""
    """Set by the registry: the package or file of a plug-in; '' for lmlab's own systems."""

    @property
    def fitted_at_once(self) -> bool:
        """Whether it is fitted in one go, without checkpoints to resume from."""
        return self.fitting == "counting" or bool(self.components)

    @property
    def kind_of_score(self) -> str:
        """The kind of its scores; none, if it has vectors and no distribution over texts."""
        return self.kind if "LogProb" in self.protocols else "none"

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """One row: what `lmlab systems` lists, and the paper."""
        own = {"name": self.name, "family": self.family, "kind": self.kind_of_score}
        return [{**own, "summary": self.summary, "paper": self.paper}]


FITTINGS = ("gradient", "counting", "em", "words", "cooccurrence")
BASELINES = ("unigram", "uniform", "chance")
NEEDS = ("base", "encoder", "documents", "knowledge")
SET_BY_REGISTRY = ("name", "summary", "package")


def read_card(path: Path, name: str, *, source: bytes | None = None, package: str = "") -> Card:
    """The card of a system's file, under a name; a UserError that names the file if it is wrong.

    `source` is the file's content, where it has been read.
    """
    try:
        tree = ast.parse(path.read_bytes() if source is None else source)
        values = _declared_values(tree)
        _check_values(values)
        summary = (ast.get_docstring(tree) or "").partition("\n")[0]
        return parse_dataclass(Card, values | {"name": name, "summary": summary} | _of(package))
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror or error}).") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not the file of a system ({_reason(error)}); see docs/add-a-system.md."
        ) from error


def _of(package: str) -> dict[str, Any]:
    return {"package": package} if package else {}


def _reason(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {error.msg}"
    return str(error) or type(error).__name__


def _declared_values(tree: ast.Module) -> dict[str, Any]:
    """The arguments of `CARD = Card(...)`."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="CARD")], value=value):
                return _literal_arguments(value)
            case ast.AnnAssign(target=ast.Name(id="CARD"), value=ast.expr() as value):
                return _literal_arguments(value)
    raise ValueError("it declares no CARD")


def _literal_arguments(value: ast.expr) -> dict[str, Any]:
    if not isinstance(value, ast.Call) or value.args or None in {k.arg for k in value.keywords}:
        raise ValueError("CARD must be a call Card(name=value, ...)")
    values = {}
    for keyword in value.keywords:
        try:
            values[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            raise ValueError(
                f"{keyword.arg} of CARD must be a literal value, as the card is read without "
                f"running the file, got {ast.unparse(keyword.value)[:60]}"
            ) from None
    return values


def _check_values(values: Mapping[str, Any]) -> None:
    """A ValueError for a value that the type of a card's field does not exclude."""
    for name in SET_BY_REGISTRY:
        if name in values:
            raise ValueError(f"{name} of CARD is set by lmlab; remove it")
    choices = {"kind": SCORE_KINDS, "fitting": FITTINGS, "baseline": BASELINES}
    for name, allowed in choices.items():
        if name in values and values[name] not in allowed:
            raise ValueError(
                f"{name} of CARD must be one of {', '.join(allowed)}, got {values[name]!r}"
            )
    needs = values.get("needs", ())
    if isinstance(needs, (tuple, list)) and not set(needs) <= set(NEEDS):
        raise ValueError(f"needs of CARD must be among {', '.join(NEEDS)}, got {needs!r}")
