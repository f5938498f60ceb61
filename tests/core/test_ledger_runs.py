"""What an agent run counts for a call that was taken for lost, and came back."""

from __future__ import annotations

import pytest

from routewright.testing.storage.samples import AT, make_row
from routewright.wire import AddCredit, RunLimit

from .ledgers import Ledger

RUN = RunLimit("r", 10_000)


@pytest.mark.parametrize(("cost", "overrun"), [(500, 0), (800, 0), (900, 100)])
def test_what_had_expired_of_a_run_pays_for_the_call_after_all(cost: int, overrun: int) -> None:
    ledger = lost()
    ledger.settle("lost", make_row("lost", charge=0, cost=cost))
    assert ledger.rows()[-1].overrun_nanos == overrun
    assert ledger.purse("run:r", run=RUN).spent_nanos == cost


@pytest.mark.parametrize(("cost", "overrun"), [(1_000, 0), (1_050, 50)])
def test_what_had_expired_of_a_run_pays_with_what_is_held_again(cost: int, overrun: int) -> None:
    ledger = lost()
    ledger.settle("c")
    ledger.reserve("lost", 200, run=RUN, owner="slow", clock_s=40.0)
    ledger.settle("lost", make_row("lost", charge=0, cost=cost))
    assert ledger.rows()[-1].overrun_nanos == overrun


def lost() -> Ledger:
    """Of a call in a run that had 800 reserved when its owner was gone."""
    ledger = Ledger(prepaid=True)
    ledger.books.put(AddCredit("cr_1", 1_000, AT))
    ledger.reserve("lost", 800, run=RUN, owner="slow")
    ledger.reserve("c", 1_000, clock_s=31.0)
    return ledger
