"""How many malformed inputs are tried.

`APPORTION_FUZZ` is the number of refusals wanted of all tests together. Without it a small sample is tried, always the same one,
so that the core suite does not depend on luck.
"""

import os

from hypothesis import HealthCheck, Phase, settings

SAMPLE = 300
WANTED = int(os.environ.get("APPORTION_FUZZ", 0))
SPARE = 1.15  # some of what is made turns out to be valid
SHARES = 1750  # the sum of all shares


def share(weight):
    """The settings of a test that makes this part of all inputs."""
    examples = (WANTED * SPARE if WANTED else SAMPLE) * weight / SHARES
    return settings(
        max_examples=max(1, round(examples)),
        derandomize=not WANTED,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),  # to explain a failure would take thousands of commands more
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
