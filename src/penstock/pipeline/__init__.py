"""Spark: the same policy over logs and streams."""
