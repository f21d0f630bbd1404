"""Waits for what other processes do."""

import time

PATIENCE = 120  # Seconds, which only a bug reaches.


def wait_until(done, what):
    """The last value that `done` returns."""
    end = time.monotonic() + PATIENCE
    while True:
        if value := done():
            return value
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
