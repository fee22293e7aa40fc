"""This machine as an engine: real processes in their own sessions, with limits where the kernel allows.

`machine` finds out what there is, `folders` says where things lie, `commands` gives a task the environment
that it begins with and its isolation, `supervisors` keeps the processes that start tasks, and `backend` joins them.
"""
