"""The text form of policies that people write.

`tokens` has the words of the language, `policies` reads, `policy_writer` writes and formats, `lint` warns.
May import from `penstock.policy.syntax`: `builder`.
"""
