"""Sealed blocks: who has keys reads what was sealed and nothing else; what was changed or moved does not open."""

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.crypto.seal_kit import (
    BROKER,
    NOW,
    OTHER,
    PARENT,
    TYPE,
    attribute,
    attributes,
    block_of,
    blocks,
    code_of,
    fresh,
    ring,
    secret,
    small,
)
from tests.spoiled import flipped

from penstock.codec import blocks as blocks_module
from penstock.codec.blocks import (
    FIRST,
    Block,
    Level,
    Padding,
    PlainNames,
    encode_block,
    join,
    names,
    read_block,
    read_header,
    reroute,
    split,
    write_block,
    write_route,
)
from penstock.codec.columns import encode_column
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.blinding import Directory, blind
from penstock.crypto.limits import CryptoLimits
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing, column_scope
from penstock.crypto.sealer import Sealer, SealerSettings
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError, PenstockError

ALL = attributes(5)
REFUSED = {"seal.cannot-open", "seal.unknown-key", "block.malformed", "block.limit"}
NAMES_TOO = {"name.malformed", "principal.malformed", "seal.unknown-label"}
DEFAULT = SealerSettings()
SETTINGS = [SealerSettings(algorithm, padding) for algorithm in CipherAlgorithm for padding in Padding]


def sealer(keys: KeyRing | None = None, settings: SealerSettings = DEFAULT) -> Sealer:
    return Sealer(keys or ring(ALL), BROKER.principal, fresh, settings=settings)


@settings(max_examples=examples(150), deadline=None)
@given(blocks(), st.sampled_from(SETTINGS), st.sampled_from(Level))
def test_what_was_sealed_is_opened(block: Block, setting: SealerSettings, level: Level) -> None:
    data = sealer(settings=setting).seal(block, NOW, level)
    assert Opener(ring(ALL)).open(data) == block
    header = read_header(data)
    assert header.sender == BROKER.principal
    assert (header.time, header.rows, header.number) == (NOW, len(block.ids), 0)
    assert header.fixed.level is level
    assert header.route == PlainNames(block.names)


def test_nan_is_opened() -> None:
    for column in ([nan], [nan, 1.0, nan]):
        for level in Level:
            opened = Opener(ring(ALL)).open(sealer().seal(block_of(column), NOW, level))
            assert [isnan(value) for value in opened.columns[0] or ()] == [isnan(value) for value in column]


def test_nothing_of_a_value_is_in_the_clear() -> None:
    block = block_of(["AE05 XYZ 1234567890"], ["Victoria Embankment"])
    for level in Level:
        data = sealer().seal(block, NOW, level)
        for value in (b"AE05", b"Victoria", b"event-0"):
            assert value not in data
        assert "AE05" not in repr(block)


def test_a_reader_without_a_key_gets_none() -> None:
    block = small()
    data = sealer().seal(block, NOW)
    held = [ALL[0], ALL[2]]
    opened = Opener(ring(held)).open(data)
    assert opened.columns == [block.columns[0], None, block.columns[2]]
    assert (opened.ids, opened.times) == (block.ids, block.times)
    assert [[*event.values] for event in opened.events()] == [held, []]
    # The key of another attribute under this name, or of another epoch, is not a key.
    for wrong in (secret(ALL[0], 7), secret(ALL[1], 8), Secret(fresh(32))):
        keys = ring(held)
        keys.put(ALL[1], 7, wrong)
        assert code_of(Opener(keys).open, data) == "seal.cannot-open"


def test_only_what_is_wanted_is_opened() -> None:
    block = small()
    for level in Level:
        data = sealer().seal(block, NOW, level)
        opened = Opener(ring(ALL)).open(data, {ALL[1]})
        assert opened.columns == [None, block.columns[1], None]
        assert Opener(ring(ALL)).open(data, ()).columns == [None, None, None]


def test_at_event_level_it_is_all_or_nothing() -> None:
    data = sealer().seal(small(), NOW, Level.EVENT)
    assert Opener(ring([])).open(data) == small()
    assert code_of(Opener(ring(ALL, whole=False)).open, data) == "seal.unknown-key"


