"""The opening of a skip reason by which the page recognises a benchmark that was too slow."""

TOO_SLOW = "too slow here"
