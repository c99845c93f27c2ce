"""Audio and video that is decoded to its end before training: what is whole passes, what is damaged or cut does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.media import recording, video
from wdsdist.errors import SampleError
from wdsdist.media.clips import decode_audio
from wdsdist.media.containers import check_media
from wdsdist.samples.fields import Fields, SampleCheck
from wdsdist.transforms import AudioClip

pytest.importorskip("av")

X264 = (("preset", "ultrafast"), ("g", "10"))
WHOLE = {
    "mp4": lambda: video(20, options=X264),
    "mp4 with sound": lambda: video(20, options=X264, seconds_of_sound=1),
    "mkv": lambda: video(120, container="matroska", options=X264),
    "flac": lambda: recording("flac", "flac"),
    "wav": lambda: recording("pcm_s16le", "wav"),
    "mp3": lambda: recording("libmp3lame", "mp3"),
    "m4a": lambda: recording("aac", "mp4"),
    "aac": lambda: recording("aac", "adts"),
    "opus": lambda: recording("libopus", "ogg"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_passes(kind: str) -> None:
    check_media(WHOLE[kind]())


@pytest.mark.parametrize("kind", sorted(set(WHOLE) - {"aac", "opus"}))  # which do not say how long they are
def test_what_is_cut_short_is_bad_when_it_is_checked_or_decoded(kind: str) -> None:
    data = WHOLE[kind]()
    ways: list[Callable[[bytes], Any]] = [check_media]
    if not kind.startswith(("mp4", "mkv")):
        ways += [decode_audio, AudioClip(1, at=1)]
    for way in ways:
        with pytest.raises(SampleError):
            way(data[: int(0.6 * len(data))])


@pytest.mark.parametrize("kind", ["mp4", "flac"])
def test_noise_is_found(kind: str) -> None:
    data = bytearray(video(20, options=X264, size=(320, 240)) if kind == "mp4" else WHOLE[kind]())
    start = data.index(b"mdat") + len(data) * 2 // 3 if kind == "mp4" else len(data) * 2 // 3
    data[start : start + 400] = np.random.default_rng(0).bytes(400)
    with pytest.raises(SampleError, match=r"damaged|does not read"):
        check_media(bytes(data))
    if kind == "flac":
        with pytest.raises(SampleError, match="a frame of it is damaged"):
            decode_audio(bytes(data))


@pytest.mark.parametrize("data", [b"", b"no sound"])
def test_what_is_neither_does_not(data: bytes) -> None:
    for way in (check_media, decode_audio):
        with pytest.raises(SampleError):
            way(data)
    with pytest.raises(SampleError, match="there is no audio in it"):
        decode_audio(video(3))


def test_a_check_of_samples_looks_into_media_and_not_at_fields_beside_it() -> None:
    whole, check = WHOLE["mp4"](), SampleCheck(Fields(("mp4",)), decode=True)
    cut = whole[: int(0.9 * len(whole))]
    assert not list(check.problems(("flac", "mp4"), [4, len(whole)], [b"none", whole].__getitem__))
    (problem,) = check.problems(("flac", "mp4"), [4, len(cut)], [b"none", cut].__getitem__)
    assert (problem.field, problem.member) == ("mp4", 1)