def test_a_key_that_is_not_held_is_said_so_before_anything_is_tried() -> None:
    data = sealer().seal(small(), NOW)
    keys = ring(ALL, epochs=[6, 8])
    opener = Opener(keys)
    assert code_of(opener.open, data) == "seal.unknown-key"
    # When the keys come, what has waited opens.
    keys.put(str(TYPE), 7, secret(str(TYPE), 7))
    assert opener.open(data).columns == [None] * 3
    keys.put(ALL[1], 7, secret(ALL[1], 7))
    assert opener.open(data).columns == [None, small().columns[1], None]
    keys.drop(ALL[1], 7)
    assert opener.open(data).columns == [None] * 3
    keys.drop(str(TYPE), 7)
    assert code_of(opener.open, data) == "seal.unknown-key"


def test_each_scope_has_its_own_epochs() -> None:
    keys = ring(ALL)
    keys.put(ALL[1], 12, secret(ALL[1], 12))
    data = sealer(keys).seal(small(), NOW)
    assert read_header(data).fixed.epochs == (7, 7, 12, 7)
    assert Opener(keys).open(data) == small()
    assert Opener(ring(ALL)).open(data).columns[1] is None


def route_of(data: bytes) -> range:
    """Return where the route stands, which hops may change."""
    parts = read_block(data)
    return range(len(parts.bound), len(parts.bound) + len(parts.route))


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("setting", [SealerSettings(), SealerSettings(CipherAlgorithm.AES_EAX, Padding.POWERS)])
def test_any_bit_that_is_flipped_is_refused(level: Level, setting: SealerSettings) -> None:
    data = sealer(settings=setting).seal(small(), NOW, level)
    opener = Opener(ring(ALL, epochs=[5, 6, 7]))
    assert opener.open(data) == small()
    route = route_of(data)
    for place in range(len(data)):
        for bit in range(8):
            code = code_of(opener.open, flipped(data, place, bit))
            assert code in REFUSED | NAMES_TOO if place in route else code in REFUSED


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_any_bit_of_a_large_block_that_is_flipped_is_refused(data: st.DataObject) -> None:
    sealed = large()
    place = data.draw(st.integers(0, len(sealed) - 1).filter(lambda place: place not in route_of(sealed)))
    assert code_of(OPENER.open, flipped(sealed, place, data.draw(st.integers(0, 7)))) in REFUSED


OPENER = Opener(ring(ALL))
LARGE: list[bytes] = []


def large() -> bytes:
    if not LARGE:
        LARGE.append(sealer().seal(block_of(*[[f"{place:030}" for place in range(2_000)] for _ in ALL]), NOW))
    return LARGE[0]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2_000), st.binary(max_size=40))
def test_what_is_cut_or_longer_is_refused(length: int, more: bytes) -> None:
    data = sealer().seal(small(), NOW)
    opener = Opener(ring(ALL))
    assert code_of(opener.open, data[: length % len(data)]) in REFUSED
    if more:
        assert code_of(opener.open, data + more) in REFUSED
        assert code_of(opener.open, more + data) in REFUSED


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300))
def test_octets_of_any_kind_are_refused(octets: bytes) -> None:
    good = sealer().seal(small(), NOW)
    for data in (octets, good[:54] + octets, good[:110] + octets):
        assert code_of(Opener(ring(ALL)).open, data) in REFUSED | NAMES_TOO


def test_a_cut_tag_does_not_open() -> None:
    header, columns = split(sealer().seal(small(), NOW))
    for name in columns:
        for kept in (0, 1, 15, len(columns[name]) - 1):
            cut = {**columns, name: columns[name][:kept]}
            assert code_of(Opener(ring(ALL)).open, join(header, cut)) == "seal.cannot-open"


