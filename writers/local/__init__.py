"""This machine's disk: working directories, local copies, the cache of remote files (FLIP-198)."""
