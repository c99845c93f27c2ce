"""Stand in for Slurm's ``srun``: run a command as the tasks of two nodes, and pass a signal on to them.

Once the file named by ``SIGNAL_AT`` exists, the tasks get SIGUSR2, as ``--signal=USR2@...`` of a batch script has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NODES = 2
command = [word for word in sys.argv[1:] if not word.startswith("--")]
awaited = os.environ.get("SIGNAL_AT")
tasks = [
    subprocess.Popen(
        command,
        env={
            **os.environ,
            "SLURM_PROCID": str(node),
            "SLURM_NTASKS": str(NODES),
            "SLURM_STEP_NUM_TASKS": str(NODES),
            "SLURM_LOCALID": "0",
            "SLURM_STEP_NUM_NODES": str(NODES),
            "SLURM_NODEID": str(node),
            "LOCAL_CACHE": f"cache-of-node-{node}",
        },
    )
    for node in range(NODES)
]
while any(task.poll() is None for task in tasks):
    if awaited and Path(awaited).exists():
        awaited = None
        for task in tasks:
            task.send_signal(signal.SIGUSR2)
    time.sleep(0.05)
sys.exit(max(task.returncode for task in tasks))
