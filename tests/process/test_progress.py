import pytest

from django_singlejob.process.progress import OUTPUT_LENGTH, TEXT_LENGTH, Progress


def test_what_is_stored_comes_back() -> None:
    progress = Progress(3, 10, "importing", "row 3")
    assert progress.stored == {"done": 3, "total": 10, "text": "importing", "output": "row 3"}
    assert Progress.read(progress.stored) == progress


def test_what_is_not_known_is_not_stored() -> None:
    assert Progress().stored == {}
    assert Progress(0).stored == {"done": 0}
    assert Progress.read({}) == Progress()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 10**400])
def test_no_database_stores_such_a_number(number: float) -> None:
    assert Progress(number, number).stored == {}


def test_texts_are_escaped_and_cut() -> None:
    stored = Progress(text="a\0b" + "x" * 100, output="y" * 1_000 + "\x1b[31m\n").stored
    assert stored["text"].startswith(r"a\x00bx")
    assert stored["output"].endswith("y\\x1b[31m\n")
    assert (len(stored["text"]), len(stored["output"])) == (TEXT_LENGTH, OUTPUT_LENGTH)


@pytest.mark.parametrize(
    "stored", [None, [], "text", 3, {"done": "3"}, {"done": True, "total": None}, {"done": [], "text": None}]
)
def test_what_no_heartbeat_writes_counts_as_nothing(stored: object) -> None:
    assert Progress.read(stored) == Progress()


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (Progress(), None),
        (Progress(3), None),
        (Progress(3, 0), None),
        (Progress(3, -1), None),
        (Progress(0, 10), 0),
        (Progress(5, 10), 0.5),
        (Progress(50, 10), 1),
        (Progress(-5, 10), 0),
    ],
)
def test_share(progress: Progress, share: float | None) -> None:
    assert progress.share == share


@pytest.mark.parametrize(
    ("progress", "in_words", "in_short"),
    [
        (Progress(), "", ""),
        (Progress(output="row 3"), "", "row 3"),
        (Progress(120, 500, "importing", "row 3"), "120 of 500, importing", "24 % importing"),
        (Progress(120, text="importing"), "120, importing", "120 importing"),
        (Progress(0), "0", "0"),
        (Progress(0, 0), "0 of 0", "0"),
        (Progress(600, 500), "600 of 500", "100 %"),
        (Progress(1_234_567, 2_000_000), "1,234,567 of 2,000,000", "61 %"),
        (Progress(0.5, 1 / 3), "0.5 of 0.333333", "100 %"),
        (Progress(1e300, 1e301), "1e+300 of 1e+301", "10 %"),
    ],
)
def test_it_is_told_in_words(progress: Progress, in_words: str, in_short: str) -> None:
    assert (progress.in_words, progress.in_short) == (in_words, in_short)


@pytest.mark.parametrize(("done", "percentage"), [(0, "0 %"), (29, "29 %"), (58, "58 %"), (99.99999999, "99 %")])
def test_a_percentage_is_rounded_down(done: float, percentage: str) -> None:
    assert Progress(done, 100).percentage == percentage
