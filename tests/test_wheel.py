"""The wheel, as `pip install penstock` leaves it: outside of the checkout, with nothing but what it requires."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

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


def _run(programs: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK"))}
    return subprocess.run(
        [programs / arguments[0], *arguments[1:]],
        cwd=folder,
        env={**environment, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_tells_its_help_or_the_extra_that_it_needs(installed: Path, tmp_path: Path) -> None:
    done = _run(installed, tmp_path, "python", "-I", "-c", _HELP)
    assert done.returncode == 0, done.stderr
    told: dict[str, tuple[int, str]] = json.loads(done.stdout)
    assert len(told) > 100
    failed = {path for path, (status, _) in told.items() if status}
    assert failed == {path for path in told if path.startswith("pipeline ")}
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
    with subprocess.Popen(
        [installed / "penstock", "up", "east.toml"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            assert "is ready at penstock://" in ready
            url = ready.split("ready at ")[1].split(",")[0].strip()
            line = f"net show --broker {url} --network london/London --key london.key --credential east.cert"
            shown = _run(installed, tmp_path, "penstock", *line.split())
            assert (shown.returncode, "only operators" in shown.stderr) == (1, True)
        finally:
            broker.terminate()
    assert broker.returncode == 0


def test_keys_types_certificates_and_explanations(installed: Path, tmp_path: Path) -> None:
    for line in (
        "key new pito.key --name pito",
        "key new met.key --name met",
        "type define uk.Plate --key pito.key --attribute plate:string --out plate.type",
        "cert issue --key pito.key --to met --type-file plate.type --right subscribe --days 30 --out met.cert",
        "explain --type-file plate.type --principal met --right subscribe --credential met.cert",
    ):
        done = _run(installed, tmp_path, "penstock", *line.split())
        assert done.returncode == 0, (line, done.stderr)
