"""Evaluation: from a request to a decision.

`evaluate` follows the standard word by word, `decide` answers requests, `lookup` and `repository` find values and
policies. `compiler`, `programs`, `index`, `vectors` and `fast_path` do the same faster, `cases` runs test cases
beside policies.
May import from `penstock.policy`: `syntax`, `combining`, `language`.
"""
