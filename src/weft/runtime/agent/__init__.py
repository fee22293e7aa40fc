"""What stands beside a task in its pod: it prepares the pod's folders, opens the gate at which the task's container
waits, and tells the control plane what the task prints, measures and leaves behind.

It is no init container: one cost a second until the user's process started, because kubelet looks at its containers
once a second; a container beside the task costs nothing. So both start at once, and the task's waits at a gate, a file.

All that the agent knows is in files. One that was killed goes on where the last one stopped, and the control plane
asks it for what it has not got yet.
"""
