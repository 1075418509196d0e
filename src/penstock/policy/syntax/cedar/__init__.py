"""Policies in Cedar, compiled to XACML.

`grammar` parses Cedar's text into nodes of its own, `compiler` checks that no policy can err and builds
one XACML policy.
May import from `penstock.policy`: `combining`, `language`, and of `syntax`: `builder`, `text`.
"""
