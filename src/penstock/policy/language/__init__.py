"""The parts of XACML 3.0 as values: data types, functions, expressions, policies, requests and results.

`datatypes`, `times`, `addresses` and `patterns` are values, `functions` and `expressions` compute with them,
`policies`, `requests` and `results` are what is asked and answered, `event_attributes` what policies may say about
events.
Imports nothing else of `penstock.policy`.
"""
