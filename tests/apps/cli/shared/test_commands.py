"""Commands are declared by a class of options, and their answers are printed in one place."""

import gc
from collections.abc import Iterator, Mapping

import click
import pytest
from click.testing import CliRunner

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, one_answer, option, option_class
from penstock.apps.cli.shared.commands import output_option as output_option
from penstock.errors import RefusedError


@option_class
class _Shared:
    deep: int = option("--deep", type=int, default=1, help="How deep.")


@option_class
class _Dig:
    place: str = argument()
    shared: _Shared
    fast: bool = option("--fast", is_flag=True, help="Quickly.")
    output: str = output_option()


def invoke(made: click.Command, *arguments: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(made, arguments, catch_exceptions=True)
    return result.output, result.exception


def test_options_are_those_of_the_class_and_its_groups_in_their_order() -> None:
    seen: list[_Dig] = []

    @command(example="dig here")
    def dig(options: _Dig) -> None:
        """Dig a hole."""
        seen.append(options)

    assert [one.name for one in dig.params] == ["place", "deep", "fast", "output"]
    assert invoke(dig, "garden", "--deep", "3") == ("", None)
    assert seen == [_Dig(place="garden", shared=_Shared(deep=3), fast=False, output="human")]
    assert "Dig a hole." in invoke(dig, "--help")[0]
    assert invoke(dig, "--help")[0].rstrip().splitlines()[4:6] == ["  Example:", "    dig here"]


def test_only_the_half_of_an_answer_that_is_wanted_is_computed() -> None:
    computed: list[str] = []

    def data() -> Mapping[str, object]:
        computed.append("data")
        return {"depth": 3}

    def lines() -> Iterator[str]:
        computed.append("lines")
        yield "three deep"

    @command()
    def dig(_options: _Dig) -> CommandAnswer:
        """Dig a hole."""
        return CommandAnswer(data, lines())

    assert invoke(dig, "x") == ("three deep\n", None)
    assert computed == ["lines"]
    assert invoke(dig, "x", "-o", "json") == ('{\n  "depth": 3\n}\n', None)
    assert computed == ["lines", "data"]


def test_an_error_follows_the_answer_that_it_comes_with() -> None:
    error = RefusedError("dig.rock", "there is a rock")

    @command()
    def dig(_options: _Dig) -> CommandAnswer:
        """Dig a hole."""
        return CommandAnswer({"ok": False}, ["one deep"], error)

    assert invoke(dig, "x") == ("one deep\n", error)


def test_a_program_gets_an_object_for_an_error_too() -> None:
    error = RefusedError("dig.rock", "there is a rock")

    @command()
    def dig(_options: _Dig) -> None:
        """Dig a hole."""
        with one_answer({"ok": False}):
            raise error

    assert invoke(dig, "x") == ("", error)
    assert invoke(dig, "x", "-o", "json")[0] == (
        '{\n  "ok": false,\n  "code": "dig.rock",\n  "reason": "there is a rock"\n}\n'
    )


def test_two_options_of_one_name_are_refused() -> None:
    @option_class
    class Twice:
        deep: int = option("--how-deep", type=int)
        shared: _Shared

    def dig(_options: Twice) -> None:
        """Dig a hole."""

    with pytest.raises(TypeError, match="have one name"):
        command()(dig)


def test_a_field_is_an_option_or_a_group_of_them() -> None:
    @option_class
    class Neither:
        deep: int

    def dig(_options: Neither) -> None:
        """Dig a hole."""

    with pytest.raises(TypeError, match="`deep` is neither"):
        command()(dig)


def test_garbage_is_collected_as_soon_as_a_command_runs() -> None:
    @command()
    def dig() -> CommandAnswer:
        return CommandAnswer({}, [str(gc.isenabled())])

    gc.disable()
    try:
        output, error = invoke(dig)
        assert (output, error) == ("True\n", None)
    finally:
        gc.enable()
        gc.unfreeze()
