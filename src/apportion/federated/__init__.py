"""User-level private federated averaging (McMahan et al. 2018, DP-FedAvg) with any clip and noise strategy of the library.

    every client of the population ──coin──► asked ──local training──► updates ──► clip · sum · noise once ÷ (p·M) ──► server update

A client is a user: the guarantee is about adding or removing one client with all its records. The order of a round is the curator's own
(charge, coins, clip, noise), the plan, the strategies and the ledger are those of `apportion.train`; only where a vector comes from
differs. `clients.py` says what a server asks of clients and gets back, `reception.py` what of it counts, `federated_curator.py` answers a
request by one round, `simulated_clients.py` are clients in this process, `flower_clients.py` are those behind Flower, and
`federated_replay.py` audits a run on neighbouring sets of clients.
"""

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.federated.clients import Asked, Clients, Reply
    from apportion.federated.federated_replay import replay
    from apportion.federated.federated_training import train
    from apportion.federated.local_training import LocalSGD

__all__ = ["Asked", "Clients", "LocalSGD", "Reply", "replay", "train"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "clients": ("Asked", "Clients", "Reply"),
        "federated_replay": ("replay",),
        "federated_training": ("train",),
        "local_training": ("LocalSGD",),
    },
)
