"""`penstock domain`: plan a domain of authorization components, check the plan, run it, and change it while it runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import SECRET, as_text, read_bytes, read_sexp, within, write_bytes
from penstock.apps.cli.shared.names import remembering
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, fact_table, show
from penstock.authority.components.domain_check import PlanFinding, PlanLevel, check_domain
from penstock.authority.components.domain_plan import EXAMPLE, DomainPlan, load_domain_plan, read_domain_plan
from penstock.authority.components.topics import ComponentKind
from penstock.crypto import PublicKey, new_key, private_key_to_sexp, read_key
from penstock.errors import MalformedError, RefusedError


@click.group(cls=Verbs)
def domain() -> None:
    """Plan, check, run and change a domain of authorization components.

    To run the access control service of a domain, use `penstock acs serve`.
    """


@option_class
class _Check:
    files: tuple[str, ...] = argument(nargs=-1, metavar="FILE...")
    show_example: bool = option("--example", is_flag=True, help="Print a domain plan with all keys.")
    output: str = output_option()


@command(
    domain,
    example="""
penstock domain check --example > bank.toml
penstock domain check bank.toml
penstock domain check bank.toml machines.toml -o json
""",
)
def check(options: _Check) -> CommandAnswer | None:
    """Check the domain plan in the first FILE, before anything runs. Other files have more components of the domain.

    Reports roles that nobody can take, topics without a writer or a reader, requests that nobody answers, attributes
    that policies need and nobody provides, policies that no decision point gets, missing combining algorithms, and
    topics-lists that separate components that depend on each other. The exit status is 1 if there are problems.
    Keys and the content of sources are not read.
    """
    if options.show_example:
        show(EXAMPLE.rstrip("\n").split("\n"))
        return None
    if not options.files:
        raise MalformedError(
            "cli.usage", "missing argument `FILE`", hint="`penstock domain check --example` prints one"
        )
    loaded = load_domain_plan(options.files[0])
    findings = check_domain(loaded, [load_domain_plan(file) for file in options.files[1:]])
    problems = [one for one in findings if one.level is PlanLevel.PROBLEM]
    error = None
    if problems:
        error = RefusedError("plan.problems", f"{loaded.path}: {counted(len(problems), 'problem')}")
    data = {
        "ok": not problems,
        "domain": loaded.plan.name,
        "findings": [one.as_dict() for one in findings],
        "roles": {str(kind): [*names] for kind, names in loaded.plan.component_roles().items() if names},
    }
    return CommandAnswer(data, _checked(loaded.path, loaded.plan, findings), error)


def _checked(path: str, plan: DomainPlan, findings: Sequence[PlanFinding]) -> Iterator[Shown]:
    for one in findings:
        yield f"{'✗' if one.level is PlanLevel.PROBLEM else '!'} {one.where}: {one.message} ({one.code})"
        if one.hint:
            yield f"    {one.hint}"
    if all(one.level is not PlanLevel.PROBLEM for one in findings):
        yield f"✓ {path} plans a domain that can run"
    roles = plan.component_roles()
    yield fact_table(
        [
            ("domain", plan.name),
            *((f"roles of {kind}s", ", ".join(names)) for kind, names in roles.items() if names),
            *(
                (f"{kind}s", ", ".join(one.id for one in plan.components.values() if one.kind is kind))
                for kind in ComponentKind
                if any(one.kind is kind for one in plan.components.values())
            ),
        ],
        indent=2,
    )


@option_class
class _NewKeys:
    file: str = argument()
    dry_run: bool = option("--dry-run", is_flag=True, help="Write nothing.")
    output: str = output_option()


@command(domain, "new-keys", example="penstock domain new-keys bank.toml")
def new_keys(session: CommandSession, options: _NewKeys) -> CommandAnswer:
    """Make the keys that components in FILE lack, and remember each principal under its component's id.

    The names are written to the file that `names` in FILE names. Keys that exist are not changed.
    """
    data = read_bytes(options.file)
    with within(options.file):
        plan = read_domain_plan(data)
        if not isinstance(plan.names, str):
            hint = "with a table in the plan, make keys with `penstock key new`"
            raise MalformedError("plan.value", '`names` must be a file, such as "names.toml"', hint=hint)
    folder = Path(options.file).parent
    found: list[dict[str, object]] = []
    for one in plan.components.values():
        file = folder / one.key
        made = None
        if file.exists():
            stored = read_key(read_sexp(str(file)))
            principal = stored.principal if isinstance(stored, PublicKey) else stored.public.principal
        else:
            made = new_key(session.random)
            principal = made.principal
        with remembering(one.id, principal, str(folder / plan.names), replace=False, dry_run=options.dry_run):
            if made is not None and not options.dry_run:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(str(file), as_text(private_key_to_sexp(made)), mode=SECRET, for_key=True)
        found.append({"component": one.id, "file": str(file), "principal": str(principal), "new": made is not None})
    done = "would write" if options.dry_run else "wrote"
    shown = [f"{done if one['new'] else 'kept'} {one['file']}  {one['principal']}" for one in found]
    return CommandAnswer({"keys": found, "written": not options.dry_run}, shown)
