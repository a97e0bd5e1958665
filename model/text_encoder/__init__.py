"""Qwen3-VL as the conditioner: prompt in, one row of text features per token out."""
