"""The access control service of a domain (paper 5, section 3.2.4): members, capabilities, delegations, revocations.

- `domain_changes` has the changes of a domain, as its key signs them and its ledger stores them.
- `domain_state` is the pure state machine: which changes a request leads to, and the state that they make.
- `domain_ledger` keeps the state in a ledger of a store, and lets one of several services win.
- `holders` lists who can do what with a type right now, and completes a principal's chain of certificates.
- `role_capabilities` says which capabilities active roles call for.
- `signers` has keys outside the process: a program that signs.
- `distribution` pushes capabilities to brokers over a fabric.

A change counts only if the domain's key has signed it for its place in the ledger. So somebody who can write to the
database can neither add a capability nor take back a revocation.
"""
