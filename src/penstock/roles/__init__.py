"""Roles: OASIS as a small language and an engine without I/O (paper 2, section 3.2; paper 5, section 6.1).

- `language` has the syntax tree of role policies, their parser, checks and formatter.
- `engine` has the state of a domain: sessions, active roles, appointments, facts. It is a fold over changes.
- `explain` says why a role is active, what is missing to activate one, and what would be lost with a credential.
- `lint` finds unreachable roles, cycles, conditions that can never be true, and separations that a rule defeats.
- `scenarios` runs steps against policies and compares the results with the expected ones.
- `credentials` has the signed forms: role membership certificates and appointment certificates.
- `limits` has the bounds.
"""
