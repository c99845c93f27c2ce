"""The decode functions and transforms of images, audio and video, and the marks for functions of your own."""

from wdsdist.media.clips import AudioClip, Clip
from wdsdist.samples.images.decode import DecodeImage
from wdsdist.samples.images.transforms import RandomResizedCrop, ResizeCenterCrop
from wdsdist.samples.marks import parted, seeded, stretch

__all__ = ["RandomResizedCrop", "ResizeCenterCrop", "DecodeImage", "Clip", "AudioClip", "parted", "seeded", "stretch"]
