"""The words of a text."""


def unique(words: list[str]) -> list[str]:
    """Each word once, in the order of the alphabet."""
    return sorted(set(words))
