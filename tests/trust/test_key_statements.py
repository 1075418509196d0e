"""What is said about key groups: one written form each, and nothing else is read."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest
from tests.crypto.key_kit import Listening
from tests.trust.kit import NOW, key, refused, who
from tests.trust.types_kit import PLATE

from penstock.codec.sexp import SExp, canonical
from penstock.crypto.key_tree import Rekey, Renewed
from penstock.model.names import AttributeId, TypeKey
from penstock.trust.key_statements import (
    NO_HISTORY,
    EpochStatement,
    KeyCheckpoint,
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRecord,
    KeyRefusal,
    KeyRequest,
    KeyWelcome,
    KeyWish,
    join_parts,
    split,
)
from penstock.trust.signed import parse_signed, sign_value

TYPE = PLATE.name.key
PLATES = KeyGroup(TYPE, AttributeId(TYPE.owner, TYPE.name, "0"))
WORD = EpochStatement(who(50), PLATES, 3, NOW, 60_000)
REKEY = Rekey(
    PLATES.id, 3, b"s" * 16, b"c" * 16, ((b"h" * 16, 5),), ((4, 8),), (Renewed(2, 0, ((4, b"x"), (5, b"y"))),)
)
Statement: TypeAlias = (
    KeyRequest | KeyEpoch | KeyWelcome | KeyPathAnswer | KeyHistory | KeyNotice | KeyRecord | KeyCheckpoint | KeyRefusal
)
LITTLE = KeyNotice(replace(WORD, blocks=1_000), NOW)
STATEMENTS: list[Statement] = [
    KeyRequest(KeyWish.JOIN, who(20), PLATES, NOW, public=b"p" * 32),
    KeyRequest(KeyWish.LEAVE, who(20), KeyGroup(TYPE), NOW),
    KeyRequest(KeyWish.HISTORY, who(20), PLATES, NOW, 1, 9, b"p" * 32),
    *split(WORD, REKEY),
    KeyWelcome(WORD, who(20), b"p" * 32, b"sealed"),
    KeyPathAnswer(WORD, who(20), b"s" * 16, b"sealed"),
    KeyPathAnswer(WORD, who(20), b"s" * 16, b"sealed", b"missed"),
    KeyHistory(WORD, who(20), b"p" * 32, 1, b"sealed"),
    KeyNotice(WORD, NOW),
    LITTLE,
    KeyCheckpoint(who(50), 7, b"d" * 32, NOW, 1, 3, b"s" * 16, b"sealed"),
    KeyRefusal(who(50), PLATES, who(20), b"p" * 32, NO_HISTORY, NOW),
    KeyRecord(WORD, 7, b"d" * 32, NOW, True, b"s" * 16, b"x", ((who(20), NOW), (who(21), None)), (who(22),), ()),
]
KINDS = (KeyRequest, KeyEpoch, KeyWelcome, KeyPathAnswer, KeyHistory, KeyNotice, KeyRecord, KeyCheckpoint, KeyRefusal)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda value: type(value).__name__)
def test_statements_are_read_as_they_were_written(statement: Statement) -> None:
    signed = sign_value(statement, next(key(number) for number in (20, 50) if who(number) == statement.signer))
    read = parse_signed(signed.to_bytes(), *KINDS)
    assert read.value == statement
    assert read.verify() == signed


def test_a_request_may_show_credentials() -> None:
    request = KeyRequest(KeyWish.HISTORY, who(20), PLATES, NOW, 1, 9, b"p" * 32, b"credentials")
    assert parse_signed(sign_value(request, key(20)).to_bytes(), KeyRequest).value == request


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda value: type(value).__name__)
def test_what_lacks_a_field_is_no_statement(statement: Statement) -> None:
    body = statement.to_sexp()
    assert isinstance(body, tuple)
    for at in range(1, len(body)):
        if body[at] in ((b"blocks", b"1000"), (b"missed", b"missed")):
            # It has a default.
            continue
        with refused("evolution.malformed"):
            type(statement).from_sexp(body[:at] + body[at + 1 :])


def changed(statement: Statement, name: bytes, *values: SExp) -> Callable[[], object]:
    body = statement.to_sexp()
    assert isinstance(body, tuple)
    other = tuple((name, *values) if isinstance(part, tuple) and part[0] == name else part for part in body)
    assert other != body
    return lambda: type(statement).from_sexp(other)


JOIN, LEAVE, EPOCH, RECORD = STATEMENTS[0], STATEMENTS[1], STATEMENTS[3], STATEMENTS[-1]
CHECKPOINT, REFUSAL = STATEMENTS[-3:-1]


@pytest.mark.parametrize(
    "read",
    [
        changed(CHECKPOINT, b"part", b"3", b"3"),
        changed(CHECKPOINT, b"part", b"8", b"9"),
        changed(CHECKPOINT, b"previous", b"short"),
        changed(REFUSAL, b"code", b"keys.other"),
        changed(REFUSAL, b"key", b"short"),
        changed(JOIN, b"wish", b"dance"),
        changed(JOIN, b"key", b"short"),
        changed(LEAVE, b"key", b"p" * 32),
        changed(JOIN, b"epochs", b"1"),
        changed(JOIN, b"group", b"x"),
        changed(EPOCH, b"part", b"1", b"1"),
        changed(EPOCH, b"placed", (b"h",)),
        changed(EPOCH, b"moves", b"4"),
        changed(EPOCH, b"renewed", (b"2",)),
        changed(EPOCH, b"renewed", (b"2", b"0", (b"4", b"x"), (b"5", b"y"), (b"6", b"z"))),
        changed(EPOCH, b"salt", (b"s",)),
        changed(EPOCH, b"longest", b"9" * 16),
        changed(LITTLE, b"blocks", b"0"),
        changed(LITTLE, b"blocks", b"9" * 11),
        changed(LITTLE, b"blocks", (b"1",)),
        changed(RECORD, b"refresh", b"2"),
        changed(RECORD, b"previous", b"short"),
    ],
)
def test_what_is_no_statement_is_refused(read: Callable[[], object]) -> None:
    with refused("evolution.malformed"):
        read()


def test_an_epoch_is_told_in_parts_and_put_together() -> None:
    rekey = replace(Listening(50).change(7, ()), group=PLATES.id, epoch=WORD.epoch)
    for most in (1, 3, 10, 1000):
        parts = [*split(WORD, rekey, most)]
        assert all(len(part.rekey.renewed) <= most for part in parts)
        assert join_parts(parts) == rekey
    nothing = Rekey(PLATES.id, WORD.epoch, b"", b"")
    assert [join_parts([part]) for part in split(WORD, nothing)] == [nothing]


def test_a_group_is_named_by_type_and_attribute() -> None:
    child = KeyGroup(TypeKey(TYPE.owner, "uk.gov.pito.Lorry"), PLATES.attribute)
    assert len({KeyGroup(TYPE).id, PLATES.id, child.id}) == 3
    assert KeyGroup(TYPE).scope == str(TYPE)
    assert PLATES.scope == str(PLATES.attribute)
    assert len({PLATES.scope, child.scope}) == 2


def test_what_is_told_shows_no_box() -> None:
    assert "sealed" not in repr(STATEMENTS).replace("sealed=", "")
    assert canonical(WORD.group.to_sexp())
