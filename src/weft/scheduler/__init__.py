"""What runs where: a snapshot goes in, a plan comes out.

`schedule` is a pure function: no clock, no randomness, no I/O, and the cluster it is given is as it was
when it returns. The engines, the explanations and the simulator all call it. Knows `model` only.
"""
