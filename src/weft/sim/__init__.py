"""A cluster that exists on paper: a workload goes in, and what would have happened comes out.

The simulator calls the very function that the engines call, so what was simulated is what runs. Time is
virtual and chance is seeded: the same arguments give the same outcome. Knows `model` and `scheduler`.
"""
