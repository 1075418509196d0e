"""Authorization components on a data-centric fabric (paper 4, section 4): PAP, PEP, PDP, PIP, PLP and PSP.

They join a domain at run time, are configured there, and ask and answer each other over topics.

- `exchange` has the topics, who can write and read each, and the signed samples that components write to each other.
- `information` has the attributes that decisions need: sources, mappings, combining, and what depends on what.
- `points` has the components that ask, decide, answer and log, and the layer below all of them.
- `administration` admits components to a domain, configures them, and applies the policies of others.
- `plans` reads a whole domain from one file, checks it, and derives the permissions of a NATS server.
- `component_factory` makes the components of a plan.
"""
