"""Every comparison that decides a price, one last bit to either side of its bound: no tolerance but the one that is declared."""

import math

import pytest

from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.budget import Budget, Record
from apportion.errors import BudgetExhausted
from apportion.request import Event

RATE, MULTIPLIER = 0.013, 1.7
MORE, LESS = math.inf, -math.inf


def ulp(value, towards):
    return math.nextafter(value, towards)


NEAR = [
    (Event(RATE, MULTIPLIER), True),
    (Event(ulp(RATE, LESS), MULTIPLIER), True),
    (Event(RATE, ulp(MULTIPLIER, MORE)), True),
    (Event(ulp(RATE, MORE), MULTIPLIER), False),
    (Event(RATE, ulp(MULTIPLIER, LESS)), False),
    (Event(ulp(RATE, MORE), 2 * MULTIPLIER), False),  # nothing makes up for the other
    (Event(RATE / 2, ulp(MULTIPLIER, LESS)), False),
    (Event(RATE * 1.0005, MULTIPLIER), False),
    (Event(RATE, MULTIPLIER * 0.9995), False),
]


@pytest.mark.parametrize(("event", "covered"), NEAR, ids=str)
def test_a_token_covers_what_it_declares_to_the_last_bit(event, covered):
    assert Event(RATE, MULTIPLIER).covers(event) is covered
    budget = Budget(epsilon=1.0, delta=1e-5, unit=Record())
    account = Account(budget, [Event(RATE, MULTIPLIER)] * 2, PrivacyLossAccountant(), Ledger.create())
    if covered:
        account.charge(event)
    else:
        with pytest.raises(BudgetExhausted):
            account.charge(event)
    assert account.spent == covered
