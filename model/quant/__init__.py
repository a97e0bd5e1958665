"""Linears whose weight stays packed as the file stores it: one class per storage format, exact in PyTorch."""
