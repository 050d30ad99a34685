"""Savepoints: complete copies, in the catalog or outside of it."""
