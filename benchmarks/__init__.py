"""Benchmarks: each one prints its ratio, its goal and whether it holds."""
