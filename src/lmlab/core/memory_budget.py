"""Memory budget (available RAM): rejects models and tensors that can't fit before allocation."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from lmlab.core.errors import UserError
from lmlab.core.limits import LIMITS, limit

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

FACTORIES = frozenset(
    getattr(torch, name) for name in "empty zeros ones full rand randn arange eye".split()
)
"""Functions that allocate a tensor of a given size."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
UNKNOWN = 1 << 46
"""Bytes assumed if the system does not report its memory."""


def available_memory() -> int:
    """Bytes that this process may still use: the system's, its container's and its own limit."""
    limits = [UNKNOWN]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kilobytes = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
        limits += [1024 * int(count) for count in kilobytes]
        quota = CGROUP_LIMIT.read_text(encoding="ascii").strip() if CGROUP_LIMIT.exists() else "max"
        limits += [int(quota)] if quota.isdigit() else []
    except OSError:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        limits += [pages * size] if pages > 0 and size > 0 else []
    if resource is not None:
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [soft] if soft != resource.RLIM_INFINITY else []
    return min(limits)


class _AllocationCheck(TorchFunctionMode):
    """Rejects a single tensor that is larger than a budget, before it is allocated."""

    def __init__(self, budget: int, subject: str) -> None:
        super().__init__()
        self.budget, self.subject = budget, subject

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in FACTORIES:
            elements = _element_count(func, args, kwargs or {})
            if 4 * elements > self.budget:
                raise _too_large(self.subject, 4 * elements, self.budget)
        return func(*args, **(kwargs or {}))


def _element_count(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of elements that a factory is asked to allocate; 0 if unknown."""
    shape = args[0] if args and isinstance(args[0], (tuple, list)) else kwargs.get("size", args)
    if func is torch.full and isinstance(shape, tuple) and shape is args:
        shape = ()
    if func is torch.arange:
        ends = [argument for argument in args if isinstance(argument, (int, float))]
        return int(abs(ends[1] - ends[0] if len(ends) > 1 else ends[0])) if ends else 0
    sizes = [argument for argument in shape if isinstance(argument, int)] if shape else []
    if func is torch.eye:
        sizes = sizes * 2 if len(sizes) == 1 else sizes
    return math.prod(sizes) if sizes and all(size >= 0 for size in sizes) else 0


def _too_large(subject: str, needed: int, budget: int) -> UserError:
    return UserError(
        f"{subject} would need at least {_size(needed)} of memory, but the budget is "
        f"{_size(budget)}; use a smaller model, or check config.json if this is a stored model."
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


@contextmanager
def memory_budget(
    subject: str, budget: int | None = None, *, tensors: int | None = None
) -> Iterator[None]:
    """Reject modules whose parameters exceed a budget in bytes, by default the available memory.

    Each single tensor is checked before it is allocated, the sum of all parameters as they are
    registered. More parameters than `tensors`, or the limit `parameters`, are rejected as well:
    millions of layers take long to build before they fill the memory.
    """
    max_bytes = available_memory() if budget is None else min(budget, available_memory())
    max_tensors = limit("parameters") if tensors is None else min(tensors, limit("parameters"))
    counted: dict[int, Tensor] = {}
    total = 0

    def count(module: nn.Module, name: str, value: Any) -> None:
        nonlocal total
        unset = isinstance(value, (nn.UninitializedParameter, nn.UninitializedBuffer))
        if not isinstance(value, Tensor) or id(value) in counted or unset:
            return
        counted[id(value)] = value  # kept alive, so that its id is not used again
        total += value.numel() * value.element_size()
        if total > max_bytes:
            raise _too_large(subject, total, max_bytes)
        if len(counted) > max_tensors:
            raise UserError(
                f"{subject} has more than {max_tensors:,} parameter tensors; "
                f"{LIMITS['parameters'].hint}."
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        with _AllocationCheck(max_bytes, subject):
            yield
    finally:
        hook.remove()
