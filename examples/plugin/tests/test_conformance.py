"""lmlab's conformance suite on the system of this package: one test per property."""

from __future__ import annotations

from lmlab.conformance.pytest_plugin import conformance_tests

test_conformance = conformance_tests("traces")
