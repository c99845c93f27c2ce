"""Recordings: the samples that FFmpeg decodes from the beginning, whole or in parts, at any rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.media import recording, samples_of, tone, video
from wdsdist.errors import SampleError
from wdsdist.media.clips import decode_audio
from wdsdist.transforms import AudioClip

pytest.importorskip("av")

Samples = npt.NDArray[np.float32]
KINDS = {
    "flac": ("flac", "flac"),
    "wav": ("pcm_s16le", "wav"),
    "wav of 24 bits": ("pcm_s24le", "wav"),
    "wav of 8 bits": ("pcm_u8", "wav"),
    "wav of floats": ("pcm_f32le", "wav"),
    "mp3": ("libmp3lame", "mp3"),
    "opus": ("libopus", "ogg"),
    "m4a": ("aac", "mp4"),
    "aac": ("aac", "adts"),
    "webm": ("libopus", "webm"),
}


def place_of(part: Samples, whole: Samples, tolerance: float) -> int:
    """Return where a part of a recording begins, by its first channel."""
    energy = np.concatenate(([0], np.cumsum(whole[0].astype(float) ** 2)))
    length, size = part.shape[1], 1 << (whole.shape[1] + part.shape[1]).bit_length()
    match = np.fft.irfft(np.fft.rfft(whole[0], size) * np.fft.rfft(part[0, ::-1], size))[length - 1 : whole.shape[1]]
    place = int(np.argmin(energy[length:] - energy[:-length] - 2 * match))
    assert np.abs(whole[:, place : place + length] - part).max() <= tolerance
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_is_decoded_to_the_samples_of_ffmpeg(kind: str) -> None:
    data = recording(*KINDS[kind])
    samples, rate = decode_audio(memoryview(data))
    assert rate == 48_000
    assert samples.dtype.is_floating_point
    assert samples.is_contiguous()
    assert np.array_equal(samples.numpy(), samples_of(data))
    if kind not in ("aac", "m4a"):  # which do not say how much padding there is
        assert samples.shape == (2, 5 * 48_000)
        assert np.abs(samples.numpy()[:, 4800:200_000] - tone(5, 48_000, 2)[:, 4800:200_000]).max() < 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_is_a_part_of_the_recording_also_far_from_its_beginning(kind: str) -> None:
    data = recording(*KINDS[kind])
    whole = samples_of(data)
    tolerance = 0.001 if "aac" in KINDS[kind][0] else 1e-6  # AAC fills in noise of its own
    clip = AudioClip(0.5, channels=None)
    places = [place_of(clip(memoryview(data), seed).numpy(), whole, tolerance) for seed in range(4)]
    assert max(places) > 2.5 * 48_000
    assert len({*places}) == 4
    assert place_of(AudioClip(0.5, channels=None, at=0)(data).numpy(), whole, tolerance) == 0


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_a_resampled_clip_is_a_part_of_the_resampled_recording(rate: int) -> None:
    data = recording()
    whole = samples_of(data, rate)
    assert np.array_equal(AudioClip(None, rate, channels=None)(data, 0).numpy(), whole)
    at_middle = AudioClip(1, rate, channels=None, at=0.5)(data).numpy()
    assert at_middle.shape == (2, rate)
    assert abs(place_of(at_middle, whole, 0.02) - 2 * rate) <= 1  # it may begin between two samples
    assert np.abs(AudioClip(1, rate, channels=None, at=0)(data).numpy() - whole[:, :rate]).max() < 1e-6


def test_clips_as_long_as_a_part_cover_a_recording_once() -> None:
    data = recording()
    clip = AudioClip(1, channels=None, at=0)
    parts = [clip(data, part=part, parts=5).numpy() for part in range(5)]
    assert np.abs(np.concatenate(parts, axis=1) - samples_of(data)).max() < 1e-6


def test_one_channel_is_the_mean_and_two_of_one_are_alike() -> None:
    whole = samples_of(recording())
    assert np.allclose(AudioClip()(recording(), 0).numpy(), whole.mean(axis=0, keepdims=True))
    two = AudioClip(channels=2)(recording(channels=1), 0)
    assert two.shape == (2, 5 * 48_000)
    assert two[0].equal(two[1])
    with pytest.raises(SampleError, match="it has 3 channels"):
        AudioClip(channels=2)(recording(channels=3), 0)


def test_a_short_recording_ends_in_silence() -> None:
    data = recording(seconds=0.5)
    clip = AudioClip(0.75, 16_000)(data, 3)
    assert clip.shape == (1, 12_000)
    assert not clip[:, 8000:].any()
    assert clip[:, :8000].any()


def test_the_sound_of_a_video_is_read_as_well() -> None:
    data = video(60, container="matroska", seconds_of_sound=4)
    assert AudioClip(None, 8000)(data, 0).shape[1] == pytest.approx(4 * 8000, rel=0.03)
    assert AudioClip(1, 8000, at=1)(data).numpy()[0, -800:].any()


def test_a_small_file_of_many_samples_is_refused() -> None:
    data = recording(seconds=5)
    with pytest.raises(SampleError, match=r"more than 100,000 samples in all channels: read a part"):
        AudioClip(max_samples=100_000)(data, 0)
    assert AudioClip(0.5, at=0.9, max_samples=100_000)(data).shape == (1, 24_000)
