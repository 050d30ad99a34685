"""Fixtures that several modules share."""

pytest_plugins = ["tests.spark_support"]
