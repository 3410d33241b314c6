"""What is made is up to date."""

import os
import subprocess
import sys
import unittest


class Generated(unittest.TestCase):
    def test_sync_is_made_of_async(self):
        here = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([sys.executable, os.path.join(here, "..", "generate.py"), "--check"], stderr=subprocess.PIPE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
