"""Questions about all possible requests, answered with a request that shows it.

`questions` is the entry point, `encoder`, `scales`, `formulas` and `combining` turn policies into formulas,
`solver` asks z3.
May import from `penstock.policy`: `engine`, `syntax`, `combining`, `language`.
"""
