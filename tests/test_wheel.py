"""The wheel, as `pip install penstock` leaves it: outside of the checkout, with nothing but what it requires."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from unittest.mock import ANY

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

#: walks through all commands in one process, as each of them would be asked for its help
_HELP = """
import json, sys
import click
from click.testing import CliRunner
from penstock.apps.cli.main import cli

def paths(command, context, path):
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            try:
                found = command.get_command(context, name)
            except Exception as error:
                yield (*path, name)
                continue
            yield from paths(found, click.Context(found, parent=context, info_name=name), (*path, name))

told = {}
for path in paths(cli, click.Context(cli, info_name="penstock"), ()):
    done = CliRunner().invoke(cli, [*path, "--help"])
    told[" ".join(path)] = (done.exit_code, done.output)
print(json.dumps(told))
"""


def _required(found: Distribution, extras: frozenset[str] = frozenset()) -> Iterator[Distribution]:
    """Yield all distributions that one needs in this environment."""
    for text in found.requires or ():
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            with suppress(PackageNotFoundError):  # what only other systems need
                one = distribution(needed.name)
                yield one
                yield from _required(one, frozenset(needed.extras))


@pytest.fixture(scope="module", params=["wheel"])
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, and no more; the folder with its programs."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    made = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(made, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    wheel = next(folder.glob("*.whl"))
    put = [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(put, check=True)
    packages = next((folder / "env" / "lib").glob("python3*")) / "site-packages"
    for found in _required(Distribution.at(next(packages.glob("penstock-*.dist-info")))):
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))))
    return python.parent


def _environment(home: Path) -> dict[str, str]:
    """Return the variables of somebody who has used neither Python nor Penstock here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK", "XDG"))}
    return {**kept, "HOME": str(home)}


def _run(programs: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / arguments[0], *arguments[1:]],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def _started(programs: Path, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the block ends; everything that it says comes as its output."""
    with subprocess.Popen(
        [programs / "penstock", *arguments],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.terminate()
            running.communicate()


def _lines(running: subprocess.Popen[str]) -> Iterator[str]:
    assert running.stdout is not None
    return iter(running.stdout.readline, "")


def test_every_command_tells_its_help_or_the_extra_that_it_needs(installed: Path, tmp_path: Path) -> None:
    done = _run(installed, tmp_path, "python", "-I", "-c", _HELP)
    assert done.returncode == 0, done.stderr
    told: dict[str, tuple[int, str]] = json.loads(done.stdout)
    assert len(told) > 100
    failed = {path for path, (status, _) in told.items() if status}
    assert failed == {path for path in told if path.startswith("pipeline ")}
    assert all("hint: pip install 'penstock[spark]'" in told[path][1] for path in failed)
    assert "pyspark" not in told["pipeline"][1]


def test_commands_of_spark_name_their_extra(installed: Path, tmp_path: Path) -> None:
    done = _run(installed, tmp_path, "penstock", "pipeline", "ingest", "x.csv", "--out", "y", "-o", "json")
    assert done.returncode == 3
    assert json.loads(done.stderr)["error"]["code"] == "cli.extra"
    assert "penstock[spark]" in done.stderr


def test_a_broker_runs_and_answers(installed: Path, tmp_path: Path) -> None:
    assert _run(installed, tmp_path, "penstock", "up", "--example").returncode == 0
    for line in (
        "key new london.key --name london",
        "key new east.key --name east",
        "cert issue --key london.key --to east --network london/London --right connect --right broker --out east.cert",
    ):
        assert _run(installed, tmp_path, "penstock", *line.split()).returncode == 0
    (tmp_path / "east.toml").write_text(
        'network = "london/London"\nkey = "east.key"\nlisten = "127.0.0.1:0"\nnames = "names.toml"\n'
        'credentials = ["east.cert"]\noperators = ["east"]\ndecisions = "east.jsonl"\nstate = "east.state"\n'
    )
    with _started(installed, tmp_path, "up", "east.toml") as broker:
        ready = next(line for line in _lines(broker) if "is ready at penstock://" in line)
        url = ready.split("ready at ")[1].split(",")[0].strip()
        line = f"net show --broker {url} --network london/London --key london.key --credential east.cert"
        shown = _run(installed, tmp_path, "penstock", *line.split())
        assert (shown.returncode, "only operators" in shown.stderr) == (1, True)
    assert broker.returncode == 0


def test_keys_types_certificates_and_explanations(installed: Path, tmp_path: Path) -> None:
    for line in (
        "key new pito.key --name pito",
        "key new met.key --name met",
        "type new uk.Plate --key pito.key --attribute plate:string --out plate.type",
        "cert issue --key pito.key --to met --type-file plate.type --right subscribe --days 30 --out met.cert",
        "explain --type-file plate.type --principal met --right subscribe --credential met.cert",
    ):
        done = _run(installed, tmp_path, "penstock", *line.split())
        assert done.returncode == 0, (line, done.stderr)


def test_a_new_network_delivers_a_restricted_event(installed: Path, tmp_path: Path) -> None:
    made = _run(installed, tmp_path, "penstock", "init", "demo", "--yes")
    assert (made.returncode, made.stderr) == (0, "")
    with _started(installed, tmp_path, "up", "demo") as broker:
        assert any("is ready at" in line for line in _lines(broker))
        with _started(installed, tmp_path, "sub", "--context", "demo-reader", "--count", "1", "-o", "json") as reader:
            assert any("subscribed to" in line for line in _lines(reader))
            values = ("meter=M-17", "region=north", "power=1.5")
            sent = _run(installed, tmp_path, "penstock", "pub", "--context", "demo-sensor", *values)
            assert sent.returncode == 0, sent.stderr
            received = json.loads(next(_lines(reader)))
    assert received["data"] == {"meter": None, "region": "north", "power": 1.5}


def test_the_network_in_one_process_delivers_restricted_events(installed: Path, tmp_path: Path) -> None:
    with _started(installed, tmp_path, "dev", "--for", "60", "-o", "json") as network:
        told = map(json.loads, _lines(network))
        assert next(told)["event"] == "ready"
        received = next(one for one in told if one["event"] == "received" and one["reader"] == "planner")
        assert received["values"] == {"meter": None, "region": "north", "power": ANY}
        assert network.stdin is not None
        network.stdin.write("quit\n")
        network.stdin.flush()
        assert [one for one in told if one["event"] == "ended"]


def test_the_version_is_in_one_place(installed: Path, tmp_path: Path) -> None:
    number = _run(installed, tmp_path, "penstock", "--version").stdout.removeprefix("penstock ").strip()
    assert list(installed.parent.glob(f"lib/python3*/site-packages/penstock-{number}.dist-info"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)[0] == number


def test_every_extra_is_described() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = {
        extra: sorted(str(Requirement(one).name) for one in needed)
        for extra, needed in project["optional-dependencies"].items()
    }
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", page, re.MULTILINE)
    assert {extra: sorted(re.findall(r"`([\w-]+)`", named)) for extra, named in rows} == packages
