"""``wdsdist.transforms``: the decode functions and transforms of images, audio and video."""

from wdsdist.samples.images.transforms import RandomResizedCrop, ResizeCenterCrop
from wdsdist.samples.marks import parted, seeded, stretch
from wdsdist.samples.media.clips import AudioClip, Clip

__all__ = ["RandomResizedCrop", "ResizeCenterCrop", "Clip", "AudioClip", "parted", "seeded", "stretch"]
