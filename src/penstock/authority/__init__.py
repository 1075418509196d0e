"""Authority that must survive a process: domains with their service, rule books, polls, facts, and decision points.

- `domain` is the access control service of a domain: members, capabilities, delegations, revocations.
- `rulebook` is the rule book: it checks each step and appends it to a ledger.
- `rulebook_records` has signed requests to the moderator, and converts the steps of a rule book to changes and back.
- `rulebook_state` computes the state of a rule book from its changes.
- `role_book` keeps a domain's roles in a ledger.
- `polls` keeps polls in a ledger and takes the steps they choose. `penstock.moderator.polls` counts the votes.
- `polls_network` lets a moderator ask over a fabric and collect votes, and publishers answer.
- `decisions` asks decision points over a fabric and answers there.
- `components` are the authorization components of a domain, which ask and answer each other over topics.
- `facts` keeps the facts of a role policy current, from SQL tables, HTTP endpoints and events.
"""
