"""Bounds on role policies and on the search for a way to activate a role."""

from typing import Final

#: a policy: characters, statements, conditions of a rule, parameters of a role, members of a separation of duty
POLICY_LENGTH: Final = 4_000_000
POLICY_STATEMENTS: Final = 100_000
RULE_CONDITIONS: Final = 32
ROLE_PARAMETERS: Final = 16
SEPARATION_MEMBERS: Final = 64
#: characters of a name, and of a session's id
ROLE_NAME_LENGTH: Final = 128
#: credentials and facts that are tried to activate one role
SEARCH_STEPS: Final = 100_000
#: the same to explain why a rule is not satisfied
EXPLAIN_STEPS: Final = 10_000
#: domains that a record is issued to, and records that another domain has revoked before they were known here
RECORD_DOMAINS: Final = 256
NOTICES_AHEAD: Final = 10_000
