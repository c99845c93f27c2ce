"""The place of a clip in a video or recording, or in its stretch that is one part of a record."""

from __future__ import annotations

from dataclasses import dataclass

from wdsdist.samples.marks import WHOLE, Part, stretch


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a clip, before the length of its video or recording is known."""

    share: float = 0.0
    """From 0 at the beginning to 1 at the end."""
    part: Part = WHOLE

    def begin(self, length: int, reach: int) -> int:
        """Return the beginning of a clip in a video or recording; ``reach`` goes from its first frame to its last.

        It lies in the stretch of its part. A clip that is longer than that contains the stretch, as far as the end
        allows.

        >>> [Place(1.0, Part(number, 3)).begin(30, 7) for number in range(3)]
        [2, 12, 22]
        >>> [Place(0.5, Part(number, 3)).begin(30, 14) for number in range(3)]
        [0, 8, 15]
        >>> Place(0.5).begin(10, 14)
        0
        """
        own = stretch(length, *self.part)
        room = own.stop - own.start - reach
        begin: int = own.start + min(int(self.share * room), max(0, room - 1))
        return max(0, min(begin, length - reach - 1))


BEGINNING = Place()
