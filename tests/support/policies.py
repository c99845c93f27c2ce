"""Another policy of requests for a while."""

from __future__ import annotations

import functools
from unittest import mock

from wdsdist.storage.waiting import policy

use_policy = functools.partial(mock.patch.multiple, policy)
"""Changes the policy of the requests of this process, and of its children, until the block ends."""
