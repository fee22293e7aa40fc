"""The Python SDK: everything a program can ask of a Weft server, over REST.

It talks HTTP with the standard library alone and imports neither pydantic nor the server, so that the
command line starts fast and a notebook needs nothing else. It reads WEFT_HOME and packs code folders.
"""
