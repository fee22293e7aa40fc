"""What a node holds of its datasets: parts as files, and the books about them.

A part is in the cache whole or not at all. Who is let in is decided once (`admission`), what is let in stays until
nobody has a lease on it and room is needed (`collect`). All of it may be used by several processes at once, and each
of them may die at any instruction. Nothing here knows sockets or jobs' code; that is `agent/`.
"""
