from wdsdist.samples.transforms import AudioClip as AudioClip
from wdsdist.samples.transforms import Clip as Clip
from wdsdist.samples.transforms import RandomResizedCrop as RandomResizedCrop
from wdsdist.samples.transforms import ResizeCenterCrop as ResizeCenterCrop
from wdsdist.samples.transforms import parted as parted
from wdsdist.samples.transforms import seeded as seeded
from wdsdist.samples.transforms import stretch as stretch
