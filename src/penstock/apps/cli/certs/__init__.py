"""`penstock cert`: issue, show and verify certificates.

`certs` has the commands, `grants` reads rights, subjects and dates from the command line and issues certificates;
`topic` and `moderator` use it too. `statements` has `penstock statement`, for certificates with on-line tests.
May import from `penstock.apps.cli`: `shared`.
"""
