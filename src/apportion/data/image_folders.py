"""Images in class folders: `folder:PATH`, and Tiny ImageNet.

    PATH/train/<class>/*.png   and   PATH/test/<class>/*.png     (or val/, or validation/)
    PATH/<class>/*.png                                           one image in five is held out, chosen by its name
    PATH/train/<class>/images/*.JPEG   and   PATH/val/val_annotations.txt + PATH/val/images/*.JPEG      (Tiny ImageNet)

Every image becomes RGB, whatever it is stored as: the number of channels must not follow the private records. For the same
reason the classes are the folders, so that an empty folder is still a class.

The test part is declared public. In a folder without one, that holds for the images that are held out: nothing is promised
about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.budget import Public
from apportion.data import files, order, tensors
from apportion.data.entry import DataSet, Entry
from apportion.errors import DataNotFound, InvalidArgument
from apportion.extras import require_extra

EXTENSIONS = (".png", ".jpg", ".jpeg")
TEST_FOLDERS = ("test", "val", "validation")
LAYOUT = "train/<class>/*.png and test/<class>/*.png, or <class>/*.png alone (.jpg is read too)"

Labelled = tuple[Path, int]  # an image and the number of its class


def read(entry: Entry, folder: Path) -> DataSet:
    """Tiny ImageNet. As float32 it takes 5.4 GB of memory."""
    classes, train, test = scan(folder)
    if len(classes) > entry.classes:
        raise InvalidArgument("folder", str(folder), f"it has {len(classes)} classes", "Fetch the data set again")
    return entry.dataset(stack(train, entry.shape), stack(test, entry.shape), folder)


def read_path(path: Path) -> DataSet:
    """A folder of one's own. Its population is not known in public: whoever trains declares it."""
    expected = f"Expected in it: {LAYOUT}. To try Apportion without files, use the data set digits."
    if not path.is_dir():
        raise DataNotFound(f"folder:{path} is not a folder. {expected}")
    classes, train, test = scan(path)
    if len(classes) < 2 or not train:
        found = f"{len(train)} training images in {len(classes)} class folders"
        raise DataNotFound(f"folder:{path} holds {found}; at least two classes are needed. {expected}")
    shape = _pixels(train[0][0]).shape
    return DataSet(
        name=f"folder:{path}",
        train=stack(train, shape),
        test=Public(stack(test, shape)),
        classes=len(classes),
        shape=shape,
        population=None,
        kind="image",
        source=str(path),
    )


def scan(root: Path) -> tuple[list[str], list[Labelled], list[Labelled]]:
    """The classes, the training images and the test images, in an order that mixes the classes."""
    base = root / "train" if (root / "train").is_dir() else root
    classes = [path.name for path in _folders(base)]
    found = _images(base, classes)
    annotations = root / "val" / "val_annotations.txt"
    test_folders = [root / name for name in TEST_FOLDERS if base is not root and (root / name).is_dir()]
    if annotations.is_file():
        return classes, found, _annotated(annotations, classes)
    if test_folders:
        return classes, found, _images(test_folders[0], classes)
    train = [item for item in found if not order.held_out(_key(base, item))]
    test = [item for item in found if order.held_out(_key(base, item))]
    return classes, train, test


def stack(items: Sequence[Labelled], shape: tuple[int, ...]) -> tensors.Pair:
    """Read the images into one float32 tensor, without a second copy of it."""
    inputs = torch.empty((len(items), *shape), dtype=torch.float32)
    for row, (path, _) in enumerate(items):
        pixels = _pixels(path)
        if pixels.shape != shape:
            size = f"{shape[2]}x{shape[1]}"
            reason = f"it is {pixels.shape[2]}x{pixels.shape[1]} pixels and others are {size}"
            fix = f"Bring all images to one size first, e.g. `mogrify -resize {size}! {path.parent}/*`"
            raise files.unfit(path, reason, fix)
        inputs[row] = torch.from_numpy(pixels).div(255)
    return inputs, torch.tensor([label for _, label in items], dtype=torch.int64)


def _pixels(path: Path) -> np.ndarray[Any, Any]:
    require_extra("data", "PIL")
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as problem:  # a damaged image can fail in any way
        raise files.unfit(path, f"it is not a readable image ({problem})", "Remove it") from None


def _folders(base: Path) -> list[Path]:
    return sorted(path for path in base.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(base: Path, classes: list[str]) -> list[Labelled]:
    unknown = [path.name for path in _folders(base) if path.name not in classes]
    if unknown:
        fix = "Rename it, or add it to train/"
        raise InvalidArgument("folder", str(base / unknown[0]), "there is no such class in train/", fix)
    items = []
    for number, name in enumerate(classes):
        folder = base / name
        for inside in (folder, folder / "images"):
            if inside.is_dir():
                items += [(path, number) for path in inside.iterdir() if path.suffix.lower() in EXTENSIONS]
    return sorted(items, key=lambda item: (order.position(_key(base, item)), item))


def _annotated(path: Path, classes: list[str]) -> list[Labelled]:
    """Tiny ImageNet's validation part: each line is an image, its class and a box, separated by tabs."""
    items = []
    for line in files.read_text(path).split("\n"):
        fields = line.split("\t")
        if len(fields) >= 2:
            if fields[1] not in classes:
                raise files.unfit(path, f"the class {fields[1]} is not in train/", "Fetch it again")
            items.append((path.parent / "images" / fields[0], classes.index(fields[1])))
    return items


def _key(base: Path, item: Labelled) -> str:
    return item[0].relative_to(base).as_posix()
