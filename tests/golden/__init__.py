"""Files of every released format, as their version wrote them: `format-<n>/` by `make.py`, read by `tests/protocol/test_golden.py`."""
