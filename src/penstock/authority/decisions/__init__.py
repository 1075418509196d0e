"""Decisions over publish/subscribe: enforcement points ask, decision points answer, and neither knows the other.

- `questions` has the question whether a subject may perform an action on a resource, and the facts that policies see.
- `messages` has the signed requests and answers.
- `recycling` answers questions from the answers that a decision point gave before.
- `updates` has the signed changes of policies and heartbeats by which cached answers stay consistent.
"""
