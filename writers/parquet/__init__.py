"""Files of Parquet: what is read of them, with which checks, by any engine."""
