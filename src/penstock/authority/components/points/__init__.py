"""The components that ask, decide, answer and log.

- `component` is the layer below every component: it joins a domain, opens the topics of its list, signs, and verifies.
- `configurations` says which configuration of a component is in force, and which one serves a request.
- `pending_requests` waits for replies.
- `request_components` has the bases of components that ask, and of those that answer.
- `enforcement` is the PEP, which asks and combines decisions.
- `decision` is the PDP, which decides by its policies and asks for information.
- `information` is the PIP, which answers for attributes.
- `log_point` has log points (PLP), and what audits of their logs say as attributes.
"""
