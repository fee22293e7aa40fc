"""Where it happens: each folder is an engine that runs task groups.

A backend reports its nodes, starts and stops tasks, keeps their logs, and adopts what already runs; it
decides nothing. It may touch processes and files, and knows `model`, `jobtypes`, `data` and `runtime`.
"""
