"""Short ways to a run for tests: plan and storage are made from keyword arguments, and the public functions are called with them."""

from dataclasses import dataclass

import apportion as ap
from apportion.audit import replay as replay_audit
from apportion.curator import mechanisms
from apportion.planning import Plan, plan_steps
from apportion.sampling import Sampling


@dataclass(frozen=True)
class Recovery:
    """How a run with a folder recovers: two fields of `Storage`, and the plan's spare steps (a hundredth of the run)."""

    mode: str = "fresh"
    spare: int | None = None
    every: int | None = None


class Gaussian:
    """Mechanisms whose Gaussian is another function; selections are made as ever."""

    noisy_argmin, above_threshold = staticmethod(mechanisms.noisy_argmin), staticmethod(mechanisms.above_threshold)

    def __init__(self, function):
        self.add_gaussian_noise = function


def recipe(clip=None, noise=None, update=None):
    """A recipe of the roles that were given."""
    roles = {"clip": clip, "noise": noise, "update": update}
    return ap.Recipe(**{role: strategy for role, strategy in roles.items() if strategy is not None})


def make_plan(budget, sampling, clip, noise=None, accountant=None, spare=0) -> Plan:
    """The plan of two roles for a sampling that exists already."""
    return plan_steps(recipe(clip, noise), budget, sampling, spare, accountant)


def _arguments(options):
    """What the public functions take, from what tests say."""
    options = dict(options)
    kept = Recovery() if (given := options.pop("recovery", None)) is None else given
    folder = options.pop("out", None)
    roles = {role: options.pop(role, None) for role in ("clip", "noise", "update")}
    names = ("budget", "population", "batch_size", "epochs", "sample_rate", "steps", "count_usable")
    sampling = {name: options.pop(name) for name in names if name in options}
    spare = kept.spare or 0
    if kept.spare is None and folder is not None:
        declared = {name: value for name, value in sampling.items() if name not in ("budget", "count_usable")}
        spare = Sampling.declare(**{"population": None, **declared}).steps // 100
    plan = ap.plan(recipe(**roles), **sampling, spare=spare)
    storage = ap.Storage(
        folder=folder,
        ledger=options.pop("ledger", None),
        recovery=kept.mode,
        every=kept.every,
        resume=options.pop("resume", False),
    )
    if (on_step := options.pop("on_step", None)) is not None:
        options["progress"] = on_step
    return plan, {**options, "storage": storage}


def train(model, loss_fn, data, **options):
    plan, rest = _arguments(options)
    return ap.train(model, loss_fn, data, plan, **rest)


def make_private(model, optimizer, data, **options):
    plan, rest = _arguments(options)
    return ap.make_private(model, optimizer, data, plan, **rest)


def replay(model, loss_fn, data, *, clip=None, noise=None, update=None, **options):
    return replay_audit(model, loss_fn, data, recipe(clip, noise, update), **options)
