"""The options that the commands of `penstock pipeline` share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.model.limits import DEFAULT_LIMITS

F = TypeVar("F", bound=Callable[..., Any])


def spark_options(function: F) -> F:
    """Add where Spark runs."""
    for option in (
        click.option("--spark-log", metavar="FILE", help="Keep what Spark and Java say in this file."),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeat it."),
        click.option("--remote", metavar="URL", help="Use a Spark Connect server, such as sc://host:15002."),
        click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs."),
    ):
        function = option(function)
    return function


def stream_options(function: F) -> F:
    """Add `--stream`, `--drain` and `--files`."""
    for option in (
        click.option(
            "--files",
            type=click.IntRange(1, DEFAULT_LIMITS.batch_files),
            default=100,
            show_default=True,
            help="As a stream: so many files, or batches of the job before, at a time.",
        ),
        click.option("--drain", is_flag=True, help="As a stream: stop when everything is read that is there."),
        click.option("--stream", is_flag=True, help="Go on with what arrives, until stopped."),
    ):
        function = option(function)
    return function


def jetstream_options(name: str, words: str) -> Callable[[F], F]:
    """Add `--from-jetstream` or `--to-jetstream`, and `--jetstream` with more about it."""

    def decorate(function: F) -> F:
        more = click.option(
            "--jetstream", "jetstream_more", multiple=True, metavar="NAME=VALUE", help="An option of it; repeat."
        )
        return click.option(name, nargs=2, metavar="URL STREAM", help=words)(more(function))

    return decorate


def out_options(*, required: bool) -> Callable[[F], F]:
    """Add `--out`, `--overwrite` and `--dry-run`."""

    def decorate(function: F) -> F:
        words = "The folder to write." if required else "Keep what is found in this folder; a stream needs one."
        for option in (
            click.option("--dry-run", is_flag=True, help="Show the plan and what would be read, and write nothing."),
            click.option("--overwrite", is_flag=True, help="Replace an output that exists."),
            click.option("--out", metavar="FOLDER", required=required, help=words),
        ):
            function = option(function)
        return function

    return decorate


def policy_option(function: F) -> F:
    """Add `--policy`."""
    return click.option("--policy", "policy_file", required=True, metavar="FILE", help="The policy file.")(function)


def html_option(function: F) -> F:
    """Add `--html`."""
    return click.option("--html", metavar="FILE", help="Write the report as a page that needs no network.")(function)


def key_files_options(*, required: bool) -> Callable[[F], F]:
    """Add `--keys` and `--kek`, which tasks read where they run."""

    def decorate(function: F) -> F:
        log = "" if required else " FOLDER is a sealed log then."
        for option in (
            click.option(
                "--kek",
                "kek_file",
                required=required,
                metavar="FILE",
                help="The key-encryption key of the key ring, under no passphrase.",
            ),
            click.option(
                "--keys",
                "ring_file",
                required=required,
                metavar="FILE",
                help=f"A key ring, which tasks read where they run.{log}",
            ),
        ):
            function = option(function)
        return function

    return decorate
