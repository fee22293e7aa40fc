"""Custom resources of a cluster and Weft's own jobs, queues, types and sizes, each as a mirror of the other.

`decide` says what follows from what the two sides are now and what they last agreed on; `jobs` and `declared` carry
that out, one name at a time (`work`); `links` remembers on disk what belongs to what, so that a deletion is found
also if nobody was there to see it.
"""
