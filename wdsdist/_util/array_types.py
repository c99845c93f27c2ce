"""Type aliases of numpy arrays, for short signatures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
