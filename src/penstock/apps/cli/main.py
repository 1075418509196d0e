"""The command `penstock`: its nouns, and the only place that reads the clock and a random source."""

import gc
import secrets
import sys
from datetime import UTC, datetime
from typing import Final

import click

from penstock import __version__
from penstock.apps.cli.shared.session import FAILED, CommandSession, Noun, Root

_HERE = "penstock.apps.cli"

#: the commands as `--help` lists them; each is in one group
GROUPS = {
    "Start here": {
        "init": Noun(
            f"{_HERE}.init:init", "Create a folder with a network that works: keys, a type, rights, a broker."
        ),
        "dev": Noun(f"{_HERE}.dev:dev", "Run a whole network in one process, and watch what each reader sees."),
        "doctor": Noun(f"{_HERE}.doctor:doctor", "Check a folder or a running broker, and say what to do."),
        "context": Noun(
            f"{_HERE}.contexts:context", "Store what to connect with, so that daily commands need no options."
        ),
        "completion": Noun(f"{_HERE}.completion:completion", "Print completion scripts for your shell."),
    },
    "Rights": {
        "key": Noun(f"{_HERE}.keys.key_files:key", "Manage signing keys and the identities they stand for."),
        "name": Noun(f"{_HERE}.petnames:name", "Manage your own names for principals."),
        "type": Noun(f"{_HERE}.types:type_", "Manage signed event types and their versions."),
        "topic": Noun(f"{_HERE}.types:topic", "Manage topics: plain messages under names that form a tree."),
        "cert": Noun(f"{_HERE}.certs.certs:cert", "Issue, list, renew and verify certificates, which grant rights."),
        "acs": Noun(f"{_HERE}.acs.commands:acs", "Manage a domain: members, certificates, who holds which right."),
        "role": Noun(f"{_HERE}.roles:role", "Check role policies, and activate, appoint and revoke by them."),
        "statement": Noun(
            f"{_HERE}.certs.statements:statement", "Sign, show and send validity statements about certificates."
        ),
        "explain": Noun(f"{_HERE}.explain:explain", "Explain why a principal may or may not do something."),
        "policy": Noun(f"{_HERE}.policy.commands:policy", "Check, convert, test and analyse attribute-based policies."),
        "pdp": Noun(f"{_HERE}.policy.commands:pdp", "Decide by attribute-based policies."),
        "pep": Noun(f"{_HERE}.pep:pep", "Ask decision points whether access is permitted."),
    },
    "Run": {
        "up": Noun(f"{_HERE}.up:up", "Run a broker from one file."),
        "component": Noun(
            f"{_HERE}.component:component", "Run authorization components of a domain, and ask through one of them."
        ),
        "domain": Noun(f"{_HERE}.domain:domain", "Plan, check, run and change a domain of authorization components."),
        "simulate": Noun(
            f"{_HERE}.simulate.commands:simulate",
            "Run the real system in virtual time, to search for faults and to try plans.",
        ),
        "fabric": Noun(f"{_HERE}.fabrics:fabric", "Run what a fabric needs: the keeper of a DDS domain."),
        "pub": Noun(f"{_HERE}.pub_sub:pub", "Publish events, each confirmed by the broker."),
        "sub": Noun(f"{_HERE}.pub_sub:sub", "Subscribe, and print events as they arrive."),
        "net": Noun(
            f"{_HERE}.net.commands:net", "Show how a broker sees the network, and change an owner's policy in it."
        ),
        "sealing": Noun(
            f"{_HERE}.keys.broker_keys:sealing",
            "Manage the keys of sealed types: key groups at a broker, and key rings in files.",
        ),
    },
    "Data": {
        "pipeline": Noun(f"{_HERE}.pipeline.commands:pipeline", "Run the same policy over logs and streams, on Spark."),
        "seal": Noun(f"{_HERE}.sealed:seal", "Seal the events of a file."),
        "open": Noun(f"{_HERE}.sealed:open_", "Open the sealed events of a file."),
        "proof": Noun(f"{_HERE}.sealed:proof", "Make and verify proofs of single events, for those who have no keys."),
    },
    "Moderator": {
        "moderator": Noun(
            f"{_HERE}.moderator.commands:moderator", "Find and settle conflicts between publishers' rules."
        ),
        "store": Noun(f"{_HERE}.stores:store", "Back up, restore and migrate stores of changes."),
        "log": Noun(f"{_HERE}.stores:log", "Show and verify changes: what, who, when and why."),
    },
    "Low level": {
        "selector": Noun(f"{_HERE}.selectors:selector", "Check, evaluate and compare selectors."),
        "sexp": Noun(f"{_HERE}.sexp:sexp", "Show and convert S-expressions in their three forms."),
        "spki": Noun(f"{_HERE}.sexp:spki", "Reduce lists of rights as in RFC 2693."),
        "conformance": Noun(f"{_HERE}.conformance:conformance", "Run the test suites of standards."),
        "experiment": Noun(f"{_HERE}.experiment:experiment", "Measure figures and tables of the papers again."),
    },
}


#: words that newcomers try, and the commands that do it
MEANT: Final = {
    "grant": "cert issue",
    "help": "--help",
    "login": "context add",
    "revoke": "net revoke",
    "run": "up",
    "serve": "up",
    "start": "up",
    "status": "doctor",
    "subscribe": "sub",
}


@click.command(
    cls=Root,
    sections=GROUPS,
    meant=MEANT,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 yes, 1 no, 2 wrong use or malformed input, 3 failed.",
)
@click.version_option(__version__, message="penstock %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Penstock decides which events each organisation may publish, and which attributes each reader gets.

    \b
    Begin with:
      penstock dev          # watch two organisations share events, and change their rights
      penstock init demo    # create a network of your own
      penstock up demo      # start its broker; the README in demo says how to publish and subscribe
    """
    if context.obj is None:
        # Imported late: `--help` does not need it.
        from penstock.store.crash_dumps import withhold_memory  # noqa: PLC0415

        # Most commands read a private key, and a broker has the keys of others.
        withhold_memory()
        context.obj = CommandSession(now=datetime.now(UTC), random=secrets.token_bytes)


def main() -> None:
    """Run the command line."""
    if sys.stdout is None:
        # Without standard output (`>&-`) nobody gets the answer, so the command is not run.
        sys.exit(FAILED)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not turn an answer into a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Modules stay, and whoever looks for garbage while they are imported reads them again and again. See `CommandVerb`.
    gc.disable()
    cli.main()
