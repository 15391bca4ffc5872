"""The named combinations of the literature: one choice for each role.

`ap.recipes.lin_decay(start=0.5)` in Python, `--recipe lin-decay --set clip.start=0.5` on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from apportion import validate
from apportion.strategies.recipes.adaptive_clips import (
    adaclip,
    andrew,
    auto_s,
    dc_sgd_e,
    dc_sgd_p,
    he_equal,
    he_global,
    van_der_veen,
)
from apportion.strategies.recipes.basics import abadi, default, non_private, papernot
from apportion.strategies.recipes.clip_schedules import lin_decay, lin_transfer, yu_clip
from apportion.strategies.recipes.dynamic import du_dynamic, du_growing, du_sensitivity
from apportion.strategies.recipes.feedback import adadp, dp_agd, fay_adaptive, noisy_btls, yu_validation
from apportion.strategies.recipes.noise_schedules import (
    fay_fixed,
    hong,
    yu_noise_exponential,
    yu_noise_polynomial,
    yu_noise_step,
    yu_noise_time,
    zhang,
)
from apportion.strategies.recipes.recipe import PRICES, ROLES, Recipe
from apportion.strategies.recipes.updates import adamw, adamw_bc, doppler

_FUNCTIONS = (
    *(non_private, default, abadi, papernot),
    *(lin_decay, lin_transfer, yu_clip),
    *(andrew, adaclip, van_der_veen, he_global, he_equal, auto_s, dc_sgd_p, dc_sgd_e),
    *(du_growing, du_sensitivity, du_dynamic),
    *(yu_noise_time, yu_noise_exponential, yu_noise_step, yu_noise_polynomial),
    *(zhang, hong, fay_fixed),
    *(adamw, adamw_bc, doppler),
    *(yu_validation, fay_adaptive, adadp, dp_agd, noisy_btls),
)

RECIPES: Mapping[str, Callable[..., Recipe]] = {
    function.__name__.replace("_", "-"): function for function in _FUNCTIONS
}


def named(name: str) -> Recipe:
    """The recipe with this name and its default hyper-parameters."""
    return RECIPES[validate.known("recipe", name, RECIPES)]()


READY = tuple(name for name in RECIPES if named(name).complete)
"""The recipes that run as they are; the others wait for something that only a person can bring."""

__all__ = [
    "PRICES",
    "READY",
    "RECIPES",
    "ROLES",
    "Recipe",
    "abadi",
    "adaclip",
    "adadp",
    "adamw",
    "adamw_bc",
    "andrew",
    "auto_s",
    "dc_sgd_e",
    "dc_sgd_p",
    "default",
    "doppler",
    "dp_agd",
    "du_dynamic",
    "du_growing",
    "du_sensitivity",
    "fay_adaptive",
    "fay_fixed",
    "he_equal",
    "he_global",
    "hong",
    "lin_decay",
    "lin_transfer",
    "named",
    "noisy_btls",
    "non_private",
    "papernot",
    "van_der_veen",
    "yu_clip",
    "yu_noise_exponential",
    "yu_noise_polynomial",
    "yu_noise_step",
    "yu_noise_time",
    "yu_validation",
    "zhang",
]
