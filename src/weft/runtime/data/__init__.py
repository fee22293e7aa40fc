"""Datasets inside the user's process: what `weft.data` gives lives here.

`index` reads a version's table of samples, `order` says which sample comes when, `parts` is where the bytes come from,
and `reader` puts them together; `torch` and `tf` hand it to frameworks. Standard library, and numpy where there is one.
"""
