"""How often the gate cries wolf and how often it finds what is real, from runs of real processes: `make gate-study`.

`kernels` are the benchmarks, `collect` runs them in one fresh process after another, `replay` puts the gate's rule and
its rivals on the committed data, `simulate` on noise whose parameters are stated; `python -m meta_tests.gate_study`
writes the tables of docs/gate.md.
"""
