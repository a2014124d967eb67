"""What the gate says of a comparison: sentences, the terminal, files, annotations, reports of tests."""
