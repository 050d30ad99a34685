"""The demo with a stream and an embedded store: processes are killed at random."""
