"""Job types: what a framework expects of its gang, as data.

One YAML file a type: its roles, defaults and environment. `catalogue` reads them, `complete` fills a
job's open fields from its type, `render` writes the environment. Knows `model` only.
"""
