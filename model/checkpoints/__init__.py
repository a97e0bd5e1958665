"""Checkpoint files as containers: descriptions, the strict reader, classification. Imports no torch."""