def others() -> Iterator[bytes]:
    """Yield blocks that differ from another in one thing: whatever is taken from them belongs elsewhere."""
    incarnation = b"i" * 16
    first = Sealer(ring(ALL), BROKER.principal, lambda _: incarnation)
    first.seal(small(), NOW)
    yield first.seal(small(1), NOW)
    yield Sealer(ring(ALL), OTHER.principal, lambda _: incarnation).seal(small(1), NOW)
    yield Sealer(ring(ALL), BROKER.principal, fresh).seal(small(1), NOW)
    yield Sealer(ring(ALL, epochs=[8]), BROKER.principal, lambda _: incarnation).seal(small(1), NOW)
    yield Sealer(ring(ALL), BROKER.principal, lambda _: incarnation).seal(small(1), NOW.replace(year=2027))
    yield Sealer(ring(ALL), BROKER.principal, lambda _: incarnation).seal(block_of(["a"], [1], [True]), NOW)
    wide = block_of(["a", "b"], [1, 2], [True, None], ["d", "e"])
    yield Sealer(ring(ALL), BROKER.principal, lambda _: incarnation).seal(wide, NOW)
    renamed = replace(small(1), names=names(TYPE, (), wide.names.attributes[:3]))
    yield Sealer(ring(ALL), BROKER.principal, lambda _: incarnation).seal(renamed, NOW)


@pytest.mark.parametrize("other", [*others()])
def test_columns_cannot_be_spliced(other: bytes) -> None:
    data = Sealer(ring(ALL), BROKER.principal, lambda _: b"i" * 16).seal(small(), NOW)
    opener = Opener(ring(ALL, epochs=[7, 8]))
    header, columns = split(data)
    theirs = split(other)[1]
    for name in columns:
        mixed = join(header, {**columns, name: theirs[name]})
        assert code_of(opener.open, mixed) == "seal.cannot-open"
    # Nor can everything be taken over under another header.
    assert code_of(opener.open, join(header, {name: theirs[name] for name in columns})) == "seal.cannot-open"


def test_columns_cannot_change_places() -> None:
    # Of the same values, in the same block: only the key and the place differ.
    block = block_of(["same", "same"], ["same", "same"])
    data = sealer().seal(block, NOW)
    header, columns = split(data)
    one, two = ALL[:2]
    swapped = join(header, {**columns, one: columns[two], two: columns[one]})
    assert code_of(Opener(ring(ALL)).open, swapped) == "seal.cannot-open"
    # Even where both attributes have one epoch key, as if they were one.
    keys = ring(ALL)
    keys.put(two, 7, secret(one, 7))
    header, columns = split(sealer(keys).seal(block, NOW))
    swapped = join(header, {**columns, one: columns[two], two: columns[one]})
    assert code_of(Opener(keys).open, swapped) == "seal.cannot-open"


def test_attributes_cannot_be_renamed_reordered_or_left_out() -> None:
    data = sealer().seal(small(), NOW)
    opener = Opener(ring(ALL))
    found = small().names
    for attributes_ in (ALL[1::-1] + ALL[2:3], ALL[:2] + ALL[3:4]):
        other = reroute(data, PlainNames(names(found.type, found.ancestors, attributes_)))
        assert code_of(opener.open, other) == "seal.cannot-open"
    parts = read_block(data)
    columns = [column for column in parts.columns if column is not None]
    fewer = PlainNames(names(found.type, found.ancestors, ALL[:2]))
    assert code_of(opener.open, reroute(data, fewer)) == "block.malformed"
    head = parts.bound[:5] + b"\3" + parts.bound[6:-28] + parts.bound[-20:]
    without = write_block(head, write_route(fewer), b"", columns[:3])
    assert code_of(opener.open, without) == "seal.cannot-open"


def test_other_ancestors_are_refused() -> None:
    data = sealer().seal(small(), NOW)
    other = reroute(data, PlainNames(names(TYPE, (), small().names.attributes)))
    assert code_of(Opener(ring(ALL)).open, other) == "seal.cannot-open"


