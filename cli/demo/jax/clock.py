"""The clock of the demo's programs: CLOCK_MONOTONIC, slowed down `stretch` times (docs/softgpu-timing.md); and their checksum."""
import hashlib
import time

stretch = 1.0  # set once, by --stretch


def now_ns():
    return int(time.monotonic_ns() / stretch)


def sleep_until_ns(when_ns):
    time.sleep(max(0.0, (when_ns * stretch - time.monotonic_ns()) / 1e9))


class Checksum:
    """Over the bits, in the order of add()."""

    def __init__(self):
        self.digest = hashlib.sha256()

    def add(self, array):
        self.digest.update(array.tobytes())

    def __str__(self):
        return self.digest.hexdigest()[:16]
