"""Decisions over publish/subscribe: enforcement points ask, decision points answer, and neither knows the other.

- `questions` has the question whether a subject may perform an action on a resource, and the facts that policies see.
- `messages` has the signed requests and answers.
"""
