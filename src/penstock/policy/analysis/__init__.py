"""Questions about all possible requests, answered with a request as an example.

`questions` is the entry point, `formulas` has decisions as formulas, `solver` encodes policies for z3 and asks it.
May import from `penstock.policy`: `engine`, `syntax`, `combining`, `language`.
"""
