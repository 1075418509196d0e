"""`penstock moderator`: the list of its verbs, and `penstock moderator test`."""

import json
from collections.abc import Iterator

import click

from penstock.apps.cli.moderator.book import export, init, keep, log, sign, verify
from penstock.apps.cli.moderator.changes import (
    add,
    agree,
    leave,
    pass_,
    remove,
    resolve,
    return_,
    subscribe,
    take,
    type_,
    undo,
)
from penstock.apps.cli.moderator.compile import certify, compile_
from penstock.apps.cli.moderator.polls import COMMANDS as POLLS
from penstock.apps.cli.moderator.queries import allow, at, check, explain, propose_, show
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option_class, output_option
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.session import Verbs
from penstock.codec.yaml_text import read_yaml
from penstock.errors import MalformedError, RefusedError
from penstock.moderator.files.scenarios import StepResult, read_scenario, run


@click.group(cls=Verbs)
def moderator() -> None:
    """Find and settle conflicts between publishers' rules."""


for verb in (
    *(check, init, show, add, subscribe, remove, propose_, resolve, agree, take, explain, allow),
    *(type_, leave, return_, pass_, log, at, undo, verify, keep, sign, export, compile_, certify),
    *POLLS,
):
    moderator.add_command(verb)


@option_class
class _Test:
    file: str = argument(default="-")
    output: str = output_option()


@command(moderator, example="penstock moderator test example.yaml")
def test(options: _Test) -> CommandAnswer:
    """Run the scenario in FILE, and compare the result of each step with the expected one.

    A scenario is a tree of event types, profiles, steps, and the expected result of each step: which rules conflict and
    over which attributes, which are then in force, which enter the log and which come back from it. Nothing is saved.
    """
    with within(options.file):
        scenario = read_scenario(read_yaml(_text(read_bytes(options.file))))
        results = [*run(scenario)]
    failed = [each for each in results if each.differences]
    data = {"title": scenario.title, "passed": not failed, "steps": [_answer(each) for each in results]}

    def shown() -> Iterator[str]:
        yield scenario.title
        for each in results:
            yield f"  {each.number}. {each.facts['outcome']}"
            for name, wanted, found in each.differences:
                yield f"     {name}: expected {_plain(wanted)}"
                yield f"     {' ' * len(name)}     found {_plain(found)}"
        yield f"{len(results) - len(failed)} of {len(results)} steps as expected"

    error = None
    if failed:
        error = RefusedError(
            "moderator.unexpected", f"step {failed[0].number} of the scenario differs from what is expected"
        )
    return CommandAnswer(data, shown(), error)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError("yaml.malformed", "the text is not in UTF-8") from error


def _answer(result: StepResult) -> dict[str, object]:
    return {
        "number": result.number,
        **result.facts,
        "differences": [
            {"name": name, "expected": wanted, "found": found} for name, wanted, found in result.differences
        ],
    }


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
