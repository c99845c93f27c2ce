"""data_download when processes die at any moment: the rest has the value, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import CALL, launch

if TYPE_CHECKING:
    from tests.support.jobs import Stage

STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_runner_and_a_waiter_may_be_killed_at_any_moment(stage: Stage, seed: int) -> None:
    # Unlike elsewhere, time passes: no event marks the moment between two lines of our own.
    stage.write(
        f"""
import time
made = HERE / "made"

@data_download
def prepare():
    log()
    made.mkdir(exist_ok=True)
    announce()
    for step in range({STEPS}):
        (made / str(step)).touch()
        time.sleep(0.002)
    return str(made)
"""
        + CALL
    )
    chance = random.Random(seed)
    four = stage.start(4)
    launch(four)
    runner = stage.runner()
    time.sleep(chance.uniform(0, 0.06))
    os.kill(runner, signal.SIGKILL)
    waiter = chance.choice([process for process in four if process.pid != runner])
    os.kill(waiter.pid, signal.SIGKILL)
    rest = [process for process in four if process.pid not in (runner, waiter.pid)]
    if len(stage.log) == 1 and not any((stage.directory / "tmp").glob("wdsdist-*/*.outcome")):
        stage.runner()  # lets the successor pass
    for process in rest:
        assert process.expect("returned") == str(stage.directory / "made")
    assert len(list((stage.directory / "made").iterdir())) == STEPS
    left = [path.suffix for path in (stage.directory / "tmp").glob("wdsdist-*/*")]
    assert sorted(left) == [".lock", ".outcome"]
