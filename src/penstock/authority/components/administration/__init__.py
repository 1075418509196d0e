"""How a domain admits components and configures them.

- `registry` is the state of a domain's PAPs: members, roles, reconfigurations under way.
- `admission` bounds the work that requests to join can cause.
- `administration_point` is the PAP: it admits components, and configures and reconfigures them.
- `specification` is the PSP, which specifies policies, and the PAP that compiles and applies them.
- `live_domain` reads a running domain from CONF, and says what a plan would change in it.
"""
