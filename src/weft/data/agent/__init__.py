"""The agent: one process a node that fills the cache and answers those who read from it.

    python -m weft.data.agent --folder CACHE --socket READERS --control ENGINE --origin-url https://weft.example

A reader asks once a part and gets an open file, from which it reads by itself; bytes pass through the agent only where
the part is not kept on this node. `node` holds all that there is, `desk` answers readers, `control` the engine,
`peers` other nodes. All that must outlive the process is in the cache's books.
"""
