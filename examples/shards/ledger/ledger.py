"""A small ledger: accounts, transfers, and a file that all of it is kept in."""

import json
import os
import time


class Refused(Exception):
    """A transfer that would overdraw an account, or is of nothing."""


class Ledger:
    def __init__(self, path, settle=0.0):
        self.path, self.settle, self.accounts = path, settle, {}
        if os.path.exists(path):
            with open(path) as f:
                self.accounts = json.load(f)

    def open(self, name, amount=0):
        if name in self.accounts:
            raise Refused(f"{name} is there")
        self.accounts[name] = amount
        self._keep()

    def transfer(self, source, to, amount):
        if amount <= 0 or self.accounts[source] < amount:
            raise Refused(f"{source} can't give {amount}")
        self.accounts[source] -= amount
        self.accounts[to] += amount
        self._keep()

    def total(self):
        return sum(self.accounts.values())

    def _keep(self):
        time.sleep(self.settle)  # a bank takes its time
        with open(self.path + ".new", "w") as f:
            json.dump(self.accounts, f)
        os.replace(self.path + ".new", self.path)
