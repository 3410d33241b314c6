"""All of them keep their ledger in the same file: in a row they clean up after each
other, and in forks each has that file to itself."""

import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from ledger import Ledger, Refused

PATH = "/tmp/ledger.json"


@pytest.fixture
def ledger():
    if os.path.exists(PATH):
        os.remove(PATH)
    made = Ledger(PATH, settle=0.05)
    made.open("a", 100)
    made.open("b")
    return made


@pytest.mark.parametrize("amount", range(1, 101, 9))
def test_transfers(ledger, amount):
    ledger.transfer("a", "b", amount)
    assert (ledger.accounts["a"], ledger.accounts["b"]) == (100 - amount, amount)
    assert ledger.total() == 100


@pytest.mark.parametrize("amount", [-1, 0, 101, 10**9])
def test_refused(ledger, amount):
    with pytest.raises(Refused):
        ledger.transfer("a", "b", amount)
    assert ledger.accounts == {"a": 100, "b": 0}


@pytest.mark.parametrize("times", [1, 2, 5])
def test_kept(ledger, times):
    for _ in range(times):
        ledger.transfer("a", "b", 1)
        assert Ledger(PATH).accounts == ledger.accounts


def test_opened_twice(ledger):
    with pytest.raises(Refused):
        ledger.open("a")
