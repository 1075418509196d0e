"""Policies by their ids and versions, as references find them; one that cannot be read spoils nothing but itself.

Beside them, where resources are a hierarchy, what is above what.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from penstock.errors import EvaluationError
from penstock.policy.datatypes import Value
from penstock.policy.lookup import NoSources
from penstock.policy.policies import PolicyReference, PolicySet, Root, check_issuers, version_key


class Repository(NoSources):
    """Policies that others may refer to; those within a policy set are found only in it. And resources above others.

    >>> Repository(above={"docs/a": ["docs"], "docs/b": ["docs"]}).children("docs")
    ['docs/a', 'docs/b']
    """

    def __init__(
        self, policies: Iterable[Root] = (), above: Mapping[Value, Sequence[Value]] = MappingProxyType({})
    ) -> None:
        self._above = above
        self._below: dict[Value, list[Value]] = {}
        for resource, parents in above.items():
            for parent in parents:
                self._below.setdefault(parent, []).append(resource)
        self._known: dict[tuple[str, bool], list[Root]] = {}
        for one in policies:
            self._known.setdefault((one.id, isinstance(one, PolicySet)), []).append(one)
        self._checked: set[int] = set()

    def policy(self, reference: PolicyReference) -> Root:
        """Return the newest policy that a reference means.

        Raises `EvaluationError` (`xacml.unknown`), `MalformedError` (`xacml.issuer`).
        """
        known = self._known.get((reference.id, reference.to_set), ())
        suitable = [one for one in known if reference.suits(one.version)]
        if not suitable:
            raise EvaluationError("xacml.unknown", f"policy `{reference.id[:120]}` is not known")
        found = max(suitable, key=lambda one: version_key(one.version))
        if id(found) not in self._checked:
            check_issuers(found)
            self._checked.add(id(found))
        return found

    def children(self, resource: Value, /) -> Sequence[Value]:
        """Return the resources right below one. Raises `EvaluationError` (`xacml.hierarchy`)."""
        return self._below.get(resource, ()) if self._above else super().children(resource)

    def parents(self, resource: Value, /) -> Sequence[Value] | None:
        """Return the resources right above one; nothing at all where resources are no hierarchy."""
        return self._above.get(resource, ()) if self._above else None
