"""Exact laws of selections for tests: what each outcome's probability is, computed and not drawn."""

import itertools
import math

import numpy as np
from scipy.stats import laplace


def gumbel_law(totals, scale):
    """argmin(Ω_j − Gumbel): softmax of −Ω/scale."""
    weights = np.exp(-(np.asarray(totals, float) - min(totals)) / scale)
    return weights / weights.sum()


def exponential_law(totals, scale):
    """argmin(Ω_j − Exp): j wins iff x > m = max_i (Ω_j − Ω_i)₊, and then each other falls short with 1 − e^{−(x + Ω_i − Ω_j)/b}.

    The product over the others is multiplied out: ∫_m^∞ of e^{−x(1+|S|)/b} for every set S of them.
    """
    totals = np.asarray(totals, float) / scale
    law = []
    for j, own in enumerate(totals):
        ahead = np.delete(totals, j) - own
        least = max(0.0, -ahead.min(initial=0.0))
        terms = [
            (-1) ** size * math.exp(-sum(some) - least * (1 + size)) / (1 + size)
            for size in range(len(ahead) + 1)
            for some in itertools.combinations(ahead.tolist(), size)
        ]
        law.append(math.fsum(terms))
    return np.array(law)


def wrong_sign_law(totals, scale):
    """argmin(Ω_j + Exp), by quadrature: each other must lie above Ω_j + x."""
    totals = np.asarray(totals, float) / scale
    x = np.linspace(0.0, 40.0, 400_001)
    return np.array(
        [
            np.trapezoid(np.exp(-x - np.maximum(own + x[:, None] - np.delete(totals, j), 0.0).sum(axis=1)), x)
            for j, own in enumerate(totals)
        ]
    )


def above_threshold_law(gains, threshold_scale, gain_scale):
    """P[first "above" is j] for every j, and last that there is none, by quadrature over the threshold."""
    gains = np.asarray(gains, float)
    kinks = np.unique([0.0, *gains])
    reach = 60 * max(threshold_scale, gain_scale)
    edges = [kinks[0] - reach, *kinks, kinks[-1] + reach]
    nodes, weights = np.polynomial.legendre.leggauss(120)
    law = np.zeros(len(gains) + 1)
    for low, high in itertools.pairwise(edges):  # smooth between kinks, in pieces of a few scales
        pieces = np.linspace(low, high, 2 + math.ceil((high - low) / (8 * min(threshold_scale, gain_scale))))
        for start, stop in itertools.pairwise(pieces):
            t = (start + stop) / 2 + (stop - start) / 2 * nodes
            density = weights * (stop - start) / 2 * laplace.pdf(t, scale=threshold_scale)
            below = laplace.cdf(t[None, :] - gains[:, None], scale=gain_scale)
            still = np.vstack([np.ones_like(t), np.cumprod(below, axis=0)])
            above = np.vstack([laplace.sf(t[None, :] - gains[:, None], scale=gain_scale), np.ones_like(t)])
            law += (density * still * above).sum(axis=1)
    return law
