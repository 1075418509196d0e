"""The program itself, as a process: pipes, exit statuses, start-up, completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.copies import Copy

PROGRAM = [sys.executable, "-c", "from penstock.apps.cli.main import main; main()"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program as a process that has loaded everything."""
    told = {**os.environ, **environment}
    with Copy[bytes](arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=told) as process:
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def complete(**environment: str) -> subprocess.CompletedProcess[bytes]:
    """Let a shell ask for completions."""
    return run(**{"_PENSTOCK_COMPLETE": "bash_complete", **environment})


def start(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program as a process from the beginning."""
    return subprocess.run(
        [*PROGRAM, *arguments], input=stdin, capture_output=True, env={**os.environ, **environment}, check=False
    )


def test_it_is_installed_under_its_name() -> None:
    program = Path(sys.executable).parent / "penstock"
    done = subprocess.run([program, "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"penstock ")


def test_reduce_prints_the_canonical_form_and_nothing_else() -> None:
    done = start("spki", "reduce", stdin=b"(red-test (acl (entry (subject (public-key k)) (tag (*)))))\n")
    assert done.returncode == 0
    assert done.stdout == b"(3:acl(5:entry(7:subject(10:public-key1:k))(3:tag(1:*))))"


def test_the_pipe_is_closed(tmp_path: Path) -> None:
    case = tmp_path / "case"
    # More than a pipe holds.
    case.write_bytes((b"(" + b"(a b c) " * 15_000 + b")\n") * 4)
    with subprocess.Popen([*PROGRAM, "sexp", "show", case], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait() == 3
    assert err == b""


@pytest.mark.parametrize("arguments", ["key list", "key new a.key", "explain --help", "sexp canonical"])
def test_there_is_no_standard_output(tmp_path: Path, arguments: str) -> None:
    line = f'exec "$0" -c "{PROGRAM[2]}" {arguments} >&-'
    done = subprocess.run(["/bin/sh", "-c", line, sys.executable], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
    assert not list(tmp_path.iterdir())


def test_a_terminal_without_these_characters(tmp_path: Path) -> None:
    key = str(tmp_path / "a.key")
    assert run("key", "new", key).returncode == 0
    network = ("--network", f"{key}/N", "--principal", key, "--right", "connect")
    done = start("explain", *network, PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert done.returncode == 0
    assert b"\\u2713" in done.stdout


def test_exit_statuses(tmp_path: Path) -> None:
    key = str(tmp_path / "a.key")
    assert run("key", "new", key).returncode == 0
    assert run("key", "new", key).returncode == 1
    assert run("key").returncode == 2
    assert run("key", "show", str(tmp_path)).returncode == 3


def test_answers_and_errors_go_their_own_ways() -> None:
    done = run("selector", "evaluate", "a > 1", "--attribute", "a:integer", "--set", "a=0", "-o", "json")
    assert done.returncode == 1
    assert done.stdout == b'{\n  "value": false\n}\n'
    assert b'"selector.not-true"' in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    script = run("completion", shell)
    assert script.returncode == 0
    assert b"_PENSTOCK_COMPLETE" in script.stdout
    word = "" if shell == "fish" else "2"
    words = complete(COMP_WORDS="penstock cert ", COMP_CWORD=word, _PENSTOCK_COMPLETE=f"{shell}_complete").stdout
    assert b"issue" in words
    assert b"verify" in words


def test_petnames_are_completed(tmp_path: Path) -> None:
    names = tmp_path / "names.toml"
    names.write_text(f'met = "ed25519:{"a" * 52}"\nother = "ed25519:{"a" * 52}"\n')
    for command in ("cert issue --to m", "explain --principal m", "key new-quorum --member m", "type new x --owner m"):
        line = f"penstock {command}"
        shown = complete(COMP_WORDS=line, COMP_CWORD=str(len(line.split()) - 1), PENSTOCK_NAMES=str(names)).stdout
        assert b"plain,met" in shown.splitlines()
        assert b"other" not in shown
    done = complete(COMP_WORDS="penstock name remove x", COMP_CWORD="3", PENSTOCK_NAMES="?")
    assert (done.returncode, done.stderr) == (0, b"")


def test_completion_without_a_shell_says_which_there_are() -> None:
    done = run("completion")
    assert done.returncode == 2
    assert "\ufffd" not in done.stderr.decode()
    assert b"bash, zsh, fish" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["key", "--help"], ["cert", "issue", "--help"], ["sexp", "--help"]])
def test_help_needs_no_parser_and_no_solver(arguments: list[str]) -> None:
    program = (
        "import sys; sys.argv = ['penstock', *sys.argv[1:]]\n"
        "from penstock.apps.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sorted(name for name in sys.modules if name in ('sqlglot', 'z3')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=True)
    assert done.stdout.startswith(b"Usage: penstock")
    assert done.stderr.strip() == b""


def test_the_list_of_verbs_shows_whole_sentences() -> None:
    shown = " ".join(run("policy", "--help").stdout.decode().partition("Commands:")[2].split())
    assert "rules that permit and deny the same request" in shown
    assert "..." not in shown


def test_the_list_of_commands_imports_none_of_them() -> None:
    program = (
        "import sys; sys.argv = ['penstock', '--help']\n"
        "from penstock.apps.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*(name for name in sys.modules if name in ('penstock.trust', 'penstock.crypto', 'nacl', 'rich')),"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr.strip() == b""
