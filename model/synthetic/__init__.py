"""Synthetic checkpoints: real formats, names and architecture, random weights."""

from model.synthetic.h3_tiny import H3_TINY, ensure_h3_tiny

__all__ = ["H3_TINY", "ensure_h3_tiny"]
