"""A database of its own for each test: a fork of one that is set up once."""

import glob
import os
from concurrent.futures import ThreadPoolExecutor

import pando
import pytest

BIN = max(glob.glob("/usr/lib/postgresql/*/bin"))
AS = "setpriv --reuid nobody --regid nogroup --clear-groups " if os.geteuid() == 0 else ""  # PostgreSQL refuses to be root
INIT = f"{'chown nobody . &&' if AS else ''} {AS}{BIN}/initdb -D data -A trust -U app --no-sync && echo 'fsync = off' >>data/postgresql.conf"
START = f"""
{AS}{BIN}/postgres -D data -k /workspace -c listen_addresses= >log 2>&1 </dev/null &
until {BIN}/pg_isready -q -h /workspace; do kill -0 $! 2>/dev/null || {{ cat log >&2; exit 1; }}; sleep 0.01; done
"""
STOP = f"{AS}{BIN}/pg_ctl -D data -m fast stop"
SCHEMA = """
create table accounts (name text primary key, amount int check (amount >= 0));
insert into accounts select 'a' || n, 100 from generate_series(1, 1000) n;
"""


class Database:
    def __init__(self, cell):
        self.cell = cell
        cell.exec(START, check=True)

    def sql(self, text):
        """Returns the rows of a statement, as lists of strings."""
        psql = [BIN + "/psql", "-h", "/workspace", "-U", "app", "-d", "postgres", "-AtqX", "-v", "ON_ERROR_STOP=1", "-c", text]
        return [line.split("|") for line in self.cell.exec(psql, check=True).text.splitlines()]


@pytest.fixture(scope="session")
def prepared():
    """A database with its schema, at rest."""
    with pando.create(source="") as cell:
        cell.exec(INIT, check=True)
        Database(cell).sql(SCHEMA)
        cell.exec(STOP, check=True)
        yield cell, cell.checkpoint("with its schema")


@pytest.fixture(scope="session")
def databases(prepared):
    """Forks of it that run. The next one begins while a test has the last."""
    cell, point = prepared

    def fork():
        return Database(cell.fork(checkpoint=point)[0])

    def forks():
        with ThreadPoolExecutor(1) as beside:
            coming = beside.submit(fork)
            try:
                while True:
                    ready, coming = coming.result(), beside.submit(fork)
                    yield ready
            finally:
                coming.result().cell.remove()

    all = forks()
    yield all
    all.close()


@pytest.fixture
def db(databases):
    """A database of the test's own: what it writes, no other sees."""
    mine = next(databases)
    yield mine
    mine.cell.remove()
