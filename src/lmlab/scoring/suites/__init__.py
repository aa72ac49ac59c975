"""Benchmark suites, one file each: its SUITE registers it."""
