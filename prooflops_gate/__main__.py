"""Says how the gate is used: it is a plugin of pytest."""

from prooflops_gate import __version__

print(
    f"""prooflops-gate {__version__} is a plugin of pytest and has no command of its own.

  pytest --gate --gate-versus origin/main    compare with the merge base; fail on a regression
  pytest --gate-record NAME                  keep this run and its commit as a baseline
  pytest --gate --gate-baseline NAME         compare with the commit of that baseline
  pytest --gate-bisect GOOD                  name the commit that made a benchmark slower
  pytest --gate-noise-floor                  show the smallest change this machine can detect
  pytest --gate-history --report=DIR         list the kept runs and draw them in DIR/history.html

`pytest --help` lists all options under "prooflops gate". Any pytest-benchmark suite works."""
)
