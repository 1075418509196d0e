"""Usual requests and answers as bytes, written and read in one step.

A question over a fabric costs two signatures and two verifications; reading and writing its records in the general way
(`penstock.trust.signed`) would take as long again. Here usual messages are written by formatting, and read by their
fixed parts. Anything else takes the general way, and so does every message that is not exactly as it would be written:
property tests compare both.
"""

import re
from datetime import datetime
from hashlib import sha256
from typing import Final

from penstock.authority.decisions.messages import (
    AccessAnswer,
    AccessRequest,
    AnswerEffect,
    PolicyRevision,
    read_answer,
    read_request,
)
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.limits import ANSWER_TEXT, REQUEST_LIFESPAN
from penstock.crypto import PublicKey, Signer
from penstock.errors import PenstockError
from penstock.model.instants import format_date
from penstock.model.principals import Principal
from penstock.trust.limits import POLICY_NUMBER
from penstock.trust.signed import UnverifiedValue, sign_value

# A signed statement is `(8:sequence`, the body, and a signature of a fixed length.
_HEAD: Final = b"(8:sequence"
_HASH: Final = b"(9:signature(4:hash6:sha25632:"
_KEY: Final = b")(10:public-key(7:ed25519(1:q32:"
_SIGNATURE: Final = b")))64:"
_END: Final = b"))"
_KEY_AT: Final = len(_HASH) + 32
_SIGNATURE_AT: Final = _KEY_AT + len(_KEY) + 32
_TAIL: Final = _SIGNATURE_AT + len(_SIGNATURE) + 64 + len(_END)
_LEAST: Final = len(_HEAD) + _TAIL

_PRINCIPAL: Final = rb"60:(ed25519:[a-z2-7]{52})"
#: other hours, which some versions of Python accept, take the general way
_DAY: Final = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}_(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}"
_DATE: Final = rb"(19:%b|26:%b\.[0-9]{6})" % (_DAY, _DAY)
_QUESTION: Final = re.compile(rb"\(14:access-request\(8:question([1-9][0-9]{0,6}):")
_REQUEST: Final = re.compile(
    rb"\)\(6:sender%b\)\(6:number([1-9][0-9]?):([0-9]+)\)\(4:time%b\)\(8:lifespan([1-9]):([0-9]+)\)"
    rb"(?:\(8:reply-to([1-9][0-9]{0,2}):([!-'*-~]+)\))?\)" % (_PRINCIPAL, _DATE)
)
_ANSWER: Final = re.compile(
    rb"\(13:access-answer\(8:question32:(.{32})\)\(6:effect(6:Permit|4:Deny|13:NotApplicable)\)"
    rb"\(8:rests-on\(6:policy\(2:id([1-9][0-9]{0,3}):",
    re.DOTALL,
)
_REVISION: Final = re.compile(rb"\)\(8:revision([1-9][0-9]{0,3}):")
_REST: Final = re.compile(
    rb"\)\(7:changed%b\)\)\)\(5:point%b\)\(6:issued%b\)\(5:until%b\)(?:\(9:holds-for([1-9][0-9]{0,5}):)?"
    % (_DATE, _PRINCIPAL, _DATE, _DATE)
)
_EFFECTS: Final = {
    b"%d:%b" % (len(text), text): (effect, text) for effect in AnswerEffect for text in (effect.encode(),)
}


class _UnusualError(Exception):
    """The general way is to be taken."""


# ----------------------------------------------------------------------------------------------------------------------
# Writing.


