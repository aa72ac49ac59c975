"""A system's visiting card: what the catalogue tells of it, readable without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmlab.core.score_kind import ScoreKind


@dataclass(frozen=True, kw_only=True)
class Card:
    """Declared once as `CARD = Card(...)` with literal values in a system's zoo file.

    The registry reads it from the file's syntax tree, so listing the zoo costs no import; the
    system's name is the file's name, and its summary the first line of the file's docstring.
    """

    family: str
    """counting, window, recurrent, …: the group it stands in."""
    kind: ScoreKind
    """What its log_prob is."""
    paper: str
    """Author, year, title of the paper that defines it."""
    source: str
    """Where our notes speak of it, or '' if they don't."""
    protocols: tuple[str, ...]
    """Protocols of `core.protocols` that it satisfies; a test holds it to them."""
    aliases: tuple[str, ...] = ()
    """Other names, such as the notes' numbers."""
    fitting: str = "gradient"
    """How it is fitted by default: gradient, counting, em or words."""
    objectives: tuple[str, ...] = ("next-token",)
    """Objectives that it can be trained with, the default first."""
    switches: tuple[str, ...] = ()
    """Terms that can be taken out by `--set off=4,6` and `lmlab ablate`, in the order of their
    numbers; a name says the term, and its `off` setting what being off means."""
    needs: tuple[str, ...] = ()
    """Options of `train` that it can't do without or has a use for: base, encoder,
    documents, knowledge."""
    base: str = ""
    """A system that can be its base, where it needs one: what tests and pictures build it on."""
    uses_annotated_mentions: bool = False
    """Whether it has a use for mentions that a corpus tells though it has no knowledge of
    entities."""
    default_memories: Mapping[str, str] = field(default_factory=dict)
    """What it looks things up in unless told otherwise: built-in documents, built-in knowledge."""
    conditional: bool = False
    """Whether it is a distribution given another text (a translator)."""
    corpus: str = "grammar"
    """A built-in corpus to try it on, which its page of the atlas trains it on."""
    example_commands: tuple[str, ...] = ()
    """Lines of the shell that put a run of it to its use, `RUN` for the run, for its page."""
    baseline: str = "unigram"
    """The trivial model that it must beat after a short training: unigram or uniform; chance, where
    its scores are no log-probabilities and only rank texts above their corruptions."""
    oracle: str = ""
    """The independent check that it passes, and where."""
    exempt: Mapping[str, str] = field(default_factory=dict)
    """Conformance checks that don't apply to it, each with the reason."""
    name: str = ""
    """Filled in by the registry from the file's name."""
    summary: str = ""
    """Filled in by the registry from the file's docstring."""
