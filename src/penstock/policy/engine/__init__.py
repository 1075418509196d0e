"""Evaluation: from a request to a decision.

`evaluate` follows the standard literally, `trace` records what decided, `decide` answers requests, `lookup` finds
values and policies. `compiler`, `programs`, `index`, `vectors` and `fast_path` do the same faster, `cases` runs test
cases for policies.
May import from `penstock.policy`: `syntax`, `combining`, `language`.
"""
