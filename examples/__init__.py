"""Short programs to copy.

Each is one file, and needs nothing of this repository but `accounting`.
"""
