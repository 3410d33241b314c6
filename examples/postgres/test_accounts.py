import pando
import pytest


def test_everybody_begins_with_a_hundred(db):
    assert db.sql("select count(*), min(amount), max(amount) from accounts") == [["1000", "100", "100"]]


def test_what_a_test_deletes(db):
    db.sql("drop table accounts")
    with pytest.raises(pando.ExitError, match="does not exist"):
        db.sql("select * from accounts")


@pytest.mark.parametrize("amount", [1, 50, 100])
def test_no_other_sees(db, amount):
    assert db.sql("select sum(amount) from accounts") == [["100000"]]
    db.sql(f"update accounts set amount = amount - {amount} where name = 'a1'")
    assert db.sql("select amount from accounts where name = 'a1'") == [[str(100 - amount)]]


def test_overdrawn(db):
    with pytest.raises(pando.ExitError, match="accounts_amount_check"):
        db.sql("update accounts set amount = amount - 101 where name = 'a1'")
