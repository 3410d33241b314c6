"""Runs a project's tests in N forks of one warm cell, and then in a row, to compare.

    shards.py PROJECT [N]
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pando

# What every fork has done already when it begins: pytest is imported, the project
# and its tests are imported and collected.
SETUP = """
import pytest

class Shard:
    def __init__(self, mine=None):
        self.mine, self.tests, self.results = mine, [], []
    def pytest_collection_modifyitems(self, items):
        self.tests = [i.nodeid for i in items]
        if self.mine is not None:
            items[:] = [i for i in items if i.nodeid in self.mine]
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.results.append((report.nodeid, report.outcome, report.duration, report.longreprtext))

def run(mine, *args):
    shard = Shard(mine)
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *args], plugins=[shard])
    return shard

tests = run(None, "--collect-only").tests
"""


def share(cell, tests):
    return cell.eval(f"run({set(tests)!r}).results")


def main(project, n):
    template = pando.build_template("shards", source=project, setup=SETUP, env=["PYTHONDONTWRITEBYTECODE=1"])
    try:
        tests = template.map("tests")[0]
        began = time.monotonic()
        with template.fork(n) as cells, ThreadPoolExecutor(n) as at_once:
            results = sum(at_once.map(share, cells, [tests[k::n] for k in range(n)]), [])
            forked = time.monotonic() - began
        with template.fork() as cells:
            began = time.monotonic()
            serial = share(cells[0], tests)
            in_a_row = time.monotonic() - began
    finally:
        template.remove(force=True)

    for name, outcome, _, why in sorted(results):
        if outcome == "failed":
            print(f"{name}\n{why}")
    passed = sum(outcome == "passed" for _, outcome, _, _ in results)
    print(f"{passed} of {len(tests)} passed, in {n} forks: {forked:.2f} s; in a row: {in_a_row:.2f} s: {in_a_row / forked:.1f} times as fast")
    if sorted(r[:2] for r in results) != sorted(r[:2] for r in serial):
        sys.exit("the results are not those of the run in a row: some tests need others before them")
    sys.exit(passed != len(tests))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2 * os.cpu_count())
