"""Partial evaluation: what remains of a policy if everything but the event, or one request of many, is known.

`partial_evaluation` is the entry point for events, `formulas` turns conditions on the event into selectors.
`request_sets` is the entry point for requests: it finds those that get the same answer as one. `request_attributes`
says how selectors see the attributes of a request.
May import from `penstock.policy`: `analysis`, `engine`, `syntax`, `combining`, `language`.
"""
