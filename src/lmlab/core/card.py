"""Model card of a zoo system: family, paper, score kind, protocols, defaults; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmlab.core.score import ScoreKind


@dataclass(frozen=True, kw_only=True)
class Card:
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
    """Default fitting method: gradient, counting, em or words."""
    objectives: tuple[str, ...] = ("next-token",)
    """Objectives that it can be trained with, the default first."""
    switches: tuple[str, ...] = ()
    """Terms that `--set off=4,6` and `lmlab ablate` remove, in the order of their numbers; the
    setting `off` says what removing means."""
    needs: tuple[str, ...] = ()
    """Options of `train` that it requires or uses: base, encoder, documents, knowledge."""
    base: str = ""
    """A system that can be its base, if it needs one; used by tests and figures."""
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
