"""What the commands share that sign a certificate: the key, whom it is for, while it is valid, and where it goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import click

from penstock.apps.cli import options
from penstock.apps.cli.describe import Wording, statement_data
from penstock.apps.cli.files import Destination
from penstock.apps.cli.granting import LAST_SECOND, MIDNIGHT, check_comment, doubts, subject_of, validity_of
from penstock.apps.cli.names import Names, load_names
from penstock.apps.cli.options import JSON, open_key
from penstock.apps.cli.session import Session, Warned, say, say_block, say_json, warn
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.trust.capabilities import flags
from penstock.trust.certificates import Certificate, Statement, issue
from penstock.trust.credentials import Credentials
from penstock.trust.subjects import Subject
from penstock.trust.validity import Validity

State: TypeAlias = Callable[[Principal, Subject], Statement]
"""What a certificate is to say, once it is known who signs it and whom it is for."""


def subject_options(function: options.F) -> options.F:
    """Add the options that say whom a certificate is for, and while it is valid."""
    for option in (
        click.option("--comment", default="", metavar="TEXT", help="A remark for readers; it is signed too."),
        click.option("--days", type=click.IntRange(min=1), metavar="N", help="How many days it is valid."),
        click.option("--not-after", metavar="TIME", help=f"The last moment at which it is valid; {LAST_SECOND}."),
        click.option("--not-before", metavar="TIME", help=f"The first moment at which it is valid; {MIDNIGHT}."),
        click.option("--member", "members", multiple=True, help="A member of the quorum; repeat it.", **options.WHO),
        click.option("--threshold", type=int, metavar="K", help="For any K of the members together."),
        click.option("--to-name", "to_names", multiple=True, metavar="NAME", help="For a name of yours, or of --to's."),
        click.option("--to", **options.WHO, help="For a principal, one of your names, or a key or quorum file."),
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuing:
    """A certificate that is asked for, but for what it says."""

    session: Session
    names: Names
    validity: Validity
    comment: str
    destination: Destination
    output: str
    _open: Callable[[], SigningKey]
    _subject: Callable[[Principal], Subject]

    @classmethod
    def of(  # noqa: PLR0913  # one argument an option
        cls,
        session: Session,
        *,
        key_file: str,
        passphrase_file: str | None,
        not_before: str | None,
        not_after: str | None,
        days: int | None,
        comment: str,
        out: str | None,
        overwrite: bool,
        dry_run: bool,
        output: str,
        names_file: str | None,
        **subject: Any,
    ) -> "Issuing":
        """Take in the options of `key_options`, `subject_options` and `write_options`. Raises what reading raises."""
        names = load_names(names_file)
        return cls(
            session=session,
            names=names,
            validity=validity_of(session.now, not_before, not_after, days),
            comment=check_comment(comment),
            destination=Destination.free(out, overwrite=overwrite, dry_run=dry_run),
            output=output,
            _open=lambda: open_key(key_file, passphrase_file),
            _subject=lambda issuer: subject_of(names, issuer, **subject),
        )

    def issue(self, state: State, event_type: EventType | None = None, more: tuple[Warned, ...] = ()) -> None:
        """Sign what `state` says, warn about what should be known of it, write it, and answer."""
        key = self._open()
        statement = state(key.principal, self._subject(key.principal))
        certificate = issue(statement, key)
        told = (Warned(flag.code, flag.message) for flag in flags(statement))
        warnings = (*told, *doubts(statement, self.session.now), *more)
        warn(*warnings)
        self._finish(certificate, warnings, Wording(self.names, event_type))

    def _finish(self, certificate: Certificate, warnings: tuple[Warned, ...], wording: Wording) -> None:
        value = Credentials.of(certificate).to_sexp()
        self.destination.put(value)
        if self.output == JSON:
            say_json(
                {
                    "id": certificate.id,
                    **statement_data(certificate.statement),
                    "warnings": [warning.as_dict() for warning in warnings],
                    "certificate": transport(value).decode(),
                    **self.destination.as_dict(),
                }
            )
        elif self.destination.file is None:
            say_block(advanced(value))
        else:
            say(self.destination.line())
            say(wording.line(certificate.statement))