def request_bytes(request: AccessRequest, key: Signer) -> bytes:
    """Sign a request, and return its bytes. Raises as `sign_value`."""
    reply_to = request.reply_to
    usual = (
        0 <= request.number <= POLICY_NUMBER
        and 0 < request.lifespan <= REQUEST_LIFESPAN
        and (reply_to is None or (0 < len(reply_to) <= ANSWER_TEXT and reply_to.isascii()))
        and key.principal == request.sender
    )
    if not usual:
        return sign_value(request, key).to_bytes()
    question = request.question.written
    if not request.question.is_plain:
        AccessQuestion.from_bytes(question)  # raises for what is not a question
    body = b"(14:access-request(8:question%d:%b)(6:sender%b)(6:number%b)(4:time%b)(8:lifespan%b)%b)" % (
        len(question),
        question,
        _atom(str(request.sender).encode()),
        _atom(b"%d" % request.number),
        _atom(format_date(request.time)),
        _atom(b"%d" % request.lifespan),
        b"" if reply_to is None else b"(8:reply-to%b)" % _atom(reply_to.encode()),
    )
    return _signed(body, key)


def answer_bytes(answer: AccessAnswer, key: Signer) -> bytes:
    """Sign an answer, and return its bytes. Raises as `sign_value`."""
    usual = (
        len(answer.rests_on) == 1
        and answer.effect is not AnswerEffect.INDETERMINATE
        and not (answer.status or answer.obligations or answer.advice or answer.recycling)
        and 0 < len(answer.rests_on[0].id) <= ANSWER_TEXT
        and 0 < len(answer.rests_on[0].revision) <= ANSWER_TEXT
        and len(answer.question) == 32
        and key.principal == answer.point
    )
    if not usual:
        return sign_value(answer, key).to_bytes()
    answer.verify_fields()
    policy = answer.rests_on[0]
    body = (
        b"(13:access-answer(8:question32:%b)(6:effect%b)(8:rests-on(6:policy(2:id%b)(8:revision%b)(7:changed%b)))"
        b"(5:point%b)(6:issued%b)(5:until%b)%b)"
        % (
            answer.question,
            _atom(answer.effect.encode()),
            _atom(policy.id.encode()),
            _atom(policy.revision.encode()),
            _atom(format_date(policy.changed)),
            _atom(str(answer.point).encode()),
            _atom(format_date(answer.issued)),
            _atom(format_date(answer.until)),
            b"" if answer.holds_for is None else b"(9:holds-for%b)" % _atom(answer.holds_for.encode()),
        )
    )
    return _signed(body, key)


def _atom(value: bytes) -> bytes:
    return b"%d:%b" % (len(value), value)


def _signed(body: bytes, key: Signer) -> bytes:
    return b"".join((_HEAD, body, _HASH, sha256(body).digest(), _KEY, key.public.raw, _SIGNATURE, key.sign(body), _END))


# ----------------------------------------------------------------------------------------------------------------------
# Reading.


def request_from_bytes(data: bytes) -> UnverifiedValue[AccessRequest]:
    """Read a signed request. Raises as `read_request`."""
    try:
        return _read_request(data)
    except (_UnusualError, PenstockError, ValueError):
        return read_request(data)


def answer_from_bytes(data: bytes) -> UnverifiedValue[AccessAnswer]:
    """Read a signed answer. Raises as `read_answer`."""
    try:
        return _read_answer(data)
    except (_UnusualError, PenstockError, ValueError):
        return read_answer(data)


def _read_request(data: bytes) -> UnverifiedValue[AccessRequest]:
    body, hashed, key, signature = _parts(data)
    head = _QUESTION.match(body)
    if head is None:
        raise _UnusualError
    written, at = _slice(body, head.end(), head[1])
    found = _REQUEST.fullmatch(body, at)
    if found is None:
        raise _UnusualError
    sender, number_size, number, time, lifespan_size, lifespan, reply_size, reply_to = found.groups()
    _check(number_size, number)
    _check(lifespan_size, lifespan)
    if reply_to is not None:
        _check(reply_size, reply_to)
    request = AccessRequest(
        AccessQuestion.from_bytes(written),
        _principal(sender),
        _number(number, POLICY_NUMBER),
        _instant(time),
        _number(lifespan, REQUEST_LIFESPAN),
        None if reply_to is None else reply_to.decode(),
    )
    if not request.lifespan:
        raise _UnusualError
    fields = (
        b"access-request",
        (b"question", written),
        (b"sender", sender),
        (b"number", number),
        (b"time", time[3:]),
        (b"lifespan", lifespan),
    )
    return UnverifiedValue(
        request, hashed, fields if reply_to is None else (*fields, (b"reply-to", reply_to)), key, signature, body
    )


