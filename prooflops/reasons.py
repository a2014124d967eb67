"""Openings of skip reasons by which the page recognises why a benchmark has no figure."""

TOO_SLOW = "too slow here"
NO_BANDWIDTH = "memory bandwidth was not measured"
