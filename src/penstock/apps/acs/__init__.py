"""The access control service of a domain as a process: its file, its HTTP API, and the client of that API.

- `config` reads domain files.
- `service` answers requests: it authenticates callers, asks the domain, and renews and pushes capabilities.
- `domain_facts` reads the sources of facts that a domain file names.
- `role_notices` notifies other domains that records have ended.
- `operations` has the operations of the API: their path, their fields, and what they do.
- `openapi` describes the API in OpenAPI 3.1.
- `message_signatures` signs and verifies HTTP requests (RFC 9421).
- `validity` hands validity statements to the network.
- `pkcs11_signer` is a program that signs with a PKCS#11 token.
- `client` calls the API.
"""
