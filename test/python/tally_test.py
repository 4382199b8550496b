"""scripts/tally.bash: a long step shows how far it is."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
STEPS = """set -euo pipefail
. scripts/tally.bash
tally quick echo "3 passed, 1 failed, 2 skipped" || true
tally slow timeout 50 bash -c '
    echo half of it
    until grep -q "half of it" "$OUT"; do sleep 0.05; done
    echo "4 passed, 0 failed"'
tally bad bash -c 'echo why; exit 3' || true
tally_end
"""


class Tally(unittest.TestCase):
    def test_a_long_step_is_seen(self):
        with tempfile.NamedTemporaryFile("w+") as out:
            subprocess.run(["bash", "-c", STEPS], cwd=ROOT, stdout=out,
                           timeout=60, check=False,
                           env={**os.environ, "OUT": out.name,
                                "TALLY_EVERY": "0.2"})
            out.seek(0)
            said = out.read()
        self.assertRegex(said, r"(?m)^     slow, \d+ s: half of it$")
        self.assertRegex(said, r"(?m)^ok   slow +4 passed +0 failed")
        self.assertIn("\n     | why\n     | exit status 3\n", said)
        self.assertTrue(said.endswith("\n7 passed, 2 failed, 2 skipped\n"),
                        said)
