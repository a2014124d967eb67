"""Short programs to copy: each is one file, and needs nothing of this repository but `accounting`."""
