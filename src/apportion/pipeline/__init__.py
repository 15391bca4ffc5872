"""A model too large for one device, cut into stages of `torch.distributed.pipelining`; every stage clips its own parameters.

    stage 0 ──activations──► stage 1 ──► … ──► last stage: losses
            ◄──gradients───         ◄── …

Clipping all parameters of a record together would need the norms of every stage before any of them can clip. Here the parameters of a
stage are groups of their own (He et al. 2022, per-device clipping), so that nothing but activations and their gradients goes from one stage
to the next. The plan, the price, the strategies, the ledger and the order of a request are those of `apportion.train`; `stages.py` has the
model as one process knows it, `stage_vetting.py` what a stage must fulfil, `chunks.py` and `stage_runner.py` the way of a micro-batch
through it, `pipeline_ranks.py` what the processes say to each other, `pipeline_curator.py` the trust boundary, and
`pipeline_replay.py` the audit on neighbouring data sets.
"""

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.pipeline.pipeline_replay import replay
    from apportion.pipeline.pipeline_training import train
    from apportion.pipeline.stages import per_device

__all__ = ["per_device", "replay", "train"]

__getattr__, __dir__ = lazy_names(
    __name__, {"pipeline_replay": ("replay",), "pipeline_training": ("train",), "stages": ("per_device",)}
)
