"""Commands in the documentation run, with the exit status and the output that the page promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Path(__file__).with_name("spark")
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = [
    page
    for folder in ("tutorial", "how-to")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if CONSOLE.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run_as_shown(page: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path), "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
    environment["SPARK_CONF_DIR"] = str(SETTINGS)
    for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *promised = step.rstrip().splitlines()
            while command.endswith("\\"):
                command = command[:-1] + promised.pop(0)
            status = re.search(r"# exit (\d)$", command)
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                encoding="utf-8",
                check=False,
            )
            assert done.returncode == (int(status.group(1)) if status else 0), f"{command}\n{done.stderr}"
            printed = done.stdout.splitlines()
            assert [line for line in promised if line not in printed and line != "…"] == [], command
