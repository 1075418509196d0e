"""Plans, tried before they are rolled out: the components of a domain plan, and the brokers of a network plan.

- `domain` runs the components of a domain plan in virtual time, and says what does not work and how long requests take.
- `network` runs the brokers of a network plan, and says how long a revocation takes and what lost links do.
- `page` shows what a trial has found as HTML.
- `requests` finds requests that show what the policies of a plan decide, and where they are incomplete or contradict.
"""
