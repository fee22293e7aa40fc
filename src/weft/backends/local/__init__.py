"""This machine as an engine: real processes in their own sessions, with limits where the kernel allows.

`machine` finds out what there is, `folders` says where things lie, `commands` turns a task into an argv
and an environment, `supervisors` keeps the processes that start tasks, and `backend` joins them.
"""
