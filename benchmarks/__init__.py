"""Benchmarks: `python -m benchmarks.NAME` prints one table, or one JSON object with --json."""
