import pytest

from penstock.errors import MalformedError
from penstock.policy.language.datatypes import (
    mailbox_matches,
    read_directory_name,
    read_host_name,
    read_mailbox,
    read_network_address,
)


@pytest.mark.parametrize(
    ("pattern", "mailbox", "matches"),
    [
        ("Anderson@sun.com", "Anderson@SUN.COM", True),
        ("anderson@sun.com", "Anderson@sun.com", False),
        ("sun.com", "Anderson@sun.com", True),
        ("sun.com", "Baxter@East.Sun.com", False),
        (".sun.com", "Baxter@East.Sun.com", True),
        # The examples of the standard (A.3.14).
        ("Anderson@sun.com", "Anderson@east.sun.com", False),
        ("sun.com", "Baxter@SUN.COM", True),
        (".east.sun.com", "Anderson@east.sun.com", True),
        (".east.sun.com", "anne.anderson@ISRG.EAST.SUN.COM", True),
        (".east.sun.com", "Anderson@sun.com", False),
        (".east.sun.com", "Anderson@northeast.sun.com", False),
        (".East.SUN.com", "Anderson@east.sun.com", True),
    ],
)
def test_mailboxes(pattern: str, mailbox: str, matches: bool) -> None:  # a column of the table
    assert mailbox_matches(pattern, read_mailbox(mailbox)) is matches


@pytest.mark.parametrize("pattern", ["", ".", "..", "sun..com", ".sun.com.", "sun.com.", "@sun.com", "a@", "s un.com"])
def test_a_pattern_that_names_no_mailbox_is_an_error(pattern: str) -> None:
    with pytest.raises(MalformedError) as caught:
        mailbox_matches(pattern, read_mailbox("Anderson@sun.com"))
    assert caught.value.code == "xacml.value"


def test_names_of_directories_compare_as_they_are_meant() -> None:
    one = read_directory_name("cn=Julius  Hibbert, o=Medi Corp, c=US")
    assert one == read_directory_name("CN=julius hibbert,O=Medi\\ Corp,C=us")
    assert one == read_directory_name('cn="Julius Hibbert",o=Medi Corp;c=US')
    assert one != read_directory_name("cn=Julius Hibbert, o=Other, c=US")
    assert read_directory_name("a=1+b=2") == read_directory_name("b=2+a=1")
    assert read_directory_name("cn=a\\2Cb") == read_directory_name("cn=a\\,b")


def test_a_name_ends_with_another() -> None:
    whole = read_directory_name("cn=Julius Hibbert, o=Medi Corp, c=US")
    assert read_directory_name("o=Medi Corp, c=US").ends(whole)
    assert not read_directory_name("cn=Julius Hibbert, o=Medi Corp").ends(whole)
    assert not whole.ends(read_directory_name("c=US"))


def test_a_name_without_parts_matches_nothing_and_is_an_error() -> None:
    with pytest.raises(MalformedError) as caught:
        read_directory_name("").ends(read_directory_name("c=US"))
    assert caught.value.code == "xacml.value"


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "10.0.0.1/255.255.0.0:80", "[2001:DB8:0::1]", "[::1]/[ffff::]:1-", "1.2.3.4:-9"]
)
def test_addresses_are_written_as_they_are_read(text: str) -> None:
    assert str(read_network_address(text)) == text


@pytest.mark.parametrize("text", ["example.com", "*.Example.COM:80-90", "*"])
def test_hosts_are_written_as_they_are_read(text: str) -> None:
    assert str(read_host_name(text)) == text


def test_they_compare_as_they_are_meant() -> None:
    assert read_mailbox("a@B.c") == read_mailbox("a@b.C") != read_mailbox("A@b.c")
    assert str(read_mailbox("a@B.c")) == "a@B.c"
    assert read_host_name("A.b:80") == read_host_name("a.B:80-80")
    assert read_network_address("[2001:DB8::1]") == read_network_address("[2001:db8:0::1]")
    assert len({read_mailbox("a@B.c"), read_mailbox("a@b.c")}) == 1


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_mailbox, "nobody"),
        (read_mailbox, "a@b@c"),
        (read_mailbox, "a@b."),
        (read_mailbox, "a@.b"),
        (read_mailbox, "a@b..c"),
        (read_directory_name, "cn=a,,o=b"),
        (read_directory_name, "cn=a,"),
        (read_directory_name, "cn=a+,o=b"),
        (read_directory_name, "no sign"),
        (read_network_address, "10.0.0"),
        (read_network_address, "10.0.0.1:99999"),
        (read_network_address, "[::1"),
        (read_host_name, "a..b"),
        (read_host_name, "a.*.b"),
        (read_host_name, "a:b"),
        (read_host_name, "a" * 300),
    ],
)
def test_what_is_none_is_refused(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(MalformedError) as caught:
        read(text)
    assert caught.value.code == "xacml.value"
