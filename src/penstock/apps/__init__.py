"""What people run: the command line, the broker process, the decision service and the access control service.

- `acs` is the access control service of a domain.
- `answer_links` gives decision and enforcement points authenticated links to each other.
- `cli` is the command `penstock`.
- `component_host` runs the authorization components of a domain plan.
- `experiment_process` is a process that takes part in an experiment.
- `http` is the decision service.
- `node` runs a broker from its node file.
"""
