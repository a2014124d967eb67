"""Pages: sections as values, and one renderer a medium. Standard library only."""
