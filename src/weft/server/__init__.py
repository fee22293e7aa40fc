"""REST, event streams and authentication over `control`.

`operations` is the table of what can be asked; the routes, the parameter checks and the OpenAPI document
all come from it. `python -m weft.server` runs it. May import everything but `cli` and `client`.
"""