def _read_answer(data: bytes) -> UnverifiedValue[AccessAnswer]:
    body, hashed, key, signature = _parts(data)
    head = _ANSWER.match(body)
    if head is None:
        raise _UnusualError
    name, at = _slice(body, head.end(), head[3])
    next_ = _REVISION.match(body, at)
    if next_ is None:
        raise _UnusualError
    revision, at = _slice(body, next_.end(), next_[1])
    rest = _REST.match(body, at)
    if rest is None:
        raise _UnusualError
    changed, point, issued, until, size = rest.groups()
    at, holds_for = rest.end(), None
    if size is not None:
        holds_for, at = _slice(body, at, size)
        if body[at : at + 1] != b")":
            raise _UnusualError
        at += 1
    if body[at:] != b")":
        raise _UnusualError
    digest, (effect, effect_text) = head[1], _EFFECTS[head[2]]
    policy = PolicyRevision(_text(name), _text(revision), _instant(changed))
    answer = AccessAnswer(
        digest,
        effect,
        (policy,),
        _principal(point),
        _instant(issued),
        _instant(until),
        holds_for=None if holds_for is None else holds_for.decode(),
    )
    answer.verify_fields()
    fields = (
        b"access-answer",
        (b"question", digest),
        (b"effect", effect_text),
        (b"rests-on", (b"policy", (b"id", name), (b"revision", revision), (b"changed", changed[3:]))),
        (b"point", point),
        (b"issued", issued[3:]),
        (b"until", until[3:]),
    )
    return UnverifiedValue(
        answer, hashed, fields if holds_for is None else (*fields, (b"holds-for", holds_for)), key, signature, body
    )


def _parts(data: bytes) -> tuple[bytes, bytes, PublicKey, bytes]:
    """Return the body, its hash, the key and the signature."""
    if len(data) < _LEAST or not data.startswith(_HEAD):
        raise _UnusualError
    body, tail = data[len(_HEAD) : -_TAIL], data[-_TAIL:]
    if (
        not tail.startswith(_HASH)
        or not tail.startswith(_KEY, _KEY_AT)
        or not tail.startswith(_SIGNATURE, _SIGNATURE_AT)
        or not tail.endswith(_END)
    ):
        raise _UnusualError
    hashed = tail[len(_HASH) : _KEY_AT]
    if sha256(body).digest() != hashed:
        raise _UnusualError
    key = PublicKey(tail[_SIGNATURE_AT - 32 : _SIGNATURE_AT])
    return body, hashed, key, tail[-64 - len(_END) : -len(_END)]


def _slice(body: bytes, at: int, size: bytes) -> tuple[bytes, int]:
    end = at + int(size)
    if end > len(body):
        raise _UnusualError
    return body[at:end], end


def _check(size: bytes, value: bytes) -> None:
    if size != b"%d" % len(value):
        raise _UnusualError


def _number(value: bytes, most: int) -> int:
    found = int(value)
    if found > most or value != b"%d" % found:
        raise _UnusualError
    return found


def _instant(value: bytes) -> datetime:
    """Read a date with its length before it, if there is only one way to write it. Raises `ValueError` too."""
    if value.endswith(b".000000"):
        raise _UnusualError
    return datetime.fromisoformat(f"{value[3:].decode()}+00:00")


def _principal(value: bytes) -> Principal:
    return Principal.parse(value.decode())  # it reads one written form only


def _text(value: bytes) -> str:
    found = value.decode()
    if not 0 < len(found) <= ANSWER_TEXT:
        raise _UnusualError
    return found
