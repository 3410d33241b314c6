"""What is made is up to date."""

import os
import re
import subprocess
import sys
import unittest

import pando


class Generated(unittest.TestCase):
    def test_sync_is_made_of_async(self):
        here = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([sys.executable, os.path.join(here, "..", "generate.py"), "--check"], stderr=subprocess.PIPE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_every_call_is_documented(self):
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(here, "..", "..", "..", "docs", "howto", "python.md"), encoding="utf-8") as f:
            table = f.read().partition("## Every call")[2]
        said = set(re.findall("`([a-z_]+)`", table))
        for of in (pando.Client, pando.Cell, pando.Template, pando.Run, pando.Process, pando.Connection):
            calls = {n for n, v in vars(of).items() if callable(v) and not n.startswith("_")}
            self.assertEqual(calls - said, set(), of.__name__)
        for name in vars(pando.Client):
            if not name.startswith("_") and name != "close":
                self.assertTrue(hasattr(pando, name), f"the module has no {name}")


if __name__ == "__main__":
    unittest.main()
