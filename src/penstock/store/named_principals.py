"""Principals that a file names: as they are written, or by the petnames that it has or names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.domains import Domain
from penstock.model.principals import Petnames, Principal

_SCHEMES: Final = ("ed25519:", "threshold:")
#: how many petnames a hint lists
_LISTED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How errors speak of what one kind of file names: what it is called, their codes, and where to read on."""

    file: str
    no_match: str
    limit: str
    twice: str
    principal: str
    help: str

    def too_many(self, bound: str) -> LimitError:
        """Return the error for more than there may be."""
        return LimitError(self.limit, f"a {self.file} has more than {bound}")

    def given_twice(self, what: str) -> MalformedError:
        """Return the error for what two places say differently."""
        return MalformedError(self.twice, f"{what} is given twice", hint="only one can hold")


@dataclass(frozen=True, slots=True)
class NamedPrincipals:
    """The petnames that a file goes by. Those of whoever reads it do not count, so that it means the same to all."""

    names: Mapping[str, Principal]
    naming: Naming

    @property
    def petnames(self) -> Petnames:
        """What to show principals as: the first of their names."""
        return Petnames({principal: name for name, principal in reversed(list(self.names.items()))})

    def find(self, where: str, text: str) -> Principal:
        """Return the principal that a word stands for.

        Raises `MalformedError`: with the code for principals when it stands for none, `principal.malformed`.
        """
        if text.startswith(_SCHEMES):
            return Principal.parse(text)
        if text in self.names:
            return self.names[text]
        known = ", ".join(sorted(self.names)[:_LISTED]) or "there are none"
        raise MalformedError(
            self.naming.principal,
            f"{where}: `{text[:80]}` is no principal, and none of the names of the {self.naming.file}",
            hint=f"write `ed25519:…`, or one of the names: {known}",
        )

    def domains(self, homes: Mapping[str, str]) -> tuple[Domain, ...]:
        """Return the domains that principals are said to be at home in; the first to be named stands for its domain.

        Raises as `find`, and `MalformedError` with the code for what is given twice, when somebody has two homes.
        """
        found: dict[Principal, str] = {}
        for member, domain in homes.items():
            principal = self.find("domains", member)
            if found.setdefault(principal, domain) != domain:
                raise self.naming.given_twice(f"domains: the domain of `{member[:80]}`")
        members: dict[str, list[Principal]] = {}
        for principal, domain in found.items():
            members.setdefault(domain, []).append(principal)
        return tuple(Domain(name, first, clients=tuple(others)) for name, (first, *others) in members.items())
