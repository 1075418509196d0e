"""Policies by their ids and versions, as references find them; one that cannot be read spoils nothing but itself.

Beside them, where resources are a hierarchy, what is above what.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from penstock.errors import EvaluationError, MalformedError
from penstock.policy.engine.lookup import NoSources
from penstock.policy.language.datatypes import Value
from penstock.policy.language.policies import (
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    check_issuers,
    inner_policies,
    version_key,
)


def check_policies(roots: Sequence[Root], referred: Sequence[Root] = ()) -> None:
    """Check that policies have different ids, and that references have targets, before they decide anything.

    `roots` decide, and `referred` can be referred to. Raises `MalformedError`: `xacml.duplicate` for two policies, or
    two policy sets, with one id and version, wherever they stand; `xacml.unknown` for a reference that finds none;
    `xacml.cycle` for a policy set that is within itself.
    """
    seen: set[tuple[str, str, bool]] = set()
    for one in chain.from_iterable(map(inner_policies, (*roots, *referred))):
        name = (one.id, one.version, isinstance(one, PolicySet))
        if name in seen:
            raise MalformedError(
                "xacml.duplicate",
                f"two policies have the id `{one.id[:120]}` and the version {one.version}",
                hint="give one of them another id or version; refer to a policy instead of repeating it",
            )
        seen.add(name)
    known, done = Repository(referred), set[int]()
    for root in (*roots, *referred):
        _check_references(root, known, (), done)


def _check_references(root: Root, known: "Repository", around: tuple[PolicySet, ...], done: set[int]) -> None:
    """Check what a policy refers to, and what that does; each policy once, since where it stands changes nothing."""
    if isinstance(root, Policy) or id(root) in done:
        return
    around = (*around, root)
    for member in root.members:
        found = _referred(member, known, around) if isinstance(member, PolicyReference) else member
        if any(found is one for one in around):
            path = " > ".join(f"`{one.id[:60]}`" for one in (*around, found))
            message = f"a policy set is within itself: {path}"
            raise MalformedError("xacml.cycle", message, hint="take one of the references out")
        _check_references(found, known, around, done)
    done.add(id(root))


def _referred(reference: PolicyReference, known: "Repository", around: tuple[PolicySet, ...]) -> Root:
    try:
        return known.policy(reference)
    except EvaluationError as error:
        # The policy that decides cannot be referred to, and it is a ring all the same.
        for one in around:
            if reference.to_set and reference.id == one.id and reference.suits(one.version):
                return one
        message = f"policy set `{around[-1].id[:120]}` refers to what is not there: {error.message}"
        hint = "add the policy that it refers to, or correct its id and versions"
        raise MalformedError("xacml.unknown", message, hint=hint) from None


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
        """Return the resources right above one; nothing at all if resources do not form a hierarchy."""
        return self._above.get(resource, ()) if self._above else None
