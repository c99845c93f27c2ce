"""Clips of videos: the very frames that FFmpeg decodes from the beginning, wherever a clip begins."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.media import UNITY, Pixels, frames_of, video
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.media.clips import Location
from wdsdist.media.containers import Track, opened
from wdsdist.samples.marks import WHOLE
from wdsdist.transforms import AudioClip, Clip, RandomResizedCrop

pytest.importorskip("av")

UNEVEN = tuple(range(0, 60, 3)) + tuple(range(60, 120))
X264 = (("g", "12"), ("bf", "3"))
VIDEOS = {
    "H.264 with B-frames": {"options": X264},
    "H.264 with open groups": {"options": (*X264, ("x264-params", "open-gop=1"))},
    "H.264 in Matroska": {"options": X264, "container": "matroska"},
    "H.264 in a transport stream": {"options": X264, "container": "mpegts"},
    "HEVC of 10 bits with open groups": {
        "codec": "libx265",
        "pixels": "yuv420p10le",
        "options": (("x265-params", "keyint=12:open-gop=1:log-level=none:pools=none"),),
    },
    "VP9": {"codec": "libvpx-vp9", "container": "webm", "options": (("g", "12"), ("cpu-used", "8"))},
    "VP8": {"codec": "libvpx", "container": "webm", "options": (("g", "12"), ("auto-alt-ref", "1"))},
    "AV1": {"codec": "libsvtav1", "options": (("g", "12"), ("preset", "12"))},
    "MPEG-4 with B-frames in AVI": {"codec": "mpeg4", "container": "avi", "options": (*X264[:1], ("bf", "2"))},
    "MPEG-2 in a program stream": {"codec": "mpeg2video", "container": "mpeg", "options": X264[:1]},
    "fragments": {"options": (*X264, ("movflags", "frag_keyframe+empty_moov"))},
    "a variable rate": {"options": X264, "times": UNEVEN},
    "a late start": {"options": X264, "times": tuple(range(45, 125))},
    "odd sides": {"options": X264, "size": (63, 47), "pixels": "yuv444p"},
}  # fmt: skip


def clip_of(data: bytes, seed: int = 0, *, part: int = 0, parts: int = 1, **how: Any) -> Pixels:
    """Return a clip as [frames, height, width, 3]."""
    return Clip(**how)(memoryview(data), seed, part=part, parts=parts).permute(0, 2, 3, 1).numpy()


def place_of(clip: Pixels, frames: Sequence[Pixels], stride: int) -> int:
    """Return the number of the frame with which a clip begins."""
    found = [
        first
        for first in range(len(frames) - (len(clip) - 1) * stride)
        if all(np.array_equal(one, frames[first + number * stride]) for number, one in enumerate(clip))
    ]
    assert len(found) == 1, f"it is found {len(found)} times"
    return found[0]


@pytest.mark.parametrize("kind", VIDEOS)
def test_a_clip_is_every_third_frame_of_the_video_from_somewhere_on(kind: str) -> None:
    how = dict(VIDEOS[kind])
    data = video(80, how.pop("codec", "libx264"), how.pop("container", "mp4"), **how)
    frames = frames_of(data)
    assert len(frames) == 80
    places = {place_of(clip_of(data, seed, frames=5, stride=3), frames, 3) for seed in range(8)}
    assert len(places) > 4
    assert place_of(clip_of(data, frames=5, stride=3, at=0), frames, 3) == 0
    # The length of some is an estimate, or lacks the last frame; a variable rate is taken as its mean.
    least = {"MPEG-2 in a program stream": 58, "a variable rate": 58}.get(kind, 66)
    assert least <= place_of(clip_of(data, frames=5, stride=3, at=1), frames, 3) <= 67


@pytest.mark.parametrize(
    ("data", "how", "places"),
    [
        (video(15, options=X264), {"frames": 4, "stride": 3}, range(6)),
        # Its sound ends later.
        (video(30, container="matroska", options=X264, seconds_of_sound=4), {"frames": 4, "stride": 8}, range(6)),
    ],
)
def test_clips_begin_at_every_frame_from_which_they_fit(data: bytes, how: dict[str, Any], places: range) -> None:
    frames = frames_of(data)
    assert {place_of(clip_of(data, seed, **how), frames, how["stride"]) for seed in range(60)} == {*places}


@pytest.mark.parametrize("kind", ["H.264 with B-frames", "H.264 in a transport stream", "fragments"])
@pytest.mark.parametrize("how", [{"stride": 1}, {"fps": 30}])
def test_clips_as_long_as_a_part_cover_a_video_once(kind: str, how: dict[str, Any]) -> None:
    data = video(40, **{"container": "mp4", **VIDEOS[kind]})
    frames = frames_of(data)
    for at in (0, 1):
        clips = [clip_of(data, frames=10, at=at, part=part, parts=4, **how) for part in range(4)]
        assert [place_of(clip, frames, 1) for clip in clips] == [0, 10, 20, 30]


def test_a_clip_lies_in_its_part_or_contains_it() -> None:
    data = video(40, options=X264)
    frames = frames_of(data)
    for length, first, last in ((4, 10, 16), (16, 4, 10)):
        places = {place_of(clip_of(data, seed, frames=length, part=1, parts=4), frames, 1) for seed in range(20)}
        assert len(places) > 3
        assert places <= {*range(first, last + 1)}


def test_frames_at_a_rate_are_those_that_are_shown_then() -> None:
    data = video(80, options=X264, times=UNEVEN)
    frames = frames_of(data)
    for at, first in ((0, 0), (1, 120 - 1 / 15360 - 9 * 30 / 8)):  # in frames at 30 a second
        shown = [max(n for n, time in enumerate(UNEVEN) if time <= first + number * 30 / 8) for number in range(10)]
        clip = clip_of(data, frames=10, fps=8, at=at)
        assert [next(n for n, one in enumerate(frames) if np.array_equal(one, frame)) for frame in clip] == shown
    repeated, frames = clip_of(video(10), frames=6, fps=60, at=0), frames_of(video(10))
    assert all(np.array_equal(repeated[number], frames[number // 2]) for number in range(6))


@pytest.mark.parametrize("how", [{"stride": 4}, {"fps": 7.5}])
def test_the_last_frame_of_a_short_video_is_repeated(how: dict[str, Any]) -> None:
    data = video(10)
    frames = frames_of(data)
    clip = clip_of(data, 5, frames=5, **how)
    assert all(np.array_equal(one, frames[min(9, 4 * number)]) for number, one in enumerate(clip))


class Watched:
    """Bytes of which is noted how many were asked for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, part: slice) -> bytes:
        found = self.data[part]
        self.asked += len(found)
        return found


