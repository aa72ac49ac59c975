"""Allocator settings: only on glibc, and never over those of the user."""

from __future__ import annotations

import platform
import sys

import pytest

from lmlab.core.allocator import retain_freed_memory

GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


@pytest.fixture(autouse=True)
def no_user_malloc_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)


def test_allocator_settings_apply_only_to_glibc() -> None:
    assert retain_freed_memory() is GLIBC


def test_user_malloc_settings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1")
    assert retain_freed_memory() is False


def test_other_platforms_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert retain_freed_memory() is False
