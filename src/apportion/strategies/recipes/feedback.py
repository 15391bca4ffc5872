"""Methods that look at what they learned and then decide how much to spend."""

from __future__ import annotations

from apportion.strategies.clip import Fixed
from apportion.strategies.noise import AdaptivePrivacyUtility, Validation
from apportion.strategies.recipes.recipe import Recipe
from apportion.strategies.update import DPAGD, AdaDP, NoisyBTLS


def yu_validation(
    threshold: float = 1.0,
    counts: tuple[int, ...] = (4, 3, 2, 1),
    factor: float = 0.7,
    progress: float = 0.01,
    multiplier: float | None = None,
) -> Recipe:
    """DP-SGD with noise that falls when accuracy on public validation data stalls."""
    return Recipe(
        name="yu-validation",
        summary="fixed clip, noise falls when accuracy on public data stalls",
        clip=Fixed(threshold=threshold),
        noise=Validation(counts=counts, factor=factor, threshold=progress, multiplier=multiplier),
        adapts=("budget",),
        price="multiset",
        needs="public validation data",
    )


def fay_adaptive(threshold: float = 1.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with noise in proportion to the gradient's norm, as the last released gradient shows it."""
    return Recipe(
        name="fay-adaptive",
        summary="fixed clip, noise follows the norm of the last released gradient",
        clip=Fixed(threshold=threshold),
        noise=AdaptivePrivacyUtility(multiplier=multiplier),
        adapts=("budget",),
        price="filter",
    )


def adadp(threshold: float = 1.0, tolerance: float = 1.0, exponent: float = 0.5) -> Recipe:
    """DP-SGD whose learning rate follows the difference between one step and two half steps."""
    return Recipe(
        name="adadp",
        summary="fixed clip, learning rate follows the local error, two draws a step",
        clip=Fixed(threshold=threshold),
        update=AdaDP(tolerance=tolerance, exponent=exponent),
        adapts=("rate",),
    )


def dp_agd(threshold: float = 3.0, loss_bound: float = 3.0, growth: float = 0.1) -> Recipe:
    """Gradient descent with noisy choices among step sizes and a budget that grows when none helps."""
    return Recipe(
        name="dp-agd",
        summary="step sizes by a noisy choice among candidates; gradients improved until one helps",
        clip=Fixed(threshold=threshold),
        update=DPAGD(loss_bound=loss_bound, growth=growth),
        adapts=("budget", "rate"),
        price="filter",
    )


def noisy_btls(threshold: float = 1.0, loss_bound: float = 2.0, growth: float = 0.2) -> Recipe:
    """Gradient descent with a noisy backtracking line search; budgets follow the angles between noisy gradients."""
    return Recipe(
        name="noisy-btls",
        summary="step sizes by a noisy line search; budgets and thresholds follow angles between gradients",
        clip=Fixed(threshold=threshold),
        update=NoisyBTLS(loss_bound=loss_bound, growth=growth),
        adapts=("budget", "clip", "rate"),
        price="filter",
    )
