"""Policies by their ids and versions, as references find them; one that cannot be read spoils nothing but itself."""

from collections.abc import Iterable

from penstock.errors import EvaluationError
from penstock.policy.lookup import NoSources
from penstock.policy.policies import PolicyReference, PolicySet, Root, version_key


class Repository(NoSources):
    """Policies that others may refer to. Those within a policy set are found only in it."""

    def __init__(self, policies: Iterable[Root] = ()) -> None:
        self._known: dict[tuple[str, bool], list[Root]] = {}
        for one in policies:
            self._known.setdefault((one.id, isinstance(one, PolicySet)), []).append(one)

    def policy(self, reference: PolicyReference) -> Root:
        """Return the newest policy that a reference means. Raises `EvaluationError` (`xacml.unknown`)."""
        known = self._known.get((reference.id, reference.to_set), ())
        suitable = [one for one in known if reference.suits(one.version)]
        if not suitable:
            raise EvaluationError("xacml.unknown", f"policy `{reference.id[:120]}` is not known")
        return max(suitable, key=lambda one: version_key(one.version))
