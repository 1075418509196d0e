"""Steps are kept in one form, and nothing else is read back."""

import pytest
from tests.moderator.kit import P1, P2, rule
from tests.moderator.life import NOW, add, base_of, resolve

from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import MalformedError
from penstock.moderator.base.records import Record, from_record, to_record
from penstock.moderator.rules.steps import Note, Step


def resolved() -> Step:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "company = 'A'", of=[P2]))
    return resolve(base, "b").step


def test_a_step_is_read_back_and_shows_no_rule() -> None:
    step = resolved()
    record = to_record(step)
    assert record.kind == "resolve"
    assert from_record(step.number, step.note, record) == step
    assert "manager" not in repr(record) + repr(step)


@pytest.mark.parametrize("replaced", [b"8:modified", b"8:in-force", b"14:add-attributes", b"8:rejected", b"7:resolve"])
def test_octets_that_were_altered_are_refused(replaced: bytes) -> None:
    record = to_record(resolved())
    size, _, word = replaced.partition(b":")
    other = size + b":" + bytes(reversed(word))
    altered = [
        Record(record.kind, record.before.replace(replaced, other), record.after),
        Record(record.kind, record.before, record.after.replace(replaced, other)),
    ]
    for each in altered:
        if each != record:
            with pytest.raises(MalformedError):
                from_record(3, Note(P1, NOW), each)


def test_another_order_or_kind_is_another_form() -> None:
    step = resolved()
    record = to_record(step)
    body = parse_canonical(record.before)
    assert isinstance(body, tuple)
    turned = canonical((body[0], *reversed(body[1:])))
    for each in (Record("add", record.before, record.after), Record(record.kind, turned, record.after)):
        with pytest.raises(MalformedError) as raised:
            from_record(step.number, step.note, each)
        assert raised.value.code == "moderator.record"
