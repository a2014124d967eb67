"""The opening of a skip reason by which the page counts the benchmarks that are too slow."""

TOO_SLOW = "too slow here"
