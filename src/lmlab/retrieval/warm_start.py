"""Weights of a trained system to begin with: a retriever's encoders, or all that fits."""

from __future__ import annotations

from torch import nn

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.objectives.in_batch import DualEncoder
from lmlab.retrieval.looking_up import LookingUp


def start_from(system: LookingUp, base: System) -> None:
    """Copy the weights of a base: both encoders of a bi-encoder, of a like system the reader too.

    What the base has no weights for begins as it is.
    """
    if isinstance(base, DualEncoder):
        taken = [
            (system.retriever.questions, base.questions),
            (system.retriever.documents, base.documents),
        ]
    elif isinstance(base, LookingUp):
        taken = [(system, base)]
    else:
        raise UserError(
            "a base must have an encoder of questions and one of documents, and this one has "
            "none; train one first (lmlab train dpr …)."
        )
    for own, other in taken:
        _copy(own, other)


def _copy(own: nn.Module, other: nn.Module) -> None:
    """All parameters by their names, which must be alike in size."""
    have, given = dict(own.named_parameters()), dict(other.named_parameters())
    for name in have.keys() & given.keys():
        if have[name].shape != given[name].shape:
            raise UserError(
                f"the base has other sizes ({name} is {tuple(given[name].shape)}, here "
                f"{tuple(have[name].shape)}); give its settings again by --set."
            )
        have[name].data.copy_(given[name].data)
