"""Python in the documentation runs, and prints what its trailing comments say."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.jobs_plant import interpreted

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def pages_with_python() -> list[Path]:
    return [page for page in PAGES if PYTHON.search(page.read_text(encoding="utf-8"))]


def quick() -> contextlib.AbstractContextManager[None]:
    """Let the session that there may be interpret what it runs: a page has a handful of rows."""
    session = SparkSession.getActiveSession()
    return contextlib.nullcontext() if session is None else interpreted(session)


@pytest.mark.parametrize("page", pages_with_python(), ids=lambda page: str(page.relative_to(ROOT)))
def test_python_snippets_run(page: Path) -> None:
    namespace: dict[str, object] = {}
    for snippet in PYTHON.findall(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), quick():
            exec(compile(snippet, str(page), "exec"), namespace)  # noqa: S102  # our own documentation
        promised = [line[2:] for line in snippet.splitlines() if re.match(r"# \S", line)]
        lines = printed.getvalue().splitlines()
        # Comments at the very end of a snippet are its output.
        assert not lines or promised[-len(lines) :] == lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target
