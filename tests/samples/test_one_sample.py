"""What parts of a record share."""

from __future__ import annotations

from wdsdist.samples.one_sample import LastRecord


def test_a_record_that_is_decoded_while_another_is_keeps_its_own_values() -> None:
    last = LastRecord()

    def first() -> str:  # as where a thread is interrupted by another
        assert last.decoded((0, 2), "txt", lambda: "second") == "second"
        return "first"

    assert last.decoded((0, 1), "txt", first) == "first"
    assert last.decoded((0, 2), "txt", lambda: "second") == "second"
