"""`penstock moderator compile` and `certify`: turn rules in force into agreements and certificates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import click

from penstock.apps.cli.moderator.sources import LEDGER, RuleSource, RuleSourceOptions
from penstock.apps.cli.shared.commands import CommandAnswer, command, option, option_class, output_option
from penstock.apps.cli.shared.credentials import Shelf, load_credentials
from penstock.apps.cli.shared.describe import Wording, counted
from penstock.apps.cli.shared.options import WHO, AtOption, KeyOptions, OutputFile
from penstock.apps.cli.shared.session import CommandSession
from penstock.codec.sexp import SExp, transport
from penstock.crypto import SigningKey
from penstock.guard import Agreement, AgreementMode
from penstock.guard.agreed_capabilities import Renewal, Short, capabilities, renewal
from penstock.guard.agreements import PUBLISHER, AgreedRules, described
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.types import EventType
from penstock.model.values import Value
from penstock.moderator.rules.steps import RuleStatus
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, sign_value, statements_to_sexp


@dataclass(frozen=True, slots=True)
class Compiled:
    """The rules in force, signed by the owner of the types, with everybody's profile."""

    agreement: SignedValue[Agreement]
    profiles: tuple[SignedValue[ProfileClaim], ...]
    #: rules that were stated and are not in force
    left_out: tuple[str, ...]

    def to_sexp(self) -> SExp:
        """Return all statements as one."""
        return statements_to_sexp([self.agreement, *self.profiles])

    def rules(self) -> AgreedRules:
        """Return the rules in force."""
        return AgreedRules(self.agreement.value, described(self.agreement.value, self.profiles))


@option_class
class CompileOptions:
    """The options of the commands that sign what was agreed on."""

    name: str = option("--name", metavar="NAME", default=LEDGER, show_default=True, help="Name the agreement.")
    publisher_attribute: str = option(
        "--publisher-attribute",
        metavar="NAME",
        default=PUBLISHER,
        show_default=True,
        help="Use this attribute for the publisher of an event; brokers set it.",
    )
    at: AtOption
    source: RuleSourceOptions
    key: KeyOptions

    def compile(
        self, session: CommandSession, rights: AgreementMode, described_by: tuple[str, ...] = ()
    ) -> tuple[RuleSource, SigningKey, Compiled]:
        """Return the rules in force as the owner signs them. Raises what reading and signing raise."""
        with self.source.opened(self.at.moment(session)) as source:
            key = self.key.open()
            base = source.base
            agreement = Agreement(
                key.principal,
                self.name,
                base.detector.vocabulary,
                tuple(base.rules),
                base.mode,
                rights,
                self.publisher_attribute,
                tuple(source.cast.principal(word) for word in described_by),
            )
            everybody = sorted(source.publishers.keys() | source.subscribers.keys())
            claims = tuple(sign_value(_claim(who, key.principal, source), key) for who in everybody)
            left_out = tuple(
                i
                for i, one in sorted(base.standings.items())
                if one.status in {RuleStatus.REJECTED, RuleStatus.WAITING}
            )
            return source, key, Compiled(sign_value(agreement, key), claims, left_out)


@option_class
class _Compile:
    compiled: CompileOptions
    rights: str = option(
        "--rights",
        type=click.Choice([one.value for one in AgreementMode]),
        default=AgreementMode.BOTH.value,
        show_default=True,
        help="Require both certificates and rules, or let the rules alone decide.",
    )
    described_by: tuple[str, ...] = option(
        "--described-by",
        multiple=True,
        **WHO,
        help="Accept profiles signed by this principal besides yours. Can be repeated.",
    )
    destination: OutputFile
    output: str = output_option()


