"""The table `policies` of a file: which policies a domain uses, and how they combine with certificates.

[policies]
files = ["plates.policy"]      # each decides; in XML, JSON or as a text
refer = ["shared/*.xml"]       # what they may refer to
apply = "deny-overrides"       # how those that decide are combined, where they are several
rights = "both"                # `both`, `restrict`, `alone` or `either`: see `penstock.guard.policies`
owners = ["pito"]              # whose types they are about; without it, everybody's
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from penstock.errors import MalformedError
from penstock.guard.policies import NO_POLICIES, Policies, PolicyCombining
from penstock.model.principals import Domain
from penstock.policy.combining.registry import POLICY_COMBINING
from penstock.policy.language.policies import Root
from penstock.policy.syntax.forms import read_policies
from penstock.store.files.files import within
from penstock.store.files.named_files import NamedFiles, NamedPrincipals
from penstock.store.files.strict_tables import Strict

TABLE: Final = "policies"
_KEYS: Final = ("files", "refer", "apply", "rights", "owners")
_APPLY: Final = "deny-overrides"


@dataclass(frozen=True, slots=True)
class PoliciesTable:
    """The table as it was read. Paths, and whose types are meant, are as it writes them."""

    files: tuple[str, ...]
    refer: tuple[str, ...] = ()
    apply: str = _APPLY
    rights: PolicyCombining = PolicyCombining.BOTH
    owners: tuple[str, ...] = ()

    def load(self, named: NamedFiles, names: NamedPrincipals, domains: tuple[Domain, ...]) -> Policies:
        """Read the policies. Raises as `NamedFiles`, `NamedPrincipals.find`, `read_policies` and `Policies.of`."""
        decide = tuple(_read(named, self.files))
        others = chain((policies[1:] for policies in decide), _read(named, self.refer))
        return Policies.of(
            *(policies[0] for policies in decide),
            refer=chain.from_iterable(others),
            apply=POLICY_COMBINING.get(self.apply, self.apply),
            combining=self.rights,
            owners=[names.find("policies.owners", word) for word in self.owners],
            domains=domains,
        )


def _read(named: NamedFiles, patterns: Iterable[str]) -> Iterator[list[Root]]:
    """Yield the policies of each file; the first decides, and may refer to those after it."""
    for file, data in named.read(patterns):
        with within(file):
            policies = read_policies(data).policies
            if not policies:
                raise MalformedError("policies.none", "a file of policies has none", hint="write one, or leave it out")
        yield policies


def read_policies_table(strict: Strict, table: dict[str, object]) -> PoliciesTable | None:
    """Read the table of a file, if it has one. Raises `MalformedError` with the codes of the file."""
    if TABLE not in table:
        return None
    found = strict.table(TABLE, table[TABLE])
    strict.known(f"`{TABLE}`", found, _KEYS)
    rights = strict.text(f"{TABLE}.rights", found.get("rights", PolicyCombining.BOTH))
    if rights not in [*PolicyCombining]:
        raise strict.wrong(f"{TABLE}.rights", " or ".join(f"`{one}`" for one in PolicyCombining))
    return PoliciesTable(
        strict.some(f"{TABLE}.files", strict.texts(f"{TABLE}.files", strict.needed(f"`{TABLE}`", found, "files"))),
        strict.texts(f"{TABLE}.refer", found.get("refer", [])),
        strict.text(f"{TABLE}.apply", found.get("apply", _APPLY)),
        PolicyCombining(rights),
        strict.texts(f"{TABLE}.owners", found.get("owners", [])),
    )


def load_policies(
    table: PoliciesTable | None, named: NamedFiles, names: NamedPrincipals, domains: tuple[Domain, ...]
) -> Policies:
    """Return the policies that a file names, if any. Raises as `PoliciesTable.load`."""
    return NO_POLICIES if table is None else table.load(named, names, domains)
