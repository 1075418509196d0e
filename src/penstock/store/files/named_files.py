"""Read files that another file names, relative to its folder: petnames, types, credentials, revocations and policies.

The table `policies` says which policies a domain uses, and how they combine with certificates:

    [policies]
    files = ["plates.policy"]      # each decides; in XML, JSON or text form
    refer = ["shared/*.xml"]       # policies that they may refer to
    apply = "deny-overrides"       # how the policies that decide are combined, if there are several
    rights = "both"                # `both`, `restrict`, `alone` or `either`: see `penstock.guard.policies`
    owners = ["pito"]              # whose types they are about; default: everybody's
"""

import glob
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self, TypeAlias, cast

from penstock.errors import LimitError, MalformedError
from penstock.guard import Agreement, Agreements
from penstock.guard.agreements import agreed_on
from penstock.guard.policies import NO_POLICIES, Policies, PolicyCombining
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import TypeName
from penstock.model.principals import Domain, Petnames, Principal
from penstock.policy.combining import POLICY_COMBINING
from penstock.policy.language.policies import Root
from penstock.store.files.files import read_file, unreadable, within
from penstock.store.files.policy_files import Chain, read_chain
from penstock.store.files.strict_tables import Strict, parse_petnames
from penstock.store.limits import STORE_LIMITS, StoreLimits
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import UnverifiedType, read_type
from penstock.trust.policy_state import Revocations
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, read_statements
from penstock.trust.statement_book import StatementHistory
from penstock.trust.statements import VALIDITY_KINDS, ValidityClaim

# ----------------------------------------------------------------------------------------------------------------------
# Principals that a file names: written out, or by petnames from this file or from a file that it names.


_SCHEMES: Final = ("ed25519:", "threshold:")
#: how many petnames a hint lists
_LISTED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NameErrors:
    """The errors of one kind of file: its name, its error codes, and where to read more."""

    file: str
    no_match: str
    limit: str
    twice: str
    principal: str
    help: str

    @classmethod
    def of(cls, codes: str, file: str, help: str) -> Self:  # noqa: A002  # as the field
        """Return the errors whose codes begin in this way: `plan.` has `plan.no-match`, `plan.limit` and so on."""
        return cls(
            file=file,
            no_match=f"{codes}no-match",
            limit=f"{codes}limit",
            twice=f"{codes}twice",
            principal=f"{codes}principal",
            help=help,
        )

    def too_many(self, bound: str) -> LimitError:
        """Return the error for exceeding a bound."""
        return LimitError(self.limit, f"a {self.file} has more than {bound}")

    def given_twice(self, what: str) -> MalformedError:
        """Return the error for a thing that is defined twice."""
        return MalformedError(self.twice, f"{what} is given twice", hint="only one can hold")


