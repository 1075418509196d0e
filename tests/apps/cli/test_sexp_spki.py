"""`penstock spki reduce` and `penstock sexp`: our own cases, and all of those that other implementations share."""

from pathlib import Path

from tests.apps.conftest import Shell

from penstock.codec.sexp import canonical, parse

CASE = b"""
(red-test
  (acl (entry (subject (public-key k1)) (propagate) (tag (ftp (* prefix "/pub/")))))
  (sequence (cert (issuer (public-key k1)) (subject (public-key k2)) (tag (ftp "/pub/a")))))
"""


def test_reduce_reads_any_form_from_a_file_or_standard_input(penstock: Shell) -> None:
    forms = [CASE, canonical(parse(CASE)), penstock.ok("sexp", "transport", stdin=CASE).raw]
    outs = [penstock.ok("spki", "reduce", stdin=form).raw for form in forms]
    Path("case").write_bytes(CASE)
    outs.append(penstock.ok("spki", "reduce", "case").raw)
    assert len(set(outs)) == 1
    assert parse(outs[0])[0] == b"acl"  # type: ignore[index]  # a list
    assert canonical(parse(outs[0])) == outs[0]
    shown = penstock.ok("spki", "reduce", "case", "--form", "advanced").raw
    assert canonical(parse(shown)) == outs[0]


def test_reduce_all_shared_cases(penstock: Shell, suites: Path) -> None:
    cases = sorted((suites / "spki-reduction").glob("*.in"))
    assert len(cases) == 26
    for case in cases:
        wanted = [path.read_bytes() for path in (case.with_suffix(".out"), case.with_suffix(".ou1")) if path.exists()]
        assert penstock.ok("spki", "reduce", stdin=case.read_bytes()).raw in wanted, case.name
        assert penstock.ok("spki", "reduce", str(case)).raw in wanted, case.name


def test_sexp_turns_one_form_into_another(penstock: Shell) -> None:
    whole = canonical(parse(CASE))
    advanced = penstock.ok("sexp", "show", "--width", "40", stdin=whole).raw
    transport = penstock.ok("sexp", "transport", stdin=advanced).raw
    assert transport.startswith(b"{")
    assert penstock.ok("sexp", "canonical", stdin=transport).raw == whole
    assert penstock.ok("sexp", "show", stdin=b"(a) (b)\n").out == "(a)\n(b)\n"
    for line in (("sexp", "canonical"), ("sexp", "transport")):
        assert penstock.ok(*line, "-o", "json", stdin=whole).json == {"value": transport.decode().strip()}
    assert len(penstock.ok("sexp", "show", "-o", "json", stdin=b"(a) (b)").json["values"]) == 2
    assert penstock.ok("spki", "reduce", "-o", "json", stdin=whole).json["value"].startswith("{")
