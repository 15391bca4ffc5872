"""Features of a data set as the subject of a run: computed once, kept beside the data, and a head to be trained on them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from apportion.budget import Public
from apportion.compare.resolve import Subject, is_own, own_model
from apportion.data import DataSet, places
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import nn

    from apportion.compare.experiment import Experiment
    from apportion.compare.feature_choice import FeatureChoice
    from apportion.features.extractor import Extractor

DEFAULT_HEAD = "linear"


def on_features(experiment: Experiment, subject: Subject, data_dir: Path | None) -> Subject:
    """The subject with features in the place of its inputs, if the experiment names some; they are computed once and kept beside the data.

    The file is secret, as the records are. What is trained then is a head: one linear layer from zero, or the model that was named.
    """
    choice = experiment.features
    if choice is None:
        return subject
    from apportion.curator.records import as_records
    from apportion.features.extraction import extract
    from apportion.features.extractor import Extractor

    if subject.table is not None:
        reason = "a table is encoded by its schema, and feature maps are for images and signals"
        raise InvalidArgument("features", choice.kind, reason, "Leave it out")
    for name in ("group_column", "user_column"):
        if getattr(experiment, name) not in (None, "writers"):
            reason = "it names an input, and features take the place of the inputs"
            raise InvalidArgument(name, getattr(experiment, name), reason, "Pass a file: --group-labels or --user-ids")
    inputs = as_records(subject.train).example[0]
    if not hasattr(inputs, "shape"):
        reason = "its records have several inputs, and a feature map takes one tensor"
        raise InvalidArgument("data", subject.data_name, reason, "Put them into one tensor")
    extractor = Extractor(choice.build_map(), tuple(inputs.shape), choice.build_norm(), inputs.dtype)
    folder = feature_folder(data_dir)
    test = None if subject.test is None else Public(extract(extractor, subject.test.data, cache=folder))
    name = experiment.model or DEFAULT_HEAD
    build = partial(build_head, name, extractor.width, classes_of(subject))
    return replace(
        subject,
        train=extract(extractor, subject.train, cache=folder),
        test=test,
        model_name=f"{choice.kind} + {name}",
        build=lambda activation=None: scaled(choice, extractor, build(activation)),
        domain=None if subject.domain is None else replace(subject.domain, inputs=None),
        extractor=extractor,
    )


def scaled(choice: FeatureChoice, extractor: Extractor, head: nn.Module) -> nn.Module:
    """The head behind the layer that normalises channels, where the run asks for that."""
    if choice.channel_norm() is None:
        return head
    from torch import nn

    from apportion.features.feature_norms import ChannelScaling

    return nn.Sequential(ChannelScaling(extractor.channels, extractor.positions), head)


def classes_of(subject: Subject) -> int | None:
    """The number of classes, where it is declared."""
    return None if subject.domain is None else subject.domain.classes


def feature_folder(data_dir: Path | None) -> Path:
    """Where features are kept: in the first place for data that can be written to."""
    found = [place for place in places.places("", data_dir) if os.access(_existing(place), os.W_OK)]
    return (found or [places.home(data_dir)])[0] / "features"


def _existing(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())


def build_head(name: str, width: int, classes: int | None, activation: str | None = None) -> nn.Module:
    """A model of features by its name, or a person's own `module:function`."""
    import torch

    from apportion.compare import networks
    from apportion.features.feature_head import linear_head

    if is_own(name):
        return own_model(name, activation)
    if classes is None:
        reason = "the number of classes is not declared, so the layer that is trained on features must be your own"
        raise InvalidArgument("model", name, reason, "Pass --model module:function, a head for features")
    if name == DEFAULT_HEAD and activation is None:
        return linear_head(width, classes)
    nothing = torch.empty(0, width), torch.empty(0)
    form = DataSet("features", nothing, Public(nothing), classes, (width,), None, "table")
    return networks.build(name, form, activation)
