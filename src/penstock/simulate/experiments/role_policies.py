"""Role-based policies drawn at random, with questions about them, as paper 3 uses them."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion, Entity

RIGHTS: Final = ("read", "append", "write")
_ROLES, _ROLES_OF_A_SUBJECT, _DENSITY = 40, 3, 0.05
DESCRIPTION: Final = (
    f"100 subjects, 100 objects, {len(RIGHTS)} rights, and {_ROLES} roles that have {_DENSITY:.0%} of the permissions "
    f"each; a subject has {_ROLES_OF_A_SUBJECT} of them"
)


class RandomRolePolicy:
    """40 roles with 5 % of the permissions each, and subjects with three of the roles each."""

    def __init__(self, seed: int, *, subjects: int = 100, objects: int = 100) -> None:
        chance = self.chance = Random(seed)  # noqa: S311  # the same each time
        roles = [f"r{number}" for number in range(_ROLES)]
        self.subjects = [
            Entity("user", f"s{number}", {"roles": [*chance.sample(roles, _ROLES_OF_A_SUBJECT)]})
            for number in range(subjects)
        ]
        self.objects: Sequence[str] = [f"o{number}" for number in range(objects)]
        self.granted = {
            (item, right): {role for role in roles if chance.random() < _DENSITY}
            for item in self.objects
            for right in RIGHTS
        }

    def questions(self) -> Iterator[AccessQuestion]:
        """Yield questions, drawn with replacement."""
        permissions = [*self.granted]
        while True:
            item, right = self.chance.choice(permissions)
            yield AccessQuestion.of(self.chance.choice(self.subjects), right, ("object", item))

    def effect(self, question: AccessQuestion) -> AnswerEffect:
        """Decide a question."""
        roles = self.granted.get((question.resource.id, question.action.id), set())
        found = question.subject.properties.get("roles")
        permits = isinstance(found, list) and not roles.isdisjoint(map(str, found))
        return AnswerEffect.PERMIT if permits else AnswerEffect.DENY
