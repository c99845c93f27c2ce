"""From the bytes of a video to a clip of frames: clips a second, and seconds of processor for each.

Four ways take clips of 16 frames, every fourth one, at 224 x 224 pixels, out of the same videos, in turn, so that a
busy machine slows all of them. All use FFmpeg by PyAV, on one thread:

- *wdsdist*: ``StreamingDataset`` with ``decode={"mp4": Clip(16, stride=4, size=224)}``, sample by sample;
- *a bare loop*: the bytes from memory, a seek to where the clip begins, every frame decoded from the keyframe on, those
  of the clip scaled and stacked; where it begins is drawn beforehand, and nothing is checked;
- *webdataset's bytes, all frames*: what webdataset's ``torch_video`` does: the bytes to a temporary file, all of its
  frames decoded to one tensor. ``torchvision.io.read_video``, which it calls, is no longer in torchvision; this is what
  it did, without the sound;
- *the same, and the clip*: its 16 frames are scaled too, as training would.

The videos are made by code: 640 x 360 pixels, 25 frames a second, H.264 with B-frames and a keyframe each 4 seconds.

    taskset -c 0 python tools/bench/bench_media.py [--repeat 5] [--videos 12] [--seconds 10] [--json FILE]

Results, medians of 5 runs in turn of 8 videos on one core of two, which other work kept busy (load 6 to 14), Python
3.11, PyAV 18.1, torch 2.13.0, 2026-11-22:

    8 videos of 10 s, 0.60 MB
                                              clips/s         range   ms of processor
    wdsdist                                       6.7       6.5-7.5             128.5
    a bare loop                                   6.2       5.5-6.8             142.6
    webdataset's bytes, all frames                1.8       1.7-2.1             468.8
    the same, and the clip                        1.8       1.7-1.9             484.3
    wdsdist / a bare loop                        1.07   by processor              1.11
    wdsdist / webdataset's bytes, all frames     3.77   by processor              3.66
    wdsdist / the same, and the clip             3.66   by processor              3.76

It passes the bare loop because it leaves out B-frames that neither the clip nor another frame needs. The two draw their
clips apart, so single runs differ by where these lie.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from wdsdist import StreamingDataset, pack
from wdsdist.transforms import Clip

FRAMES, STRIDE, SIZE, RATE = 16, 4, 224, 25
WIDTH, HEIGHT = 640, 360
WIDE = round(WIDTH * SIZE / HEIGHT)


def video(number: int, seconds: float) -> bytes:
    """Return a video: shapes with noise that move over a picture."""
    draw = np.random.default_rng(number)
    coarse = draw.integers(0, 256, (24, 42, 3), np.uint8)
    picture = np.kron(coarse, np.ones((16, 16, 1), np.uint8)) // 2 + draw.integers(0, 64, (384, 672, 3), np.uint8)
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as file:
        track = file.add_stream("libx264", rate=RATE, options={"g": str(4 * RATE), "bf": "3", "preset": "fast"})
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for place in range(round(seconds * RATE)):
            shown = np.roll(picture, (place // 3, place), (0, 1))[:HEIGHT, :WIDTH]
            file.mux(track.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), "rgb24")))
        file.mux(track.encode())
    return stream.getvalue()


def bare_loop(data: bytes, share: float) -> torch.Tensor:
    """Seek, decode, scale and stack, and nothing else."""
    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0]
        stream.thread_count = 1
        first = int(share * (stream.frames - (FRAMES - 1) * STRIDE))
        ticks = int(1 / (RATE * stream.time_base))
        wanted = {(first + number * STRIDE) * ticks for number in range(FRAMES)}
        file.seek(first * ticks, stream=stream)
        found = []
        for frame in file.decode(stream):
            if frame.pts in wanted:
                found.append(scaled(frame))
                if len(found) == FRAMES:
                    break
        return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)


def scaled(frame: av.VideoFrame) -> Any:
    """Return the centre of a frame, scaled to cover the size."""
    left = (WIDE - SIZE) // 2
    return frame.to_ndarray(format="rgb24", width=WIDE, height=SIZE, threads=1)[:, left : left + SIZE]


def all_frames(data: bytes, share: float) -> torch.Tensor:
    """Return all frames of a video that is written to a file, as ``read_video`` did."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.mp4"
        path.write_bytes(data)
        with av.open(str(path)) as file:
            file.streams.video[0].thread_count = 1
            frames = [frame.to_ndarray(format="rgb24", threads=1) for frame in file.decode(video=0)]
    return torch.as_tensor(np.stack(frames))


def all_frames_and_clip(data: bytes, share: float) -> torch.Tensor:
    """Return a clip of all frames."""
    frames = all_frames(data, share)
    first = int(share * (len(frames) - (FRAMES - 1) * STRIDE))
    clip = frames[first : first + FRAMES * STRIDE : STRIDE].permute(0, 3, 1, 2)
    left = (WIDE - SIZE) // 2
    return torch.nn.functional.interpolate(clip, (SIZE, WIDE), mode="bilinear", antialias=True)[..., left : left + SIZE]


def measured(ways: dict[str, Callable[[int], object]], count: int, repeat: int) -> dict[str, list[tuple[float, float]]]:
    """Return (clips a second, seconds of processor a clip) of each way, one pair for each repetition."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeat + 1):
        for name, way in ways.items():
            started, used = time.perf_counter(), time.process_time()
            for number in range(count):
                way(number)
            found[name].append((count / (time.perf_counter() - started), (time.process_time() - used) / count))
    return {name: values[1:] for name, values in found.items()}  # the first run loads code and fills caches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, in turn")
    parser.add_argument("--videos", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10, help="of each video")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    videos = [video(number, options.seconds) for number in range(options.videos)]
    shares = np.random.default_rng(0).random(len(videos)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        pack(({"__key__": f"{number:04d}", "mp4": data} for number, data in enumerate(videos)), folder)
        dataset = StreamingDataset(folder, decode={"mp4": Clip(FRAMES, stride=STRIDE, size=SIZE)})
        epoch = iter(range(10**9))

        def ours(number: int) -> object:
            if not number:
                dataset.set_epoch(next(epoch))
            return dataset[number]

        ways: dict[str, Callable[[int], object]] = {
            "wdsdist": ours,
            "a bare loop": lambda number: bare_loop(videos[number], shares[number]),
            "webdataset's bytes, all frames": lambda number: all_frames(videos[number], 0),
            "the same, and the clip": lambda number: all_frames_and_clip(videos[number], shares[number]),
        }
        found = measured(ways, len(videos), options.repeat)
    size = statistics.mean(map(len, videos))
    print(f"    {len(videos)} videos of {options.seconds:g} s, {size / 1e6:.2f} MB")
    print(f"    {'':<40} {'clips/s':>8}   {'range':>11}   {'ms of processor':>15}")
    for name, values in found.items():
        rates, used = zip(*values, strict=True)
        spread = f"{min(rates):.1f}-{max(rates):.1f}"
        print(f"    {name:<40} {statistics.median(rates):8.1f}   {spread:>11}   {1000 * statistics.median(used):15.1f}")
    for name in list(ways)[1:]:
        pairs = list(zip(found["wdsdist"], found[name], strict=True))
        rate, used = (
            statistics.median(each) for each in ([a[0] / b[0] for a, b in pairs], [b[1] / a[1] for a, b in pairs])
        )
        print(f"    wdsdist / {name:<30} {rate:8.2f}   {'by processor':>11}   {used:15.2f}")
    if options.json:
        options.json.write_text(json.dumps({"runs": found, "bytes": list(map(len, videos))}, indent=1))


if __name__ == "__main__":
    main()