@pytest.mark.parametrize("container", ["mp4", pytest.param("matroska", marks=pytest.mark.slow)])
def test_only_what_a_clip_needs_is_read(container: str) -> None:
    data = video(400, "mpeg4", container, size=(320, 240), options=(("g", "10"), ("b", "20000000")))
    watched = Watched(data)
    taken: list[int] = []
    with opened(watched, "") as file:
        track = Track(file, "video", len(data))
        for _, numbers in Clip(4, stride=2)._read(track, Location(0.7, WHOLE)):
            taken += numbers
    assert taken == [0, 1, 2, 3]
    assert len(data) > 2_000_000
    assert watched.asked < len(data) / 4


# How frames are shown


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        ((0, 1, -1, 0), lambda frame: np.rot90(frame, -1)),
        ((-1, 0, 0, -1), lambda frame: np.rot90(frame, 2)),
        ((0, -1, 1, 0), np.rot90),
        ((-1, 0, 0, 1), np.fliplr),
    ],
)
def test_a_video_is_turned_and_mirrored_as_its_camera_says(turn: tuple[int, ...], shown: Any) -> None:
    stored = video(4)
    a, b, c, d = (number << 16 for number in turn)
    at = stored.index(UNITY, stored.index(b"tkhd"))
    turned = stored[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + stored[at + len(UNITY) :]
    assert np.array_equal(clip_of(turned, frames=4), [shown(frame) for frame in frames_of(stored)])
    assert clip_of(turned, frames=2, size=(40, 20)).shape == (2, 40, 20, 3)


def test_what_an_edit_list_leaves_out_is_in_no_clip() -> None:
    stored = video(60, options=(("g", "12"), ("bf", "0")))
    at = stored.index(b"elst") + 8
    count, duration, begins = struct.unpack(">III", stored[at : at + 12])
    assert count == 1
    tick = 15360 // 30
    edited = stored[: at + 4] + struct.pack(">II", duration // 2, begins + 20 * tick) + stored[at + 12 :]
    frames = frames_of(edited)
    assert len(frames) == 30
    assert np.array_equal(frames[0], frames_of(stored)[20])
    places = {place_of(clip_of(edited, seed, frames=6, stride=2), frames, 2) for seed in range(20)}
    assert places <= {*range(20)}
    last = clip_of(edited, frames=6, stride=8, at=0)  # beyond the end
    assert np.array_equal(last[-1], frames[-1])


def test_frames_cover_the_size_and_their_centre_is_kept() -> None:
    data = video(3, size=(120, 60))
    clip = clip_of(data, frames=3, size=40)
    middle = np.stack(frames_of(data))[:, :, 30:90].astype(float)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(middle).permute(0, 3, 1, 2), size=(40, 40), mode="bilinear", antialias=True
    )
    assert np.abs(clip - expected.permute(0, 2, 3, 1).numpy()).mean() < 8  # it is scaled before it becomes RGB


def test_a_random_crop_is_the_same_in_all_frames_of_a_clip() -> None:
    still = video(6, seed=None)
    crop = RandomResizedCrop(24)
    clips = [clip_of(still, seed, frames=4, size=crop) for seed in range(3)]
    assert all(np.abs(clip[1:].astype(int) - clip[0]).max() < 20 for clip in clips)
    assert np.abs(clips[0].astype(int) - clips[1]).mean() > 5
    assert np.array_equal(clips[2], clip_of(still, 2, frames=4, size=crop))


# Files that are bad


@pytest.mark.parametrize(
    ("kind", "share"), [("mp4", 0.95), ("moov first", 0.3), ("moov first", 0.95), ("matroska", 0.3), ("matroska", 0.7)]
)
def test_a_video_that_is_cut_short_is_bad(kind: str, share: float) -> None:
    options = (*X264, ("moov_size", "9000")) if kind == "moov first" else X264
    data = video(120, container="matroska" if kind == "matroska" else "mp4", options=options)
    with pytest.raises(SampleError):
        clip_of(data[: int(share * len(data))], frames=4, at=1)
    if kind == "moov first":  # its index tells, also where a clip lies before the damage
        with pytest.raises(SampleError, match="it is cut short: of"):
            clip_of(data[: int(share * len(data))], frames=4, at=0)


def test_noise_in_a_video_makes_it_bad() -> None:
    whole = video(20, options=X264, size=(320, 240))
    for size in (16, 400):  # which the decoder conceals, and which leaves no frame to decode
        data = bytearray(whole)
        start = data.index(b"mdat") + len(data) // 3
        data[start : start + size] = np.random.default_rng(0).bytes(size)
        with pytest.raises(SampleError, match="damaged"):
            clip_of(bytes(data), frames=20, size=32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "PyAV does not read it"),
        (b"no video", "PyAV does not read it"),
        (b"\0" * 5000, "PyAV does not read it"),
        (video(5, container="h264"), r"put it into a container, as `ffmpeg -c copy x\.mp4`"),
    ],
)
def test_what_is_no_video_is_bad(data: bytes, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        clip_of(data, frames=1)


def test_an_error_of_the_transform_of_its_frames_is_told_as_such() -> None:
    def narrow(pixels: Pixels) -> None:
        raise ValueError("too narrow")

    with pytest.raises(SampleError, match=r"narrow.* failed: ValueError: too narrow"):
        clip_of(video(3), frames=1, size=narrow)


def test_large_videos_are_refused_before_they_are_decoded() -> None:
    data = video(8)
    with pytest.raises(SampleError, match="64 x 48 pixels, more than max_pixels, 3,000"):
        clip_of(data, frames=1, size=8, max_pixels=3000)
    with pytest.raises(SampleError, match="8 frames of 64 x 48 pixels are more than max_pixels, 20,000: give size="):
        clip_of(data, frames=8, max_pixels=20_000)
    assert clip_of(data, frames=8, size=8, max_pixels=20_000).shape == (8, 8, 8, 3)


def test_a_large_frame_is_not_decoded_to_open_a_video() -> None:
    data = video(2, "libvpx-vp9", "webm")  # the format of whose pixels only a frame tells
    with opened(data, "", max_pixels=3000) as file:
        assert file.streams.video[0].codec_context.pix_fmt is None
    with pytest.raises(SampleError, match=r"damaged|PyAV does not read it"):
        clip_of(data, frames=1, size=8, max_pixels=3000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Clip(0), "frames is 0"),
        (lambda: Clip(2, stride=0), "stride is 0"),
        (lambda: Clip(2, stride=1, fps=2), "give one of them"),
        (lambda: Clip(2, fps=0), "fps is 0: it must be a number between 0.001 and"),
        (lambda: Clip(2, fps="8"), "fps is '8'"),
        (lambda: Clip(2, at=1.5), "at is 1.5"),
        (lambda: Clip(2, size=0), "size is 0"),
        (lambda: Clip(1)(video(5)), "seed is None"),
        (lambda: AudioClip(0), "seconds is 0: it must be a number between"),
        (lambda: AudioClip(rate=8), "rate is 8"),
        (lambda: AudioClip(channels=3), "channels is 3: it must be 1, 2 or None"),
        (lambda: AudioClip(at=-1), "at is -1"),
    ],
)
def test_arguments_that_cannot_work_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