def test_hops_may_change_the_route() -> None:
    data = sealer().seal(small(), NOW)
    old, new = Secret(fresh(32)), Secret(fresh(32))
    directory = Directory()
    directory.add(old, (TYPE, *small().names.ancestors), ALL)
    directory.add(new, (TYPE, *small().names.ancestors), ALL)
    opener = Opener(ring(ALL), directory)
    for key in (old, new):
        blinded = reroute(data, blind(key, small().names))
        assert TYPE.name.encode() not in blinded
        assert opener.open(blinded) == small()
        assert code_of(Opener(ring(ALL)).open, blinded) == "seal.unknown-label"
        # Back to the bytes that were there.
        assert reroute(blinded, PlainNames(small().names)) == data
    directory.remove(old, (TYPE,), ())
    assert code_of(opener.open, reroute(data, blind(old, small().names))) == "seal.unknown-label"
    directory.add(old, (TYPE,), ())
    # Labels of other attributes say something else, and then nothing opens.
    lying = blind(old, names(TYPE, small().names.ancestors, ALL[1:4]))
    assert code_of(opener.open, reroute(data, lying)) == "seal.cannot-open"


@settings(max_examples=examples(50), deadline=None)
@given(blocks(), st.sampled_from(Level))
def test_a_log_keeps_the_parts_apart(block: Block, level: Level) -> None:
    data = sealer().seal(block, NOW, level)
    header, columns = split(data)
    assert join(header, columns) == data
    assert [*columns] == ([FIRST] if level is Level.EVENT else [FIRST, *block.names.attributes])
    assert Opener(ring(ALL)).open_parts(header, columns) == block


def test_a_reader_of_a_log_reads_only_the_columns_it_wants() -> None:
    header, columns = split(sealer().seal(small(), NOW))
    opener = Opener(ring(ALL))
    some = {FIRST: columns[FIRST], ALL[1]: columns[ALL[1]]}
    assert opener.open_parts(header, some, {ALL[1]}).columns == [None, small().columns[1], None]
    # What is wanted and not there is no null.
    for missing in (FIRST, ALL[1]):
        less = {name: column for name, column in some.items() if name != missing}
        assert code_of(opener.open_parts, header, less, {ALL[1]}) == "seal.cannot-open"
    assert code_of(opener.open_parts, header, some) == "seal.cannot-open"
    assert code_of(opener.open_parts, header + b"\0", some, ()) == "block.malformed"
    assert code_of(join, header, some) == "block.malformed"


def test_blocks_of_nothing_but_nulls_are_bounded() -> None:
    rows = 1_000
    block = block_of(*[[None] * rows] * 5)
    for level in Level:
        data = sealer().seal(block, NOW, level)
        opener = Opener(ring(ALL), limits=CryptoLimits(block_cells=rows * 6 - 1))
        assert code_of(opener.open, data) == "block.limit"
        assert Opener(ring(ALL), limits=CryptoLimits(block_cells=rows * 6)).open(data) == block


@pytest.mark.parametrize(
    "limits", [CryptoLimits(block_bytes=100), CryptoLimits(block_rows=1), CryptoLimits(block_names=20)]
)
def test_blocks_are_bounded(limits: CryptoLimits) -> None:
    data = sealer().seal(small(), NOW)
    assert code_of(Opener(ring(ALL), limits=limits).open, data) == "block.limit"


def test_streams_that_do_not_open_push_out_no_others() -> None:
    opener = Opener(ring(ALL), limits=CryptoLimits(seal_streams=2))
    good = [sealer().seal(small(), NOW) for _ in range(3)]
    opener.open(good[0])
    known = dict(opener._ways)
    for _ in range(5):
        foreign = Sealer(_strange(), BROKER.principal, fresh).seal(small(), NOW)
        assert code_of(opener.open, foreign) == "seal.cannot-open"
    assert opener._ways == known
    assert [opener.open(data) for data in good] == [small()] * 3
    assert len(opener._ways) == 2


def _strange() -> KeyRing:
    keys = KeyRing()
    for scope in (str(TYPE), *(column_scope(TYPE, one) for one in ALL)):
        keys.put(scope, 7, Secret(fresh(32)))
    return keys


