"""The rule base among the examples: its conflicts are found, and there are proposals."""

from click.testing import CliRunner
from tests.examples.running import ROOT

from penstock.apps.cli.main import cli

FILE = str(ROOT / "examples" / "rules" / "press-line.yaml")


def moderator(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(cli, ["moderator", *arguments])
    return ran.exit_code, ran.stdout


def test_what_its_comments_promise() -> None:
    status, out = moderator("check", FILE)
    assert status == 1
    assert "bolt-line on Line conflicts with rule acme-press on Line.Press, below it" in out
    assert "bolt-paint on Line.Paint conflicts with rule bolt-line on Line, above it" in out
    status, out = moderator("propose", "bolt-line", "--file", FILE)
    assert status == 0
    assert "1. add-attributes: " in out
    assert "2. follow: " in out
    assert "After this, everybody can receive Line from bolt: wider than bolt-line asks for." in out
    status, out = moderator("allow", "Line.Press", "--file", FILE)
    assert status == 0
    assert "✓ cyd receives Line.Press from acme" in out
    assert "✗ bob does not receive Line.Press from acme" in out
