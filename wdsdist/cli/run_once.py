"""Run a command once if a launcher, such as torchrun, starts it in many processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wdsdist.cli.output import say
from wdsdist.distributed.identity import identity
from wdsdist.distributed.run_once import data_download

if TYPE_CHECKING:
    from wdsdist.distributed.run_once import Scope

T = TypeVar("T")


def once(
    function: Callable[..., T], arguments: tuple[Any, ...], *, scope: Scope, directory: str, quiet: bool = False
) -> T:
    """Call a function in one process of each node, or of the cluster, and return its value, or raise its error, in all.

    Processes that wait say so, unless they are ``quiet``. ``directory`` is a folder that all nodes share, for
    ``scope="cluster"``.
    """
    if identity().world_size == 1:
        return function(*arguments)
    logger = logging.getLogger("wdsdist")
    if not quiet:
        logger.addHandler(_Echo())
        logger.setLevel(logging.INFO)
    # Once in each launch: the function itself checks whether an earlier one has completed the work.
    shared = Path(directory) if scope == "cluster" else None
    return data_download(scope=scope, directory=shared, force=True)(function)(*arguments)


class _Echo(logging.Handler):
    """Prints log messages to standard error, such as that this process waits."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"wdsdist: {record.getMessage()}", err=True)
