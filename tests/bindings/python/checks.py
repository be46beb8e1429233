# SPDX-License-Identifier: Apache-2.0
"""Checks that tests of several files make."""
import time

import pytest


def refused(error, *calls, match=None):
    """Each of the calls raises the error. Returns the last one's."""
    for call in calls:
        with pytest.raises(error, match=match) as caught:
            call()
    try:
        return caught.value
    finally:
        del caught  # its traceback has this frame: the cycle would hold for the collector what the calls hold


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.002)
