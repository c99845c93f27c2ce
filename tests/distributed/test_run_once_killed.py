"""data_download when processes die at any moment: the rest has the value, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import launch

if TYPE_CHECKING:
    from tests.support.jobs import Stage

STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_runner_and_a_waiter_may_be_killed_at_any_moment(stage: Stage, seed: int) -> None:
    stage.job("in_steps", STEPS)
    chance = random.Random(seed)
    four = stage.start(4)
    launch(four)
    runner = stage.runner()
    time.sleep(chance.uniform(0, 0.06))
    os.kill(runner, signal.SIGKILL)
    waiter = chance.choice([process for process in four if process.pid != runner])
    os.kill(waiter.pid, signal.SIGKILL)
    rest = [process for process in four if process.pid not in (runner, waiter.pid)]
    # Whoever takes the place of a killed one is let pass, as often as that happens.
    threading.Thread(target=lambda: [stage.runner() for _ in iter(int, 1)], daemon=True).start()
    for process in rest:
        assert process.expect("returned") == str(stage.directory / "made")
    assert len(list((stage.directory / "made").iterdir())) == STEPS
    left = [path.suffix for path in (stage.directory / "tmp").glob("wdsdist-*/*")]
    assert sorted(left) == [".lock", ".outcome"]
