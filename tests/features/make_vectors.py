"""Makes scattering_vectors.npz with the published implementation; run it where that is installed, which needs no Apportion:

python -m venv reference; reference/bin/pip install kymatio==0.3.0 torch numpy scipy; reference/bin/python tests/features/make_vectors.py
"""

from pathlib import Path

import numpy as np
import torch
from kymatio.scattering1d.frontend.torch_frontend import ScatteringTorch1D
from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

IMAGES = {  # shape, J, L, depth
    "grey": ((1, 28, 28), 2, 8, 2),
    "colour": ((3, 13, 17), 2, 4, 2),
    "coarse": ((1, 17, 16), 3, 3, 2),
    "smallest": ((2, 4, 4), 2, 5, 2),
    "shallow": ((1, 9, 12), 1, 6, 1),
}
SIGNALS = {"signal": ((2, 64), 3), "long signal": ((1, 100), 4)}  # shape, J


def main():
    generator, found = torch.Generator().manual_seed(21), {}
    for name, (shape, scale, angles, depth) in IMAGES.items():
        inputs = torch.rand(1, *shape, generator=generator)
        transform = ScatteringTorch2D(scale, shape[1:], L=angles, max_order=depth)
        found |= {f"{name}: inputs": inputs, f"{name}: features": transform(inputs).flatten(1, 2)}
        found[f"{name}: settings"] = np.array([depth, angles, scale])
    for name, (shape, scale) in SIGNALS.items():
        inputs = torch.rand(1, *shape, generator=generator)
        transform = ScatteringTorch1D(scale, shape[1], Q=1)
        found |= {f"{name}: inputs": inputs, f"{name}: features": transform(inputs).flatten(1, 2)}
        found[f"{name}: settings"] = np.array([2, 1, scale])
        found[f"{name}: levels"] = np.nan_to_num(transform.meta()["j"])
    np.savez_compressed(
        Path(__file__).with_name("scattering_vectors.npz"), **{name: np.asarray(one) for name, one in found.items()}
    )


if __name__ == "__main__":
    main()
