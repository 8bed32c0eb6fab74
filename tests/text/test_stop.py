from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.text.stop import StopFinder

letters = st.text(alphabet="abc", max_size=40)


def shown(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    finder = StopFinder(stops)
    text = "".join(finder.push(piece) for piece in pieces)
    return text + finder.finish(), finder.found


@pytest.mark.parametrize("width", [1, 4, 16, 100])
@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["own fox"], "The quick brown fox jumps", "The quick br"),
        (["beta gamma"], "alpha beta gamma delta", "alpha "),
        (["mm"], "a hammer", "a ha"),
        (["abcd", "bc"], "xabcdx", "xa"),
        (["aab", "ab", "b"], "aaab", "a"),  # all three end at the same character: the one that began first
        (["🙂b"], "a🙂🙂b", "a🙂"),
        (["zzz"], "ends in zz", "ends in zz"),
    ],
)
def test_cuts_at_the_start_of_the_stop_whatever_the_width(
    stops: list[str], text: str, expected: str, width: int
) -> None:
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    assert shown(stops, pieces)[0] == expected


@given(stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4), text=letters, data=st.data())
def test_any_cutting_gives_the_same_text(stops: list[str], text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(stops, pieces) == shown(stops, list(text)) == shown(stops, [text])


@given(stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4), text=letters)
def test_the_first_stop_to_end_wins_and_none_is_ever_shown(stops: list[str], text: str) -> None:
    ends = [(at + len(stop), at) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
    expected = text[: min(ends)[1]] if ends else text
    assert shown(stops, list(text))[0] == expected


@given(stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4), text=letters)
def test_holds_back_exactly_what_may_become_a_stop(stops: list[str], text: str) -> None:
    finder, seen = StopFinder(stops), ""
    beginnings = {stop[:size] for stop in stops for size in range(len(stop))}
    for until in range(1, len(text) + 1):
        seen += finder.push(text[until - 1])
        if finder.found is not None:
            return
        assert seen + max((b for b in beginnings if text[:until].endswith(b)), key=len) == text[:until]


def test_nothing_comes_after_a_stop() -> None:
    finder = StopFinder(["x"])
    assert finder.push("ax") == "a"
    assert finder.push("more") == ""
    assert finder.finish() == ""
