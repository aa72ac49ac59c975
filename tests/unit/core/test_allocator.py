from __future__ import annotations

import platform
import sys

import pytest

from lmlab.core.allocator import retain_freed_memory

GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)


def test_glibc_takes_the_settings() -> None:
    assert retain_freed_memory() is GLIBC


def test_settings_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")
    assert retain_freed_memory() is False


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert retain_freed_memory() is False
