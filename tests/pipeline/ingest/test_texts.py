"""Texts of records: what is said of a header that does not fit."""

import pytest

from penstock.pipeline.ingest.mapping import CsvLayout
from penstock.pipeline.ingest.texts import RecordError, check_fields


@pytest.mark.parametrize(
    ("header", "listed", "words"),
    [
        ("id,case:name", None, "the header lacks the column `case-name`: did you mean `case:name`?"),
        ("id,case-name,case-name", None, "the header has the column `case-name` several times"),
        # Perhaps a record: nothing of it is shown.
        ("case_name,7", None, "the header lacks the column `id`"),
        ("id,\x1b[case-name", None, "the header lacks the column `case-name`"),
        ("id,case-name", ("id", "case"), "`csv.columns` of the mapping lacks the column `case-name`"),
        ("case-name,id", ("id", "case-name"), "the header is not the list `csv.columns` of the mapping"),
    ],
)
def test_a_header_is_told_what_it_lacks(header: str, listed: tuple[str, ...] | None, words: str) -> None:
    columns = header.split(",")
    with pytest.raises(RecordError) as bad:
        check_fields(b"1,a\n", ["1", "a"], columns, CsvLayout(columns=listed), ["id", "case-name"])
    assert (bad.value.code, bad.value.words) == ("ingest.header", words)
