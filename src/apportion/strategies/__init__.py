"""What decides: clip, noise and their named combinations. Strategies see released values and public facts, nothing else.

A strategy is a frozen dataclass, its public hyper-parameters, with explicit state:

    state = strategy.init(context)
    part = strategy.propose(state, context)     # its part of the request
    state = strategy.observe(state, released)   # only what was released

No strategy has a path to a raw record, gradient, norm, loss or batch size.
"""

from apportion.strategies.context import Context

__all__ = ["Context"]
