"""The words by which the page knows why a benchmark has no figure."""

TOO_SLOW = "too slow here"
NO_BANDWIDTH = "memory bandwidth was not measured"
