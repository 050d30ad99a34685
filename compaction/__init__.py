"""Cleanup: vacuum, scrub and verify."""
