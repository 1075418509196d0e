"""Users and permissions of real organisations, as roles and privileges: the same pairs come out.

The sets are those of HP Labs, one pair of a user and a permission in each line. Roles are found by a greedy cover: of
the users, take the one with the fewest permissions that no role covers yet. These, and all other permissions that
everybody who has them has too, are a role. It is given to everybody who has all its permissions.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.guard.london import NOW, PITO

from penstock.guard import Effect, EventRequest, decide
from penstock.guard.roles import ActiveRoles, RoleAuthority
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.model.principals import Principal
from penstock.roles.engine import ActivateRole, Appoint, GroundEventPrivilege, OpenSession, RoleEngine
from penstock.roles.language import read_policy
from penstock.trust.capabilities import Right
from penstock.trust.event_types import sign_type, verify_type

Users = dict[str, frozenset[str]]
START = datetime(2026, 5, 1, tzinfo=UTC)


def read_pairs(file: Path) -> Users:
    found: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        user, permission = line.split()
        found.setdefault(user, set()).add(permission)
    return {user: frozenset(permissions) for user, permissions in found.items()}


def greedy_cover(users: Users) -> list[tuple[frozenset[str], list[str]]]:
    """Return roles: their permissions, and the users that have them."""
    left = {user: set(permissions) for user, permissions in users.items()}
    roles: list[tuple[frozenset[str], list[str]]] = []
    while any(left.values()):
        first = min((user for user in left if left[user]), key=lambda user: (len(left[user]), user))
        members = [user for user, permissions in users.items() if left[first] <= permissions]
        role = frozenset.intersection(*(users[user] for user in members))
        roles.append((role, members))
        for user in members:
            left[user] -= role
    return roles


def principal(user: str) -> Principal:
    return Principal(user.encode().rjust(32, b"-"))


def loaded(users: Users) -> tuple[RoleEngine, int]:
    """Load the roles, appoint the users, and activate all roles."""
    roles = greedy_cover(users)
    lines: list[str] = []
    for number, (permissions, _) in enumerate(roles):
        lines += [f"role r{number};", f"appointment a{number};", f"activate r{number} if appointment a{number} *;"]
        lines += [f"allow r{number} to subscribe self/permission.P{one};" for one in sorted(permissions)]
    engine = RoleEngine(read_policy("\n".join(lines)), PITO.principal)
    engine.advance(START)
    for user in users:
        engine.apply(OpenSession(user, principal(user)))
    for number, (_, members) in enumerate(roles):
        for user in members:
            engine.apply(Appoint(f"a{number}", principal(user), PITO.principal))
            engine.apply(ActivateRole(user, f"r{number}"))
    return engine, len(roles)


@pytest.mark.parametrize(("name", "pairs"), [("domino", 730), ("hc", 1_486), ("apj", 6_841), ("fire1", 31_951)])
def test_the_same_pairs_come_out(suites: Path, name: str, pairs: int) -> None:
    users = read_pairs(suites / "role-mining" / f"{name}.txt")
    assert sum(map(len, users.values())) == pairs
    engine, roles = loaded(users)
    assert roles <= len({*users.values()})
    for user, permissions in users.items():
        held = (one.privilege for one in engine.privileges(principal(user)))
        found = {one.types for one in held if isinstance(one, GroundEventPrivilege) and one.right is Right.SUBSCRIBE}
        assert found == {f"permission.P{one}" for one in permissions}


def test_the_same_pairs_are_decided(suites: Path) -> None:
    users = read_pairs(suites / "role-mining" / "hc.txt")
    engine, _ = loaded(users)
    authority = RoleAuthority(ActiveRoles(engine), frozenset({PITO.principal}))
    definitions = {
        permission: TypeDefinition(
            TypeName(PITO.principal, f"permission.P{permission}"),
            (AttributeDefinition("value", "1", AttributeSpec(Kind.STRING)),),
        )
        for permissions in users.values()
        for permission in permissions
    }
    types = {permission: verify_type(sign_type(one, PITO), NOW) for permission, one in definitions.items()}
    for user, permissions in users.items():
        found = {
            permission
            for permission, verified in types.items()
            if decide(EventRequest(principal(user), Right.SUBSCRIBE, verified, NOW), [authority]).effect
            is Effect.PERMIT
        }
        assert found == permissions


def test_the_greedy_cover_covers() -> None:
    users = {"1": frozenset("ab"), "2": frozenset("abc"), "3": frozenset("c"), "4": frozenset("cd")}
    roles = greedy_cover(users)
    assert roles[0] == (frozenset("c"), ["2", "3", "4"])
    for user, permissions in users.items():
        assert frozenset().union(*(role for role, members in roles if user in members)) == permissions
