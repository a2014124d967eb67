"""What the gate says of a comparison.

Sentences, the terminal, files, annotations, reports of tests.
"""
