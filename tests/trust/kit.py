"""What the tests of trust share: keys from small numbers, statements in one line, and errors by their codes."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from penstock.codec.sexp import parse
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Certificate, Name, NameCertificate, Subject, issue
from penstock.trust.tags import ANY, Tag, parse_tag
from penstock.trust.validity import ALWAYS, Validity

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LATER = NOW + 30 * DAY
#: a month around now; long over; not begun
CURRENT = Validity.between(NOW - 30 * DAY, NOW + 30 * DAY)
PAST = Validity.between(NOW - 30 * DAY, NOW - DAY)
FUTURE = Validity.between(NOW + DAY, NOW + 30 * DAY)


@cache
def key(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32, "big"))


@cache
def who(number: int) -> Principal:
    return key(number).principal


def tag(text: str) -> Tag:
    return parse_tag(parse(text.encode()))


def name(number: int, *names: str) -> Name:
    return Name(who(number), tuple(part.encode() for part in names))


def grant(
    issuer: int, subject: int | Subject, granted: Tag = ANY, *, propagate: bool = False, validity: Validity = ALWAYS
) -> Certificate:
    about = who(subject) if isinstance(subject, int) else subject
    return issue(Authorisation(who(issuer), about, granted, propagate, validity), key(issuer))


def passing(issuer: int, subject: int | Subject, granted: Tag = ANY, validity: Validity = ALWAYS) -> Certificate:
    return grant(issuer, subject, granted, propagate=True, validity=validity)


def naming(issuer: int, local: str, subject: int | Subject, validity: Validity = ALWAYS) -> Certificate:
    about = who(subject) if isinstance(subject, int) else subject
    return issue(NameCertificate(who(issuer), local.encode(), about, validity), key(issuer))


@contextmanager
def refused(*codes: str) -> Iterator[pytest.ExceptionInfo[PenstockError]]:
    """Expect a PenstockError with one of these codes."""
    with pytest.raises(PenstockError) as caught:
        yield caught
    assert caught.value.code in codes, str(caught.value)
