"""Synthetic checkpoints: real formats, names and architecture, random weights."""
