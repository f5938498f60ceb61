"""``traceparent`` is parsed as W3C Trace Context specifies; invalid text is None."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from routewright.wire.ids import RANDOM, SAMPLED, parse_traceparent, span_id_of
from tests.tables import table

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"
HEX = "0123456789abcdef"


def digits(count: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=count, max_size=count)


ids = st.tuples(digits(32), digits(16)).filter(lambda pair: all(each.strip("0") for each in pair))
later = digits(2).filter(lambda version: version not in ("00", "ff"))


@given(ids, digits(2))
def test_version_00_is_read_and_written_as_it_was_but_for_bits_that_mean_nothing(
    pair: tuple[str, str], flags: str
) -> None:
    found = parse_traceparent(f"00-{pair[0]}-{pair[1]}-{flags}")
    assert found == (*pair, int(flags, 16) & (SAMPLED | RANDOM))
    assert found.text == f"00-{pair[0]}-{pair[1]}-{int(flags, 16) & 3:02x}"
    assert parse_traceparent(found.text) == found


@given(later, ids, digits(2), st.sampled_from(["", "-", "-what else", "-00-ff"]))
def test_ids_and_the_sampled_bit_of_later_versions_are_read(
    version: str, pair: tuple[str, str], flags: str, more: str
) -> None:
    found = parse_traceparent(f"{version}-{pair[0]}-{pair[1]}-{flags}{more}")
    assert found == (*pair, int(flags, 16) & SAMPLED)
    assert found.text.startswith("00-"), "it is passed on in the version that is spoken here"


@table(
    "text",
    [
        "",
        GOOD[:-1],
        GOOD + "0",
        GOOD + "\n",
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"cc-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE[:-1]}\u0665-{SPAN}-01",
        f"00-{SPAN}-{TRACE}-01",
    ],
)
def test_an_invalid_traceparent_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.text() | st.text(HEX + "-", min_size=50, max_size=60) | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_text_can_be_parsed(text: str) -> None:
    found = parse_traceparent(text)
    assert found is None or re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]", found.text)


def test_each_attempt_has_its_own_stable_span_id() -> None:
    spans = [span_id_of(trace, attempt) for trace in ("tr_1", "tr_2") for attempt in range(50)]
    assert len({*spans}) == 100
    assert all(re.fullmatch("[0-9a-f]{16}", span) and span.strip("0") for span in spans)
    assert span_id_of("tr_1", 3) == spans[3]
