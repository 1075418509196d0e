"""What components write to each other, and who can write and read it.

- `topics` declares the types of topics and their quality of service: Tables 2 and 3.
- `topics_lists` says what a component with a role can write and read.
- `certificates` has the role certificates that PAPs issue to components.
- `samples` has what components write to each other, signed.
- `topic_keys` seals samples to the components whose topics-lists have the topic.
- `verification` checks every sample that a component reads.
- `reports` passes on what components report: each cause once in a while, with a count.
"""