@dataclass(frozen=True, slots=True)
class NamedPrincipals:
    """The petnames that a file uses. The reader's own petnames are not used, so that the file means the same to all."""

    names: Mapping[str, Principal]
    naming: NameErrors

    @property
    def petnames(self) -> Petnames:
        """Return the petname to show for each principal: the first one."""
        return Petnames({principal: name for name, principal in reversed(list(self.names.items()))})

    def find(self, where: str, text: str) -> Principal:
        """Return the principal that a word names.

        Raises `MalformedError`: with the file's code for unknown principals, or `principal.malformed`.
        """
        if text.startswith(_SCHEMES):
            return Principal.parse(text)
        if text in self.names:
            return self.names[text]
        known = ", ".join(sorted(self.names)[:_LISTED]) or "there are none"
        raise MalformedError(
            self.naming.principal,
            f"{where}: `{text[:80]}` is neither a principal nor one of the names of the {self.naming.file}",
            hint=f"write `ed25519:…`, or one of the names: {known}",
        )

    def domains(self, homes: Mapping[str, str]) -> tuple[Domain, ...]:
        """Return the domains of principals; the first principal of a domain represents it.

        Raises as `find`, and `MalformedError` with the code for duplicates if a principal has two domains.
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


# ----------------------------------------------------------------------------------------------------------------------
# Files that another file names, relative to its folder: petnames, types, credentials and revocations.


TypeFiles: TypeAlias = Mapping[TypeName, tuple[str, UnverifiedType]]
"""Types that were read, and the files that they were read from."""

_NONE: Final[TypeFiles] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Read files by name, by pattern, or all files of a folder.

    A pattern or a folder without files raises `MalformedError` with the code for no match: a policy with half of its
    credentials would silently refuse too much. Too many files raise `LimitError`, and files that cannot be read raise
    `FailedError` (`file.*`).
    """

    folder: Path
    naming: NameErrors
    limits: StoreLimits = STORE_LIMITS

    def path(self, name: str) -> str:
        """Return where a file is."""
        return str(self.folder / name)

    def principals(self, names: Mapping[str, Principal] | str) -> NamedPrincipals:
        """Return petnames from a table or from a file. Raises `MalformedError` (`petname.malformed`)."""
        if not isinstance(names, str):
            return NamedPrincipals(names, self.naming)
        file = self.path(names)
        data = read_file(file)
        with within(file):
            return NamedPrincipals(parse_petnames(data), self.naming)

    def types(self, patterns: Iterable[str], *, beside: TypeFiles = _NONE) -> TypeFiles:
        """Read signed types, and return them together with those in `beside`. None of them is verified yet.

        Raises `MalformedError` with the code for duplicates if two files define one version differently; and as
        `read_type`.
        """
        found = dict(beside)
        for file, data in self.read(patterns):
            with within(file):
                read = read_type(data, limits=self.limits)
                name = read.definition.name
                if found.setdefault(name, (file, read))[1].fingerprint != read.fingerprint:
                    raise self.naming.given_twice(f"version {name.version} of `{name.name}`")
        return found

    def credentials(self, patterns: Iterable[str]) -> Credentials:
        """Read credentials and verify all of them. Raises as `read_credentials` and `UnverifiedCredentials.verify`."""
        found: list[Credentials] = []
        for file, data in self.read(patterns):
            with within(file):
                found.append(read_credentials(data, limits=self.limits).verify())
        certificates = {certificate.id: certificate for bag in found for certificate in bag}
        if len(certificates) > self.limits.certificates:
            raise self.naming.too_many(f"{self.limits.certificates} certificates")
        return Credentials(tuple(certificates.values()), tuple(dict.fromkeys(q for bag in found for q in bag.quorums)))

    def revocations(self, patterns: Iterable[str]) -> Revocations:
        """Read and verify chains of policy events, and return their revocations.

        Raises `RefusedError` (`evolution.broken`, `evolution.torn`): an invalid event could be the one that revokes.
        Raises `MalformedError` with the code for duplicates if there are two chains of one owner.
        """
        chains: dict[Principal, Chain] = {}
        for file, data in self.read(patterns):
            with within(file):
                found = read_chain(data)
                found.verify()
                if found.owner is not None and chains.setdefault(found.owner, found) is not found:
                    raise self.naming.given_twice(f"the policy of {found.owner.short}")
        return Revocations.of_chains(chain.events for chain in chains.values())

    def statements(self, patterns: Iterable[str]) -> StatementHistory:
        """Read and verify validity statements. Raises as `read_statements` and `UnverifiedValue.verify`."""
        found: dict[bytes, SignedValue[ValidityClaim]] = {}
        for file, data in self.read(patterns):
            with within(file):
                for statement in read_statements(data, *VALIDITY_KINDS, limits=self.limits):
                    found[statement.digest] = statement.verify()
        return StatementHistory(tuple(found.values()))

    def agreements(self, patterns: Iterable[str], entries: int = CACHE_ENTRIES) -> Agreements:
        """Read agreements and profiles, and verify all of them. Each agreement remembers `entries` decisions.

        Raises as `read_statements` and `UnverifiedValue.verify`, and `MalformedError` with the code for duplicates if
        an owner has two agreements of one name.
        """
        agreements: dict[tuple[Principal, str], Agreement] = {}
        profiles: dict[Principal, list[SignedValue[ProfileClaim]]] = {}
        for file, data in self.read(patterns):
            with within(file):
                for statement in read_statements(data, Agreement, ProfileClaim, limits=self.limits):
                    match statement.verify():
                        case SignedValue(Agreement() as found):
                            if agreements.setdefault((found.owner, found.name), found) != found:
                                raise self.naming.given_twice(f"the agreement `{found.name}`")
                        case SignedValue(ProfileClaim() as claim) as signed:
                            profiles.setdefault(claim.of, []).append(cast("SignedValue[ProfileClaim]", signed))
        claims = [claim for about in profiles.values() for claim in about]
        return agreed_on(agreements.values(), claims, entries)

    def read(self, patterns: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Return the named files, each once, with their contents."""
        files = list(dict.fromkeys(file for pattern in patterns for file in self._matching(pattern)))
        if len(files) > self.limits.policy_files:
            raise self.naming.too_many(f"{self.limits.policy_files} files")
        return ((file, read_file(file)) for file in files)

    def _matching(self, pattern: str) -> list[str]:
        path = self.folder / pattern
        try:
            if path.is_dir():
                found = [str(one) for one in path.iterdir() if one.is_file() and not one.name.startswith(".")]
            elif glob.has_magic(pattern):
                matches = glob.glob(pattern, root_dir=self.folder, recursive=True)  # noqa: PTH207  # may be absolute
                found = [self.path(one) for one in matches]
            else:
                found = [str(path)]
        except (OSError, ValueError) as error:
            raise unreadable(str(path), error) from None
        if not found:
            raise MalformedError(
                self.naming.no_match,
                f"`{pattern[:80]}` names no file",
                hint=f"paths are relative to the folder of the {self.naming.file}; {self.naming.help}",
            )
        return sorted(found)


TABLE: Final = "policies"
_KEYS: Final = ("files", "refer", "apply", "rights", "owners")
_APPLY: Final = "deny-overrides"


@dataclass(frozen=True, slots=True)
class PoliciesTable:
    """The table as written: paths and owners are not resolved yet."""

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
    # XML takes a while to import, and most policy files name no policies of this kind.
    from penstock.policy.syntax.forms import read_policies  # noqa: PLC0415

    for file, data in named.read(patterns):
        with within(file):
            policies = read_policies(data).policies
            if not policies:
                raise MalformedError(
                    "policies.none", "the file contains no policies", hint="write one, or leave it out"
                )
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
