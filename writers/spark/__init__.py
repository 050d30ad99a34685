"""States that are DataFrames: written, compared and read by Spark."""
