"""Cleanup: retention, vacuum and scrub."""
