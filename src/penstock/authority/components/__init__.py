"""Authorization components on a data-centric fabric (paper 4, section 4): PAP, PEP, PDP, PIP, PLP and PSP.

They join a domain at run time, are configured there, and ask and answer each other over topics.

- `topics` declares the types of topics and their quality of service: Tables 2 and 3.
- `topics_lists` says what a component with a role can write and read.
- `certificates` has the role certificates that PAPs issue to components.
- `samples` has what components write to each other, signed.
- `live_domain` reads a running domain from CONF, and says what a plan would change in it.
- `topic_keys` seals samples to the components whose topics-lists have the topic.
- `nats_permissions` says which subjects of a NATS server each component needs.
- `log_point` has log points (PLP), and what audits of their logs say as attributes.
- `domain_plan` reads a whole domain from one file, and `domain_check` finds its mistakes before anything runs.
- `verification` checks every sample that a component reads.
- `configurations` says which configuration of a component is in force, and which one serves a request.
- `component` is the layer below every component: it joins a domain, opens the topics of its list, signs, and verifies.
- `registry` is the state of a domain's PAPs: members, roles, reconfigurations under way.
- `administration` is the PAP: it admits components, and configures and reconfigures them.
- `specification` is the PSP, which specifies policies, and the PAP that compiles and applies them.
- `dependencies` says which components depend on each other, and what policies require.
- `pending_requests` waits for replies.
- `request_components` has the bases of components that ask, and of those that answer.
- `enforcement` is the PEP, which asks and combines decisions.
- `decision` is the PDP, which decides by its policies and asks for information.
- `information` is the PIP, which answers for attributes.
- `attribute_mapping` has signed tables that say what attributes of other domains' subjects mean here.
- `information_sources` reads attributes from files, SQL, HTTP, trees and functions.
- `information_combining` combines the answers of several information points, field by field.
"""
