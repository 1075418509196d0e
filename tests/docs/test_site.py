"""The documentation site builds without a warning, needs no network, and leads to every page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module", params=["site"])
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def test_every_page_is_built(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = "index.html" if page.name == "README.md" else page.with_suffix(".html").name
        assert (site / page.relative_to(DOCS).with_name(name)).exists(), page
    names = (site / "reference" / "names.html").read_text(encoding="utf-8")
    for public in ("penstock.connect", "penstock.spark.deliver", "penstock.testing.network"):
        assert f'id="{public}"' in names


def test_reading_needs_no_network(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=[\"']?https?:|<link[^>]+href=[\"']?https?:[^>]+stylesheet")
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text(encoding="utf-8"))] == []


def test_search_works_from_files(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_start_page_leads_to_every_page() -> None:
    start = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md") if page.parent.name not in {"adr", "cli", "docs"}]
    assert len(pages) > 50
    assert [str(page) for page in pages if f"({page.as_posix()})" not in start] == []
