"""`train` and `make_private` on ranks that take turns in this process: as with a process group, in less time."""

import threading
from unittest.mock import patch

from apportion.distributed import ProcessGroupRanks, Turns
from apportion.training import sharded_runs

_here = threading.local()


def in_turn(count, function, *arguments):
    """What `function(rank, *arguments)` returns on each rank."""

    def work(link):
        _here.link = link
        return function(link.get_rank(), *arguments)

    with patch.object(sharded_runs, "find_ranks", _ranks):
        return Turns(count).run(work)


def each_in_turn(count, function, *arguments):
    """What it returns or raises on each rank."""

    def attempt(rank, *arguments):
        try:
            return function(rank, *arguments)
        except Exception as error:
            return error

    return in_turn(count, attempt, *arguments)


def _ranks(noise_from="every rank"):
    return ProcessGroupRanks(noise_from, link=_here.link)
