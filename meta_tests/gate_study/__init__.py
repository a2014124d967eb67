"""The gate on public projects' own benchmarks: `make gate-field`."""
