"""Warm start of retrievers: initialise encoders or whole models from trained weights."""

from __future__ import annotations

from torch import nn

from lmlab.backbones.text_encoder import PooledTextEncoder
from lmlab.core.errors import UserError
from lmlab.core.system import Assembly, System
from lmlab.models.dual_encoder import DualEncoder
from lmlab.models.retrieval_base import RetrieverModel


def initialise_from_base(system: RetrieverModel, base: System) -> None:
    """Copy the weights of a base: a model of the same kind, or a text encoder.

    Parameters that the base lacks keep their initialisation.
    """
    initialise_encoders(system.retriever.questions, system.retriever.documents, base)
    if isinstance(base, RetrieverModel):
        _copy(system, base)


def initialise_encoders(
    questions: PooledTextEncoder, documents: PooledTextEncoder, base: System
) -> None:
    """Copy both encoders of a dual encoder; or the backbone of another model into both."""
    if isinstance(base, DualEncoder | RetrieverModel):
        both = base if isinstance(base, DualEncoder) else base.retriever
        if questions.backbone is documents.backbone and (
            both.questions.backbone is not both.documents.backbone
        ):
            raise UserError(
                "--set shared=all does not apply to a base with two encoders; remove it."
            )
        _copy_whole(questions, both.questions)
        _copy_whole(documents, both.documents)
    elif isinstance(base, Assembly) and isinstance(base.backbone, type(questions.backbone)):
        _copy_whole(questions.backbone, base.backbone)
        _copy_whole(documents.backbone, base.backbone)
    else:
        raise UserError(
            "the base must be a dual encoder of questions and documents or a bidirectional "
            "Transformer encoder, and this run is neither; train one first (lmlab train dpr …)."
        )


def _copy_whole(own: nn.Module, other: nn.Module) -> None:
    """Copy all parameters of an encoder; the two sides must have the same ones.

    An encoder with half of the layers would give untrained vectors.
    """
    have, given = dict(own.named_parameters()), dict(other.named_parameters())
    if apart := sorted(have.keys() ^ given.keys()):
        side = "the base" if apart[0] in given else "the new run"
        raise UserError(
            f"the base has other layers or another projection (only {side} has {apart[0]}); "
            "remove the settings that change them, to use the base's."
        )
    _copy(own, other)


def _copy(own: nn.Module, other: nn.Module) -> None:
    """Copy all parameters by name; their shapes must match."""
    have, given = dict(own.named_parameters()), dict(other.named_parameters())
    for name in [name for name in have if name in given]:  # in order: reproducible errors
        if have[name].shape != given[name].shape:
            sizes = f"{name} is {tuple(given[name].shape)}, here {tuple(have[name].shape)}"
            todo = "remove the settings that change them, to use the base's"
            if "positions" in name and have[name].shape[1:] == given[name].shape[1:]:
                longest = len(given[name])
                todo = f"give --set length={longest}, and document_length no longer"
            raise UserError(f"the base has other sizes ({sizes}); {todo}.")
        have[name].data.copy_(given[name].data)
