"""Three ways to refactor the same function, each tried in a fork of one cell: what
passes the tests and is fastest is taken over, with signed receipts of all three."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pando

# A scripted agent: what a model would have come up with.
IDEAS = {
    "sieve": r"""
cat > primes.py <<'END'
def primes(n):
    "The prime numbers below n."
    alive = bytearray([1]) * n
    alive[:2] = b"\0\0"[:n]
    for k in range(2, int(n ** 0.5) + 1):
        if alive[k]:
            alive[k * k::k] = bytes(len(range(k * k, n, k)))
    return [k for k in range(n) if alive[k]]
END
""",
    "square root": r"sed -i 's/range(2, k)/range(2, int(k ** 0.5) + 1)/' primes.py",
    "odd numbers": r"sed -i 's/for k in range(2, n)/for k in range(3, n, 2)/' primes.py",  # forgets 2
}


def attempt(cell, idea):
    run = cell.run(IDEAS[idea], check="python3 -m unittest -q test_primes")
    took = float(cell.exec("python3 measure.py", check=True).text) if run.ok else None
    return idea, run, took


def main(project):
    with pando.create(source=project) as base, base.fork(len(IDEAS)) as cells:
        with ThreadPoolExecutor(len(IDEAS)) as at_once:
            tried = list(at_once.map(attempt, cells, IDEAS))
        print(f"{'idea':12}  {'tests':6}  {'lines':>7}  {'20,000 primes':>13}  verdict")
        for idea, run, took in tried:
            lines = f"+{sum(f.added for f in run.diff().files)} -{sum(f.deleted for f in run.diff().files)}"
            time = f"{took:.1f} ms" if took else ""
            print(f"{idea:12}  {'pass' if run.ok else 'fail':6}  {lines:>7}  {time:>13}  {run.verdict}")
        good = [t for t in tried if t[2]]
        if not good:
            sys.exit("none of them passes the tests")
        idea, best, _ = min(good, key=lambda t: t[2])
        best.accept(apply=True)
        for _, run, _ in tried:
            pando.verify(run.id)
        print(f"{idea} is in {os.path.basename(os.path.abspath(project))} now; the receipts of all three are verified")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "project")
