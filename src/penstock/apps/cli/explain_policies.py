"""Read the policies and agreed rules that `penstock explain` uses besides certificates, as a broker does."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.names import NameBook
from penstock.errors import MalformedError
from penstock.guard import Agreements
from penstock.guard.policies import Policies, PolicyCombining
from penstock.model.principals import Domain, Principal
from penstock.policy.language.policies import Root
from penstock.policy.syntax.forms import read_policies
from penstock.store.files.named_files import NamedFiles, NameErrors

_USAGE: Final = "cli.usage"
_NAMING: Final = NameErrors(
    file="command", no_match=_USAGE, limit=_USAGE, twice=_USAGE, principal=_USAGE, help="penstock explain --help"
)


def load_agreements(files: Iterable[str]) -> Agreements:
    """Read agreements and profiles, and verify all of them. Raises as `NamedFiles.agreements`."""
    return NamedFiles(Path(), _NAMING).agreements(files)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options about policies."""

    files: tuple[str, ...]
    refer: tuple[str, ...]
    rights: str
    homes: tuple[str, ...]

    def load(self, names: NameBook, owner: Principal) -> Policies:
        """Read policies that count for the types of an owner. Raises as `read_policies` and `Policies.of`."""
        decide = [_read(file) for file in self.files]
        others = (*(policies[1:] for policies in decide), *map(_read, self.refer))
        return Policies.of(
            *(policies[0] for policies in decide),
            refer=[one for policies in others for one in policies],
            combining=PolicyCombining(self.rights),
            owners=[owner],
            domains=_domains(self.homes, names),
        )


def _read(file: str) -> list[Root]:
    data = read_bytes(file)
    with within(file):
        found = read_policies(data).policies
        if not found:
            raise MalformedError("policies.none", "the file contains no policy", hint="add one, or leave the file out")
    return found


def _domains(homes: Iterable[str], names: NameBook) -> tuple[Domain, ...]:
    members: dict[str, dict[Principal, None]] = {}
    for home in homes:
        who, sign, domain = home.partition("=")
        if not sign or not domain:
            raise MalformedError(
                "cli.home", f"`{home[:80]}` does not name a principal and its domain", hint="write WHO=DOMAIN"
            )
        members.setdefault(domain, {})[names.principal(who)] = None
    return tuple(Domain(name, first, clients=tuple(others)) for name, (first, *others) in members.items())
