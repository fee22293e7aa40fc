"""`weft.checkpoint`: keep the state of a training in CHECKPOINT_DIR and find it again (docs/surviving.md)."""

from weft.runtime.checkpoint import CheckpointError, load, save, steps

__all__ = ["CheckpointError", "load", "save", "steps"]