@command(
    name="compile",
    example="""
penstock moderator compile --file rules.yaml --name plant --key plant.key --out plant.agreement
penstock moderator compile --store sqlite:rules.db --rights alone --key plant.key --out plant.agreement
""",
)
def compile_(session: CommandSession, options: _Compile) -> CommandAnswer:
    """Sign the rules in force, and the known profiles, as an agreement about your types.

    Brokers enforce it when it is announced with `penstock net agree`, and jobs of the pipeline when a policy file names
    it. Principals without a profile may then neither publish nor subscribe.
    """
    options.destination.check()
    rights = AgreementMode(options.rights)
    _, key, compiled = options.compiled.compile(session, rights, options.described_by)
    value = compiled.to_sexp()
    agreement = compiled.agreement.value
    data = {
        "agreement": agreement.name,
        "owner": str(key.principal),
        "rights": str(agreement.combining),
        "rules": [rule.id for rule in agreement.rules],
        "left_out": list(compiled.left_out),
        "profiles": [str(claim.value.of) for claim in compiled.profiles],
        "statements": transport(value).decode(),
    }
    types, people = len(agreement.vocabulary.tree.parents), len(compiled.profiles)
    sizes = f"{counted(len(agreement.rules), 'rule')} on {counted(types, 'event type')}, {counted(people, 'profile')}"
    lines = [f"agreement {agreement.name}: {sizes}"]
    if compiled.left_out:
        lines.append(f"not in force, and left out: {', '.join(compiled.left_out)}")
        lines.append("`penstock moderator check` says why")
    return options.destination.answer(value, data, lines)


@option_class
class _Certify:
    compiled: CompileOptions
    types: tuple[str, ...] = option(
        "--type-file",
        multiple=True,
        required=True,
        metavar="FILE",
        help="Read a signed type of the tree. Can be repeated.",
    )
    issued: tuple[str, ...] = option(
        "--issued", multiple=True, metavar="FILE", help="Read what this command wrote the last time. Can be repeated."
    )
    destination: OutputFile
    output: str = output_option()


@command(
    example="penstock moderator certify --file rules.yaml --type-file news.type --key plant.key --out agreed.certs"
)
def certify(session: CommandSession, options: _Certify) -> CommandAnswer:
    """Issue certificates that express the rules in force, for everybody who is known.

    This is for domains that enforce certificates only. When rules or profiles have changed, pass the previous output
    with --issued: valid certificates are kept, and those to revoke are listed. Certificates never allow more than the
    rules. If they cannot express a rule completely, the output says so.
    """
    options.destination.check()
    source, key, compiled = options.compiled.compile(session, AgreementMode.ALONE)
    shelf = Shelf.of(*options.types)
    known = [shelf.verify(one, session.now).event_type for one in shelf.types.values()]
    wanted = capabilities(compiled.rules(), known)
    name = compiled.agreement.value.name
    before = [one for one in load_credentials(options.issued) if _is_ours(one, key.principal, name)]
    planned = renewal(wanted.statements, before)
    made = [issue(statement, key) for statement in planned.issue]
    value = Credentials.of(*planned.keep, *made).to_sexp()
    data = {
        "issued": [one.id for one in made],
        "kept": [one.id for one in planned.keep],
        "revoke": [one.id for one in planned.revoke],
        "short": [_short_data(one) for one in wanted.short],
        "certificates": transport(value).decode(),
    }
    return options.destination.answer(value, data, _tell_renewal(planned, made, wanted.short, source, known))


def _claim(who: Principal, said_by: Principal, source: RuleSource) -> ProfileClaim:
    publisher, subscriber = (_values(known.get(who)) for known in (source.publishers, source.subscribers))
    return ProfileClaim(who, said_by, publisher, subscriber)


def _values(profile: Profile | None) -> dict[str, Value] | None:
    if profile is None:
        return None
    return {name: value for name, value in profile.values.items() if value is not None}


def _is_ours(certificate: Certificate, owner: Principal, name: str) -> bool:
    """Return whether a certificate was issued for an agreement: no other may be revoked for it."""
    statement = certificate.statement
    return statement.issuer == owner and statement.comment == f"agreement {name}"


def _tell_renewal(
    planned: Renewal, made: list[Certificate], short: Iterable[Short], source: RuleSource, types: list[EventType]
) -> Iterator[str]:
    wording = Wording(source.cast.names, types[0])
    yield f"{counted(len(made), 'certificate')} issued, {len(planned.keep):,} kept"
    for certificate in made:
        if isinstance(certificate.statement, Authorisation):
            yield f"  {wording.line(certificate.statement)}"
    if planned.revoke:
        yield f"{counted(len(planned.revoke), 'certificate')} to be revoked: give these to `penstock net revoke`"
        for certificate in planned.revoke:
            yield f"  {certificate.id}"
    for one in short:
        subscriber, publisher = source.cast.show(one.subscriber), source.cast.show(one.publisher)
        yield f"✗ not said: {subscriber} may have {one.event.name} from {publisher}, but not all that is below it"


def _short_data(one: Short) -> dict[str, str]:
    return {"event": one.event.name, "publisher": str(one.publisher), "subscriber": str(one.subscriber)}
