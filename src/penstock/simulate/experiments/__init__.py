"""Figures and tables of the papers, measured again: `penstock experiment`.

One module for each paper has its experiments:

- `moderator`: conflicts between rules (paper 1).
- `pubsub`: authorization over publish/subscribe (paper 3).
- `data_centric`: authorization components (paper 4).
- `capabilities`: the dissertation on capabilities (paper 5).
- `revocation`: large networks, beyond the papers.

The frame:

- `experiment`: what an experiment is, what it finds, and what it runs with.
- `catalogue`: all experiments.
- `page`: the page of evidence.
- `charts`: charts as SVG.

What they measure with, and benchmarks too:

- `timing`: times of jobs that take turns.
- `processes`: processes that read line by line what to do.
- `access_requests`: the response time of an access request, and its parts.
- `component_domain`: a domain of 1,046 components.
- `hop_counts`: routers of a large network, and the hops of events.
- `availability`: decision points that fail and are repaired, in virtual time.
- `response_times`: decision points in processes of their own, and how long they take to answer.
- `role_policies`: role-based policies and questions drawn at random.
- `rule_worlds`: trees of event types with rules that agree.
- `sealed_delivery`: plain and sealed events between real brokers.
- `signed_types`: signed types and certificate chains.
"""
