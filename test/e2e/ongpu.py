"""Cases of engines on a GPU: over the driver's double and a stand-in for
torch's streams. PINNED knows what is pinned; each address is pinned once."""

import os
import sys
from unittest import mock

from pair import BUILD, ROOT

from mmx import cuda

sys.path.append(os.path.join(ROOT, "test/double"))
import torch_streams as torch  # noqa: E402

DOUBLE = os.path.join(os.path.abspath(BUILD), "test/double/libcuda.so.1")
PINNED = {}  # address -> (address, bytes)


def modules():
    """Has adapters import the stand-in for torch."""
    return mock.patch.dict(sys.modules,
                           torch.modules(cuda.Driver.get(DOUBLE)))


def is_mapped(at):
    with open("/proc/self/maps") as maps:
        return any(first <= at < end for first, end in (
            (int(word, 16) for word in line.split()[0].split("-"))
            for line in maps))


class OnGpu:
    """A mixin for cases; it comes first among the bases."""

    def setUp(self):
        super().setUp()
        self.driver = cuda.Driver.get(DOUBLE)
        torch.modules(self.driver)
        pin, unpin = self.driver.pin, self.driver.unpin
        PINNED.clear()  # may have maps that an object of an earlier test holds
        late = []  # unpinned after their memory was unmapped
        self.addCleanup(lambda: self.assertEqual(late, []))

        def pinned(at, size, flags):
            pin(at, size, flags)
            self.assertNotIn(at, PINNED)
            PINNED[at] = at, size

        def unpinned(at):
            if not is_mapped(at):
                late.append(at)
            unpin(at)
            PINNED.pop(at, None)
        for name, call in (("pin", pinned), ("unpin", unpinned)):
            patch = mock.patch.object(self.driver, name, call)
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(torch.open_gates)

    def batches(self):
        """Returns the number of the driver's copy calls so far."""
        return self.driver.lib.double_get(b"batches")
