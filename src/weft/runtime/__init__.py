"""What runs inside the user's process or beside it: metrics, collectors, supervisors.

Standard library only, and quick to import: a training script pays for every line here. `ps` uses
numpy, and only when it is called.
"""
