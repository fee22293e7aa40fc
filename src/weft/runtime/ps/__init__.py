"""An asynchronous parameter server for numpy and torch: what `weft.ps` offers lives here.

`layout` cuts the parameters into shards, `state` keeps one of them, `server` answers for it and `snapshot` lets it
come back; `client` is the worker's end, with one `link` to every server. Standard library, and numpy once it is used.
"""
