"""The runner of pages sees a page that is wrong."""

import os
from pathlib import Path

import pytest
from tests.docs.pages import Session, is_whole, missing, steps


def test_a_block_is_its_commands_with_their_output() -> None:
    block = "later output\n$ cat > a <<'END'\none\nEND\n$ echo \\\n    two\ntwo\n"
    assert [(step.command, step.promised) for step in steps(block)] == [
        ("", ["later output"]),
        ("cat > a <<'END'\none\nEND", []),
        ("echo two", ["two"]),
    ]


def test_dots_stand_for_any_text() -> None:
    assert missing(["…", "a … c", "…c"], "a b c\n") == []
    assert missing(["a", "b …"], "a b c\n") == ["a", "b …"]


def test_a_time_stands_for_any_time() -> None:
    shown = "2026-11-17T21:23:01.750Z  -  1.5"
    assert missing([shown], "2027-01-02T03:04:05.678Z  -  1.5\n") == []
    assert missing([shown], "2027-01-02T03:04:05.678Z  -  2.5\nnever  -  1.5\n") == [shown]


def test_a_whole_page_leaves_nothing_out(tmp_path: Path) -> None:
    assert is_whole(["a", "…", "c …"], "a \nb\nb\nc d\n")
    assert not is_whole(["a"], "a\nb\n")
    assert not is_whole(["b", "a"], "a\nb\n")
    assert is_whole([], "")
    for shown, later in (("one\ntwo", "three"), ("one\n…", "three")):
        page = f"<!-- test: terminal t -->\n```console\n$ printf 'one\\ntwo\\nthree\\n'\n{shown}\n{later}\n```\n"
        Session(tmp_path, dict(os.environ), whole=True).follow(page)
    with pytest.raises(AssertionError, match="printed more"):
        Session(tmp_path, dict(os.environ), whole=True).follow("```console\n$ printf 'one\\ntwo\\n'\none\n```\n")


def follow(folder: Path, page: str) -> None:
    Session(folder, dict(os.environ)).follow(page)


def block(text: str) -> str:
    return f"```console\n{text}\n```\n"


def test_commands_share_a_folder_and_variables(tmp_path: Path) -> None:
    follow(tmp_path, block("$ mkdir a; cd a; export WHO=me") + block('$ echo "$WHO in $(basename $PWD)"\nme in a'))


@pytest.mark.parametrize("said", ["✗ no", "error: no"])
def test_a_command_that_shows_a_refusal_ends_with_status_1(tmp_path: Path, said: str) -> None:
    follow(tmp_path, block(f"$ (echo '{said}'; exit 1)\n{said}\n$ true"))
    with pytest.raises(AssertionError):
        follow(tmp_path, block(f"$ echo '{said}'\n{said}"))


@pytest.mark.parametrize(
    "page",
    [
        block("$ false"),
        block("$ echo one\ntwo"),
        "<!-- test: status 1 -->\n" + block("$ true"),
        "<!-- test: terminal other -->\n" + block("$ false\nready"),
        "<!-- test: riddle -->\n" + block("$ true"),
        "<!-- test: until -->\n",
        "<!-- test: terminal other -->\n" + block("$ echo secret\nsecret") + "<!-- test: never secret in other -->\n",
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, page: str) -> None:
    with pytest.raises(AssertionError):
        follow(tmp_path, page)


def test_a_terminal_runs_beside_the_others(tmp_path: Path) -> None:
    program = "echo ready; while [ ! -e go ]; do sleep 0.01; done; echo gone; exec sleep 1000"
    (tmp_path / "program").write_text(program, encoding="utf-8")
    here = "<!-- test: terminal other -->\n"
    follow(
        tmp_path,
        here
        + block("$ sh program\nready")
        + block("$ touch go")
        + here
        + block("gone")
        # The terminal is free again.
        + "<!-- test: signal TERM other -->\n<!-- test: ended other -->\n"
        + here
        + block("$ echo again\nagain"),
    )


def test_a_block_is_repeated_until_it_prints_what_it_shows(tmp_path: Path) -> None:
    follow(tmp_path, "<!-- test: until -->\n" + block("$ echo x >> lines; wc -l < lines\n3"))
