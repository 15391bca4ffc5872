"""Which cases of a long list run in the core suite, and which in the long one alone."""

import pytest


def thinned(cases, core):
    """The cases as parameters of a test; those for which `core` says no belong to the long suite."""
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        yield pytest.param(*values, marks=() if core(*values) else pytest.mark.slow)
