"""Reports of a comparison by the gate.

Sentences, the terminal, files, annotations, reports of tests.
"""
