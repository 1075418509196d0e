"""The decision service: AuthZEN 1.0 and XACML REST over HTTP, by a bundle of policies that may change at any time.

- `server` reads HTTP/1.1 requests from sockets and writes responses.
- `service` turns an HTTP request into a response, and runs as a process: it listens, reloads the bundle and stops.
- `decisions` decides one question, several, or a search under one bundle, and says what to log.
- `authzen` answers one AuthZEN 1.0 question directly if the policy is simple enough.
- `bundles` loads a policy bundle and computes its revision.
- `decision_source` lets a decision point on a fabric answer by the same bundle.
- `entities` reads `entities.json`, a bundle's facts about subjects, resources and actions.
- `journal` writes the decision log.
- `openapi` describes the service in OpenAPI 3.1.
"""
