"""In which order a data set is read: what was asked for, completed by the world size and the room in the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from wdsdist.footprint import Readers, check_limit, fitting_window, readers_of
from wdsdist.manifest import Manifest
from wdsdist.mixture import MixOrder, Mixture
from wdsdist.node import Identity
from wdsdist.order import Order, OrderSettings, default_window, epoch_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """What is known of the order before the ranks are."""

    manifest: Manifest
    settings: OrderSettings
    """As they were asked for, with the usual window and one lane where none was."""
    window: int | None
    """What was asked for."""
    lanes: int | None
    """What was asked for."""
    limit: int | None
    """Bytes that the cache may take."""
    mixture: Mixture | None = None
    """The data sets, where they are mixed."""

    @classmethod
    def of(
        cls, manifest: Manifest, *, window: int | None, lanes: int | None, limit: int | None, **settings: object
    ) -> Ordering:
        """Return what was asked for. Raises ``ArgumentError`` for values that cannot work."""
        asked = OrderSettings(
            window=default_window(manifest.counts) if window is None else window,
            num_canonical_replicas=1 if lanes is None else lanes,
            **settings,  # type: ignore[arg-type]
        )
        return cls(manifest=manifest, settings=asked, window=window, lanes=lanes, limit=limit)

    def mixed(self, mixture: Mixture) -> Ordering:
        """Return the same for data sets that are mixed."""
        return replace(self, mixture=mixture, settings=replace(self.settings, window=max(mixture.windows)))

    def chosen(self, here: Identity, *, lanes: int | None = None, window: int | None = None) -> OrderSettings:
        """Return the settings: ``lanes`` and ``window`` as far as none were asked for.

        What neither gives is decided by the world size, and by the room in the cache.
        """
        settings = replace(self.settings, num_canonical_replicas=self.lanes or lanes or here.world_size)
        window = self.window or window
        if window is None and self.limit is not None:
            window = fitting_window(self._readers(here), settings, self.limit)
        return settings if window is None else replace(settings, window=window)

    def check_limit(self, settings: OrderSettings, here: Identity) -> None:
        """Check that the cache can hold what is read at once.

        Raises ``ArgumentError`` where it is too little for one rank; warns where it is for those of this node.
        """
        if self.limit is not None:
            check_limit(self._readers(here), settings, self.limit)

    def order(self, settings: OrderSettings, epoch: int) -> Order:
        """Return which sample stands at which position of an epoch."""
        if self.mixture is not None:
            return MixOrder(self.mixture, settings, epoch)
        return epoch_order(self.manifest.counts, settings, epoch)

    def _readers(self, here: Identity) -> Readers:
        return readers_of(self.manifest, here, self.mixture)
