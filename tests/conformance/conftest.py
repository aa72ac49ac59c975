"""The tiny trainings that all tests of a session share."""

from __future__ import annotations

import pytest

from lmlab.conformance.pytest_plugin import workspace_of
from lmlab.conformance.system_under_test import Workspace


@pytest.fixture(scope="session")
def workspace(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspace_of(pytestconfig, tmp_path_factory)
