"""Questions about all possible requests, answered with a request as an example, and explanations of one decision.

`questions` is the entry point, `formulas` has decisions as formulas, `solver` encodes policies for z3 and asks it.
`explanation` says what decided a request, `counterfactuals` finds the smallest changes that lead to another decision.
May import from `penstock.policy`: `engine`, `syntax`, `combining`, `language`.
"""
