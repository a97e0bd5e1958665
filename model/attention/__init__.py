"""Attention backends behind one function type."""

from model.attention.base import AttentionFn
from model.attention.registry import available_attention, resolve_attention

__all__ = ["AttentionFn", "available_attention", "resolve_attention"]
