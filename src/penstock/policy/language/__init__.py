"""The parts of XACML 3.0 as values: data types, functions, expressions, policies, requests and results.

`datatypes`, `times` and `patterns` are values, `functions` compute with them, `policies`, `requests` and `results` are
the questions and answers, `event_attributes` the attributes by which policies refer to events.
Imports nothing else of `penstock.policy`.
"""
