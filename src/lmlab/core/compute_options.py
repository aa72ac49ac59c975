"""Where models compute and how exactly: the options of the device, the precision and the threads.

Importing this module imports neither torch nor the command line's parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from lmlab.core.options import Option

DistributedName = Literal["ddp", "fsdp"]
PrecisionName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """The device, the precision of the blocks of a network, and the threads of the CPU."""

    device: Annotated[
        str | None,
        Option(
            "Device: auto (a CUDA GPU if there is one, else the CPU), cpu, cuda, cuda:1 or mps.",
            metavar="DEVICE",
            show_default="auto",
        ),
    ] = None
    precision: Annotated[
        PrecisionName | None,
        Option(
            "Precision inside Transformer and recurrent layers; losses and log-probabilities are "
            "float32 always.",
            show_default="float32",
        ),
    ] = None
    threads: Annotated[
        int | None, Option("Threads of the CPU.", minimum=1, show_default="torch's own")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainingComputeOptions(ComputeOptions):
    """The same for a training."""

    gradient_checkpointing: Annotated[
        bool,
        Option("Compute activations again in the backward pass: less memory, about 1/3 more time."),
    ] = False

    distributed: Annotated[
        DistributedName | None,
        Option(
            "Several processes (torchrun): ddp has all weights in each, fsdp a part of them.",
            show_default="ddp",
        ),
    ] = None

    def training_settings(self) -> dict[str, Any]:
        """Those among them that are settings of the training, where they are given."""
        given: dict[str, Any] = {}
        if self.precision is not None:
            given["precision"] = self.precision
        if self.distributed is not None:
            given["distributed"] = self.distributed
        if self.gradient_checkpointing:
            given["gradient_checkpointing"] = True
        return given


_CURRENT: ContextVar[ComputeOptions | None] = ContextVar("compute", default=None)


def current_compute() -> ComputeOptions:
    """The options by which models are loaded here, and the device of trainings."""
    return _CURRENT.get() or ComputeOptions()


def given_compute(
    device: str | None, precision: PrecisionName | None, threads: int | None
) -> ComputeOptions:
    """These options, and for those that are not given the current ones."""
    current = current_compute()
    return ComputeOptions(
        device=current.device if device is None else device,
        precision=current.precision if precision is None else precision,
        threads=current.threads if threads is None else threads,
    )


@contextmanager
def computing_with(options: ComputeOptions) -> Iterator[None]:
    """Load models, and train, with these options in this block."""
    token = _CURRENT.set(options)
    try:
        yield
    finally:
        _CURRENT.reset(token)
