import numpy as np
import pytest
import torch
from small_teachers import SHARES

import apportion as ap


@pytest.fixture
def three():
    """A budget of three groups."""
    return ap.Budget.of_groups(SHARES, delta=1e-5, unit=ap.Record())


@pytest.fixture
def people():
    """Sixty records of two features, two classes and three groups."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(60, 2, generator=generator)
    return (inputs, (inputs[:, 0] > 0).long()), np.arange(60) % 3


VARIANTS = {
    "weighting": ap.teachers.Weighting(),
    "sized": ap.teachers.Weighting(size_weighted=True),
    "upsampling": ap.teachers.Upsampling(),
    "vanishing": ap.teachers.Vanishing(),
    "together": ap.teachers.Vanishing(by="mu"),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]