def test_every_failure_looks_the_same() -> None:
    data = sealer().seal(small(), NOW)
    header, columns = split(data)
    wrong_key = ring(ALL)
    wrong_key.put(str(TYPE), 7, Secret(fresh(32)))
    failures: list[Callable[[], object]] = [
        lambda: Opener(wrong_key).open(data),
        lambda: Opener(ring(ALL)).open(flipped(data)),
        lambda: Opener(ring(ALL)).open(join(header, {**columns, FIRST: b""})),
        lambda: Opener(ring(ALL)).open(_badly_encoded()),
    ]
    seen = set()
    for failure in failures:
        with pytest.raises(PenstockError) as caught:
            failure()
        seen.add((type(caught.value), str(caught.value), caught.value.hint, str(caught.value.fields)))
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
    assert len(seen) == 1


def _badly_encoded() -> bytes:
    """Return a block whose column opens and is not a column: its sender does not keep to the format."""
    wrong = encode_block(small())._replace(columns=[b"\x7fnothing"] * 3)
    return sealer().seal_encoded(wrong, NOW)


def test_columns_that_are_octets_already() -> None:
    encoded = encode_block(small())
    for level in Level:
        data = sealer().seal_encoded(encoded, NOW, level)
        assert Opener(ring(ALL)).open(data) == small()
        assert Opener(ring(ALL)).open_encoded(*split(data)) == encoded
        some = Opener(ring(ALL)).open_encoded(*split(data), {ALL[1]})
        assert some == encoded._replace(columns=[None, encoded.columns[1], None])


def test_ids_are_strings_and_times_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode_block(small())
    wrong = [
        good._replace(ids=encode_column([1, 2])),
        good._replace(ids=encode_column(["a", None])),
        good._replace(ids=b""),
        good._replace(times=encode_column(["a", "b"])),
        good._replace(times=b""),
    ]
    for encoded in wrong:
        assert code_of(sealer().seal_encoded, encoded, NOW) == "block.malformed"
    # A sender who does not look is not believed.
    with monkeypatch.context() as patch:
        patch.setattr(blocks_module, "_check_common", lambda *_: None)
        lies = [sealer().seal_encoded(encoded, NOW, level) for encoded in wrong for level in Level]
    for data in lies:
        assert code_of(Opener(ring(ALL)).open, data) == "seal.cannot-open"


def test_openers_and_keys_stay_where_they_are() -> None:
    opener = Opener(ring(ALL))
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        for value in (opener, secret("scope", 1), sealer()):
            with pytest.raises(TypeError):
                act(value)
    key = secret(ALL[0], 7)
    for shown in (opener, ring(ALL), sealer(), key):
        assert key.expose().hex() not in repr(shown)
        assert repr(key.expose())[2:-1] not in repr(shown)


def test_an_unknown_algorithm_is_refused() -> None:
    data = bytearray(sealer().seal(small(), NOW))
    data[2] = 9
    with pytest.raises(MalformedError):
        Opener(ring(ALL)).open(bytes(data))
    assert attribute(1) in small().names.attributes


def test_a_right_on_a_sub_type_opens_nothing_of_its_parent() -> None:
    """What a type inherits has a key of its own: a broker that may read a sub-type need not read the parent."""
    inherited = str(attribute(0))
    above = Block(names(PARENT, (), (inherited,)), ["1"], [NOW], [["AE05 XYZ"]])
    both = ring(ALL)
    for scope in (str(PARENT), column_scope(PARENT, inherited)):
        both.put(scope, 7, secret(scope, 7))
    data = Sealer(both, BROKER.principal, fresh).seal(above, NOW)
    assert Opener(both).open(data) == above
    below = ring(ALL)
    assert code_of(Opener(below).open, data) == "seal.unknown-key"
    below.put(str(PARENT), 7, secret(str(PARENT), 7))
    assert Opener(below).open(data).columns == [None]
