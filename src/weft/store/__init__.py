"""What is remembered: resources, the event log, metrics; one writer, group commit, many readers.

A reply means committed. Every write goes through one queue and one thread, several callers sharing a
commit; every change of a resource appends to the event log, which watches tail. Knows `model` only.
"""
