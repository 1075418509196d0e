"""A whole domain in one file.

- `domain_plan` reads it, and `domain_check` finds its mistakes before anything runs.
- `nats_permissions` says which subjects of a NATS server each component needs.
"""
