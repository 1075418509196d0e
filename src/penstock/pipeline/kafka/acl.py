"""A policy as access control lists of Kafka: which user may read and write which topic at all.

A list holds a user, a topic and an operation. A policy says more: which rows, which attributes, at which times, and
with which values. So a list is an over-approximation: whoever it refuses, the policy refuses as well. What it cannot
hold is listed (`KafkaAclEntry.lacks`). Brokers, views or jobs have to enforce that.

Events of a type are in the topic that has its name, all versions in one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Final

from penstock.errors import MalformedError
from penstock.fabric.kafka_login import is_topic
from penstock.guard import Effect
from penstock.guard.restriction import Branch
from penstock.model.principals import Principal
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.validity import ALWAYS as ANYTIME

OPERATIONS: Final = {Right.SUBSCRIBE: "Read", Right.PUBLISH: "Write"}
_USER: Final = re.compile(r"[^\s,=\"'\\]{1,249}")


@dataclass(frozen=True, slots=True)
class KafkaAclEntry:
    """One entry: a user may do an operation with a topic; and what the policy says beyond that, in words."""

    user: str
    topic: str
    operation: str
    lacks: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the entry as plain data, with Kafka's own names."""
        return {
            "principal": f"User:{self.user}",
            "host": "*",
            "operation": self.operation.upper(),
            "permissionType": "ALLOW",
            "resourceType": "TOPIC",
            "resourceName": self.topic,
            "patternType": "LITERAL",
            "lacks": list(self.lacks),
        }

    def command(self, server: str) -> str:
        """Return the command of Kafka that adds the entry."""
        what = (
            f"--allow-principal {quote(f'User:{self.user}')} --operation {self.operation} --topic {quote(self.topic)}"
        )
        return f"kafka-acls --bootstrap-server {quote(server)} --add {what}"


def acl_of(policy: PipelinePolicy, users: Mapping[Principal, str], prefix: str = "") -> list[KafkaAclEntry]:
    """Return the entries of everybody that a policy mentions, by user, topic and operation.

    `users` names principals in Kafka; without it a principal has the name that the policy gives it. `prefix` is before
    the names of all topics. Raises `MalformedError` (`acl.topic`, `acl.user`).
    """
    everybody = dict.fromkeys((*policy.principals(), *(one.principal for one in policy.subscribers)))
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    refused: dict[tuple[str, str, str], dict[str, None]] = {}
    for principal in everybody:
        user = users.get(principal) or policy.names.get(principal) or str(principal)
        if not _USER.fullmatch(user):
            raise MalformedError(
                "acl.user", f"`{user[:40]}` cannot be the name of a user of Kafka", hint="give another with --user"
            )
        for verified in policy.types:
            topic = f"{prefix}{verified.event_type.name.name}"
            if not is_topic(topic):
                raise MalformedError("acl.topic", f"`{topic[:60]}` cannot be the name of a topic of Kafka")
            for action, operation in OPERATIONS.items():
                decision = policy.decide(principal, action, verified)
                name = f"{verified.event_type.name.owner}/{topic}@{verified.event_type.name.version}"
                if decision.effect is Effect.PERMIT and decision.restriction.branches:
                    words = found.setdefault((user, topic, operation), {})
                    for branch in decision.restriction.branches:
                        words.update(dict.fromkeys(f"{name}: {word}" for word in _lacks(branch, action)))
                else:
                    refused.setdefault((user, topic, operation), {})[f"{name}: nothing"] = None
    return [KafkaAclEntry(*entry, (*words, *refused.get(entry, ()))) for entry, words in sorted(found.items())]


def _lacks(branch: Branch, action: Right) -> list[str]:
    """Return the parts of a branch that an entry cannot express."""
    said = []
    if branch.where != ALWAYS:
        said.append("only some rows (a condition on attributes)")
    if branch.guards:
        said.append("only rows that a predicate of the broker admits")
    if branch.attributes is not None:
        said.append(f"only {len(branch.attributes)} attributes")
    if branch.forced:
        said.append("only rows with certain values" if action is Right.SUBSCRIBE else "values that are always set")
    if branch.when.validity != ANYTIME or branch.when.condition != ALWAYS:
        said.append("only at certain times or under a condition on the environment")
    return said
