"""How often the gate alarms falsely and how often it finds a real slowdown, on real processes: `make gate-study`.

`kernels` are the benchmarks, `collect` runs them in one fresh process after another, `replay` applies the gate's rule
and the usual alternatives to the committed data, `simulate` to noise whose parameters are stated;
`python -m meta_tests.gate_study` writes the tables of docs/gate.md.
"""
