"""Represent events and selectors in Spark.

`frames` is the schema of events, `columns` compiles selectors to native expressions.
Imports nothing else of `penstock.pipeline`.
"""
