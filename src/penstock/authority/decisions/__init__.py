"""Decisions over publish/subscribe: enforcement points ask, decision points answer, and neither knows the other.

- `questions` has the question whether a subject may perform an action on a resource, and the facts that policies see.
- `messages` has the signed requests and answers, `message_bytes` writes and reads the usual ones quickly.
- `recycling` answers questions from the answers that a decision point gave before.
- `updates` has the signed changes of policies and heartbeats by which cached answers stay consistent.
- `coverage` says which requests a decision point subscribes to: patterns, exact tuples, or what its policies cover.
- `rights` says who may decide about a resource, and who may ask.
- `modes` combines the answers of several decision points.
- `decision_point` answers requests on a fabric and over links.
- `enforcement_point` asks, and believes only who may decide.
- `links` is the port for authenticated links between points.
- `policy_changes` finds out for which requests changed policies may give another answer.
- `policy_feed` publishes the updates and heartbeats of a decision point.
- `secondary_point` is the cache of answers beside an enforcement point.
- `shared_cache` is a cache of answers in the event service, for all enforcement points.
- `authzen` has the answers of AuthZEN 1.0, and the order of a batch.
- `cloud_events` has signed CloudEvents.
- `authzen_events` has points that ask and answer in AuthZEN's form over any fabric, for those of other makers;
  `authzen_nats` carries their events as NATS messages, and `authzen_conformance` checks such points.
"""
