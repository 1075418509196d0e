"""Policy files are read strictly, and what they name is verified."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.pipeline.jobs_plant import FIRST, NAME, POLICY, REVOCATIONS, SECOND, build, certificate, revoke
from tests.trust.kit import NOW, grant, key, refused, who

from penstock.codec.sexp import canonical, transport
from penstock.errors import MalformedError, PenstockError
from penstock.guard import ANYTIME, Effect
from penstock.pipeline.enforce.policy import load_policy, policy_digest, read_policy_file
from penstock.pipeline.limits import PipelineLimits
from penstock.selector import ALWAYS
from penstock.store.files.policy_files import read_chain
from penstock.trust import Credentials, Right, event_tag, sign_type
from penstock.trust.signed import sign_value, statements_to_sexp
from penstock.trust.statements import OnlineKind, OnlineTerms, StatementAuthor
from penstock.trust.validity import Validity

TYPES = 'types = ["a.type"]\n'
READER = f'{TYPES}[[subscribers]]\nname = "met"\ntype = "{NAME}"\n'


def test_what_a_policy_file_says() -> None:
    found = read_policy_file(
        b'types = ["a.type"]\nhistory = ["old/*"]\nzone = "Europe/Amsterdam"\n'
        b"[facts]\non_duty = true\nsince = 2026-01-01T00:00:00+01:00\n"
        b'[[subscribers]]\nname = "met"\ntype = "T@1"\n'
        b'[[subscribers]]\nname = "night"\nprincipal = "met"\ntype = "T"\nwhere = "speed>50"\n'
    )
    assert (found.types, found.history, found.credentials) == (("a.type",), ("old/*",), ())
    assert str(found.zone) == "Europe/Amsterdam"
    assert found.facts == {"on_duty": True, "since": datetime(2025, 12, 31, 23, tzinfo=UTC)}
    met, night = found.subscribers
    assert (met.name, met.principal, met.type, met.selector) == ("met", "met", "T@1", ALWAYS)
    assert (night.principal, night.selector.text) == ("met", "speed > 50")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("types = ", "policy.syntax"),
        ("", "policy.missing"),
        ("types = []", "policy.value"),
        ('types = "a.type"', "policy.value"),
        ("types = [1]", "policy.value"),
        (TYPES + "colour = 1", "policy.unknown-key"),
        (TYPES + "subscribers = 1", "policy.value"),
        (TYPES + "subscribers = [1]", "policy.value"),
        (READER.replace('name = "met"\n', ""), "policy.missing"),
        (READER.replace(f'type = "{NAME}"\n', ""), "policy.missing"),
        (READER.replace('"met"', '""'), "policy.value"),
        (READER.replace('"met"', '"two\\nlines"'), "policy.value"),
        (READER.replace('"met"', f'"{"m" * 200}"'), "policy.value"),
        (READER + "wear = 1", "policy.unknown-key"),
        (READER + READER.removeprefix(TYPES), "policy.twice"),
        (READER + "where = 1", "policy.value"),
        (READER + 'where = "speed >"', "selector.syntax"),
        (TYPES + 'zone = "Mars/Base"', "policy.zone"),
        (TYPES + 'zone = "../etc"', "policy.zone"),
        (TYPES + "names = 1", "policy.value"),
        (TYPES + 'names = { met = "someone" }', "principal.malformed"),
        (TYPES + "names = { met = 5 }", "petname.malformed"),
        (TYPES + "domains = 1", "policy.value"),
        (TYPES + "[domains]\nmet = 1", "policy.value"),
        (TYPES + '[domains]\nmet = ""', "policy.value"),
        (TYPES + f'[domains]\nmet = "{"m" * 200}"', "policy.value"),
        (TYPES + "[facts]\non_duty = [1]", "policy.value"),
        (TYPES + "[facts]\nsince = 2026-01-01T00:00:00", "policy.value"),
        (TYPES + f"[facts]\nbig = {2**64}", "policy.value"),
        (TYPES + "[facts]\nhour = 5", "environment.reserved"),
    ],
)
def test_what_is_wrong_with_a_policy_file(text: str, code: str) -> None:
    with refused(code):
        read_policy_file(text)


def test_a_slip_is_told() -> None:
    with pytest.raises(MalformedError) as error:
        read_policy_file(TYPES + "credental = []")
    assert error.value.hint.startswith("did you mean `credentials`?")


def test_bounds(tmp_path: Path) -> None:
    tight = PipelineLimits(policy_bytes=100, policy_subscribers=1, policy_files=2, certificates=2)
    with refused("policy.limit"):
        read_policy_file(TYPES + "#" * 100, limits=tight)
    with refused("policy.limit"):
        read_policy_file(READER + READER.removeprefix(TYPES), limits=PipelineLimits(policy_subscribers=1))
    policy = str(build(tmp_path / "plant"))
    for limits in (PipelineLimits(policy_files=2), PipelineLimits(certificates=2)):
        with refused("policy.limit"):
            load_policy(policy, NOW, limits=limits)
    with refused("file.limit"):
        load_policy(policy, NOW, limits=tight)


def test_what_it_names_is_verified_and_decides(tmp_path: Path) -> None:
    loaded = load_policy(str(build(tmp_path / "plant")), NOW)
    assert [verified.event_type.name for verified in loaded.types] == [FIRST.name, SECOND.name]
    assert [s.name for s in loaded.subscribers] == ["statistics", "engineer", "auditor", "stranger"]
    effects = [loaded.decide(s.principal, Right.SUBSCRIBE, s.type).effect for s in loaded.subscribers]
    assert effects == [Effect.PERMIT, Effect.PERMIT, Effect.PERMIT, Effect.DENY]
    assert loaded.decide(who(2), Right.PUBLISH, loaded.types[0]).effect is Effect.PERMIT
    assert loaded.names.show(who(4)) == "statistics"


def test_petnames_may_stand_in_a_file(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    table = POLICY.split("names = ")[1].split("\n")[0]
    policy.write_text(POLICY.replace(table, '"names.toml"'), encoding="utf-8")
    with refused("file.missing"):
        load_policy(str(policy), NOW)
    (policy.parent / "names.toml").write_text(f'statistics = "{who(4)}"\nengineer = "{who(5)}"\n', encoding="utf-8")
    assert load_policy(str(policy), NOW).subscribers[1].principal == who(5)


def test_domains_say_who_is_at_home_where(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    assert load_policy(str(policy), NOW).domains == ()
    homes = f'{POLICY}\n[domains]\nstatistics = "office"\n"{who(1)}" = "plant"\n"{who(2)}" = "plant"\n'
    policy.write_text(homes, encoding="utf-8")
    loaded = load_policy(str(policy), NOW)
    assert {domain.name: set(domain.members()) for domain in loaded.domains} == {
        "office": {who(4)},
        "plant": {who(1), who(2)},
    }
    assert loaded.revision == load_policy(str(build(tmp_path / "other")), NOW).revision
    # The same principal by its name and by its key.
    policy.write_text(f'{homes}"{who(4)}" = "office"\n', encoding="utf-8")
    assert load_policy(str(policy), NOW).domains == loaded.domains
    policy.write_text(f'{homes}"{who(4)}" = "plant"\n', encoding="utf-8")
    with refused("policy.twice"):
        load_policy(str(policy), NOW)
    policy.write_text(f'{homes}nobody = "plant"\n', encoding="utf-8")
    with refused("policy.principal"):
        load_policy(str(policy), NOW)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"*.type"', '"*.typ"', "policy.no-match"),
        ('"*.type"', '"reading.type"', "file.missing"),
        ('"*.type"', '"certs/engineer.cert"', "type.malformed"),
        ('["certs/*.cert"]', '["**/*"]', "file.unreadable"),
        (f'"{NAME}@1"', f'"{NAME}@2"', "policy.type"),
        (f'"{NAME}@1"', f'"{who(2)}/{NAME}@1"', "policy.type"),
        ('principal = "statistics"', 'principal = "statistic"', "policy.principal"),
        ("value <>", "speed <>", "selector.unknown-attribute"),
    ],
)
def test_what_is_wrong_with_what_it_names(tmp_path: Path, old: str, new: str, code: str) -> None:
    policy = build(tmp_path / "plant")
    assert old in POLICY
    policy.write_text(POLICY.replace(old, new), encoding="utf-8")
    with refused(code) as caught:
        load_policy(str(policy), NOW)
    assert str(policy) in caught.value.message or "plant" in caught.value.message


def test_two_definitions_of_one_version_are_refused(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    other = replace(FIRST, attributes=FIRST.attributes[:2])
    (policy.parent / "other.type").write_bytes(sign_type(other, key(1)).to_bytes())
    with refused("policy.twice"):
        load_policy(str(policy), NOW)
    shutil.copy(policy.parent / "reading-0.type", policy.parent / "other.type")
    assert len(load_policy(str(policy), NOW).types) == 2, "the same definition twice is one"


def test_a_type_that_was_changed_is_refused(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    file = policy.parent / "reading-0.type"
    file.write_bytes(file.read_bytes().replace(b"region", b"rogion"))
    with refused("type.signature-mismatch", "key.bad-signature"):
        load_policy(str(policy), NOW)


def test_conditions_about_facts_count_where_the_policy_gives_them(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    tag = event_tag(who(1), NAME, None, [Right.SUBSCRIBE], when=["on_duty"])
    (policy.parent / "certs" / "duty.cert").write_bytes(Credentials.of(grant(1, 3, tag)).to_bytes())
    plain = load_policy(str(policy), NOW)
    assert plain.decide(who(3), Right.SUBSCRIBE, plain.types[0]).effect is Effect.INDETERMINATE
    policy.write_text(
        POLICY.replace("[[subscribers]]", "[facts]\non_duty = true\n[[subscribers]]", 1), encoding="utf-8"
    )
    knowing = load_policy(str(policy), NOW)
    assert knowing.decide(who(3), Right.SUBSCRIBE, knowing.types[0]).effect is Effect.PERMIT


def test_zone_and_facts_are_part_of_a_policy_and_of_its_revision(tmp_path: Path) -> None:
    file = build(tmp_path / "plant")
    found = [load_policy(str(file), NOW)]
    for text in ('zone = "UTC"', 'zone = "Europe/Amsterdam"', 'zone = "Europe/London"', "facts = { on_duty = true }"):
        file.write_text(f"{text}\n{POLICY}", encoding="utf-8")
        found.append(load_policy(str(file), NOW))
    assert [str(policy.zone) for policy in found] == ["UTC", "UTC", "Europe/Amsterdam", "Europe/London", "UTC"]
    assert found[-1].facts == {"on_duty": True}
    first, same, *others = (policy.revision for policy in found)
    assert first == same
    assert len({first, *others}) == 4


WORDS = st.sampled_from(
    [
        *("types", "history", "credentials", "names", "subscribers", "domains", "zone", "facts"),
        *("name", "principal", "type", "where"),
    ]
)
VALUES = st.recursive(
    st.sampled_from(['"a"', '""', "1", "true", "2026-01-01T00:00:00Z", "nan", '"UTC"', '"x > 1"', "1e999"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]")
        | st.dictionaries(WORDS, inner, max_size=3).map(
            lambda t: f"{{{', '.join(f'{k} = {v}' for k, v in t.items())}}}"
        )
    ),
    max_leaves=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=5), st.binary(max_size=20))
def test_no_file_does_anything_but_load_or_be_refused(table: dict[str, str], tail: bytes) -> None:
    text = "".join(f"{key_} = {value}\n" for key_, value in table.items()).encode()
    for data in (text, text + tail, b'types = ["a"]\n' + text):
        try:
            found = read_policy_file(data)
        except PenstockError as error:
            assert error.exit_status == 2  # noqa: PT017  # either is right
        else:
            assert found.types


def test_what_owners_revoked(tmp_path: Path) -> None:
    file = build(tmp_path / "plant")
    before = load_policy(str(file), NOW)
    revoke(file.parent, 5, "statistics")
    revoke(file.parent, 6, "statistics", "engineer")
    file.write_text(REVOCATIONS + POLICY)
    policy = load_policy(str(file), NOW)
    assert policy.revision != before.revision
    for subscriber, seconds in (("statistics", 5), ("engineer", 6)):
        reader = next(one for one in policy.subscribers if one.name == subscriber)
        (branch,) = policy.decide(reader.principal, Right.SUBSCRIBE, reader.type).restriction.branches
        assert branch.because == (certificate(file.parent, subscriber),)
        assert branch.when.validity.ends == NOW + timedelta(seconds=seconds, microseconds=-1)
    # What speaks of none of the certificates changes nothing.
    (file.parent / "owner.chain").unlink()
    revoke(file.parent, 5, "statistics", by=3)
    other = load_policy(str(file), NOW)
    reader = other.subscribers[0]
    assert other.decide(reader.principal, Right.SUBSCRIBE, reader.type).restriction.branches[0].when == ANYTIME


def test_statements_say_when_on_line_tests_held(tmp_path: Path) -> None:
    file = build(tmp_path / "plant")
    test = OnlineTerms(OnlineKind.CRL, who(9)).to_test()
    tag = event_tag(who(1), NAME, None, [Right.SUBSCRIBE])
    tested = grant(1, 3, tag, validity=Validity(online=(test,)))
    (file.parent / "certs" / "tested.cert").write_bytes(Credentials.of(tested).to_bytes())
    plain = load_policy(str(file), NOW)
    assert plain.decide(who(3), Right.SUBSCRIBE, plain.types[0]).effect is not Effect.PERMIT
    author, hour = StatementAuthor(key(9)), timedelta(hours=1)
    made = [author.revocation_list(NOW, hour, revoked) for revoked in ([], [tested.id], [], [])]
    (file.parent / "all.statements").write_bytes(canonical(statements_to_sexp(made)))
    file.write_text('statements = ["all.statements"]\n' + POLICY)
    policy = load_policy(str(file), NOW)
    assert policy.revision != plain.revision
    assert policy_digest(str(file))
    branches = policy.decide(who(3), Right.SUBSCRIBE, policy.types[0]).restriction.branches
    periods = sorted((one.when.validity.starts, one.when.validity.ends) for one in branches)
    last = timedelta(microseconds=-1)
    assert periods == [(NOW, NOW + hour + last), (NOW + 2 * hour, NOW + 4 * hour + last)]
    forged = (
        canonical(statements_to_sexp(made)).replace(b"reval", b"crl").replace(tested.id.encode(), b"cert:" + b"a" * 52)
    )
    (file.parent / "all.statements").write_bytes(forged)
    with refused("evolution.signature-mismatch"):
        load_policy(str(file), NOW)


def test_orders_that_do_not_hold_are_refused(tmp_path: Path) -> None:
    file = build(tmp_path / "plant")
    chain = file.parent / "owner.chain"
    file.write_text(REVOCATIONS + POLICY)
    with refused("file.missing"):
        load_policy(str(file), NOW)
    revoke(file.parent, 5, "statistics")
    whole = chain.read_bytes()
    for wrong, code in (
        (whole.replace(b"}", b"A}", 1), "evolution.broken"),
        (b"(policy)\n" + whole, "evolution.broken"),
        (whole[:-9], "evolution.torn"),
        (forged(whole), "evolution.broken"),
    ):
        chain.write_bytes(wrong)
        with refused(code) as error:
            load_policy(str(file), NOW)
        assert "owner.chain" in error.value.message
    chain.write_bytes(whole)
    (file.parent / "copy.chain").write_bytes(whole)
    file.write_text(REVOCATIONS.replace("owner", "*") + POLICY)
    with refused("policy.twice"):
        load_policy(str(file), NOW)


def forged(chain: bytes) -> bytes:
    """Return the same order, signed by somebody else."""
    value = read_chain(chain).events[0].value
    match sign_value(replace(value, owner=who(3)), key(3)).to_sexp():
        case (bytes(head), _, tuple(signature)):
            return transport((head, value.to_sexp(), signature)) + b"\n"
    raise AssertionError("not as values are signed")


def test_a_digest_changes_with_everything_that_a_policy_names(tmp_path: Path) -> None:
    file = build(tmp_path / "plant")
    revoke(file.parent, 5, "statistics")
    file.write_text(REVOCATIONS + POLICY)
    found = [policy_digest(str(file))]
    assert policy_digest(str(file)) == found[0]
    revoke(file.parent, 6, "engineer")
    found.append(policy_digest(str(file)))
    (file.parent / "certs" / "more.cert").write_bytes(b"")
    found.append(policy_digest(str(file)))
    (file.parent / "certs" / "more.cert").rename(file.parent / "certs" / "renamed.cert")
    found.append(policy_digest(str(file)))
    file.write_text(REVOCATIONS + POLICY + "# more\n")
    found.append(policy_digest(str(file)))
    assert len(set(found)) == len(found)
