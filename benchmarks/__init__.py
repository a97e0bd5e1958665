"""Benchmark records: load, compare, measure."""
