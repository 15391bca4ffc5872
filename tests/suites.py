"""Which cases of a long list run in the core suite, and which in the long one alone."""

import pytest


def thinned(cases, core):
    """The cases as parameters of a test; those for which `core` says no belong to the long suite."""
    every = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*values, marks=() if core(*values) else pytest.mark.slow) for values in every]
