"""What should happen: each live job has a guardian that drives it from where it is to where it should be.

`control` owns the live jobs and the scheduling cycle, `guardian` turns events into transitions and
transitions into action, `recovery` picks everything up after a crash. It may use every room above the
server; it never runs a task itself.
"""
