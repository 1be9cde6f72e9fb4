"""Benchmarks: not shipped in the wheel."""
