"""Features of private records: each record's own, in bounded memory, in a file that only fits what it was made from."""

import stat

import numpy as np
import pytest
import torch
from torch import nn

import apportion as ap
from apportion.features import Extractor, Pretrained, extract, extraction, feature_files

SHAPE = (1, 4, 4)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(extraction, "CHUNK_RECORDS", 4)


@pytest.fixture(scope="module")
def scatter():
    return Extractor(ap.features.Scatter(), SHAPE)


@pytest.fixture(scope="module")
def images():
    return torch.rand(11, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.arange(11)


class Fragile(nn.Module):
    """Fails on a record, and takes its batch with it."""

    def forward(self, x):
        if bool((x > 5).any()):
            raise SystemExit("a damaged record")
        return x


class Images(torch.utils.data.Dataset):
    def __init__(self, data, damaged=()):
        self._inputs, self._targets = data
        self._damaged = damaged

    def __len__(self):
        return len(self._inputs)

    def __getitem__(self, index):
        if index in self._damaged:
            raise OSError(f"record {index}")
        return self._inputs[index], self._targets[index]


def test_features_are_those_of_each_record(scatter, images, tmp_path):
    found, targets = extract(scatter, images, cache=tmp_path)
    assert torch.equal(found, scatter(images[0]))
    assert torch.equal(targets, images[1])
    assert torch.equal(extract(scatter, images)[0], found)


def test_without_a_record_the_others_keep_theirs_to_the_bit(scatter, images):
    whole, _ = extract(scatter, images)
    kept = torch.arange(11) != 2
    assert torch.equal(extract(scatter, (images[0][kept], images[1][kept]))[0], whole[kept])


def test_a_record_that_is_no_number_has_no_features_and_changes_no_other(scatter, images):
    broken = images[0].clone()
    broken[5, 0, 1, 1] = torch.nan
    found, _ = extract(scatter, (broken, images[1]))
    assert found.isnan().all(1).tolist() == [place == 5 for place in range(11)]
    others = torch.arange(11) != 5
    assert torch.equal(found[others], scatter(images[0])[others])


def test_a_record_on_which_the_map_fails_ends_nothing(images):
    inputs = images[0].clone()
    inputs[6] = 9.0
    found, _ = extract(Extractor(Pretrained(Fragile(), public="none"), SHAPE, norm=None), (inputs, images[1]))
    assert found.isnan().any(1).tolist() == [place == 6 for place in range(11)]


def test_a_piece_that_fails_together_is_computed_one_by_one(scatter, images, monkeypatch):
    """What a record contributes does not depend on those that are computed with it."""
    forward = Extractor.forward

    def fails(self, inputs):
        if len(inputs) > 1 and bool((inputs == images[0][3]).flatten(1).all(1).any()):
            raise RuntimeError
        return forward(self, inputs)

    expected = scatter(images[0])
    monkeypatch.setattr(Extractor, "forward", fails)
    assert torch.equal(extract(scatter, images)[0], expected)


def test_records_of_a_data_set_are_read_one_by_one(scatter, images):
    found, targets = extract(scatter, Images(images, damaged={1, 8}))
    assert found.isnan().all(1).tolist() == [place in (1, 8) for place in range(11)]
    assert targets.tolist() == [0 if place in (1, 8) else place for place in range(11)]


def test_a_file_is_used_again_and_only_you_can_read_it(scatter, images, tmp_path, monkeypatch):
    folder = tmp_path / "features"
    first, _ = extract(scatter, images, cache=folder)
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(extraction, "_compute", lambda *_: pytest.fail("they are there"))
    again, targets = extract(scatter, (images[0], images[1] + 1), cache=folder)
    assert torch.equal(first, again)
    assert torch.equal(targets, images[1] + 1)  # targets are no part of features, and never come from the file


def test_features_of_other_records_are_never_taken(scatter, images, tmp_path):
    """Not even if somebody gave them the name of the right file."""
    other = images[0].flip(0), images[1]
    extract(scatter, images, cache=tmp_path / "one")
    extract(scatter, other, cache=tmp_path / "two")
    (one,), (two,) = ((tmp_path / name).iterdir() for name in ("one", "two"))
    assert one.name != two.name
    (tmp_path / "two" / two.name).write_bytes(one.read_bytes())
    assert torch.equal(extract(scatter, other, cache=tmp_path / "two")[0], scatter(other[0]))


def test_features_of_another_map_are_never_taken(scatter, images, tmp_path):
    extract(scatter, images, cache=tmp_path)
    plain = Extractor(ap.features.Scatter(), SHAPE, norm=None)
    assert torch.equal(extract(plain, images, cache=tmp_path)[0], plain(images[0]))


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-4], lambda content: content + b"0000", lambda content: b""]
)
def test_a_file_that_is_not_whole_is_made_again(scatter, images, tmp_path, damage):
    expected, _ = extract(scatter, images)
    extract(scatter, images, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert torch.equal(extract(scatter, images, cache=tmp_path)[0], expected)


def test_an_interruption_leaves_nothing(scatter, images, tmp_path, monkeypatch):
    def interrupted(extractor, records, rows):
        rows[:] = 1.0
        raise KeyboardInterrupt

    monkeypatch.setattr(extraction, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        extract(scatter, images, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_not_features_and_goes(scatter, images, tmp_path, monkeypatch):
    left = tmp_path / "x.features.part"
    left.write_bytes(b"half")
    extract(scatter, images, cache=tmp_path)
    assert left.exists()  # it may be somebody's who is still at work
    monkeypatch.setattr(feature_files, "_ABANDONED", -1)
    extract(scatter, (images[0].flip(0), images[1]), cache=tmp_path)
    assert not left.exists()


def test_features_are_read_from_the_file_and_never_written_to_it(scatter, images, tmp_path):
    found, _ = extract(scatter, images, cache=tmp_path)
    found[:] = 0
    assert torch.equal(extract(scatter, images, cache=tmp_path)[0], scatter(images[0]))


def test_a_folder_that_cannot_be_written_to_is_named(scatter, images, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ap.InvalidArgument, match="cache"):
        extract(scatter, images, cache=tmp_path / "file" / "below")


OTHERS = (
    (np.zeros((3, 1, 5, 5), np.float32), np.zeros(3)),
    (np.zeros((3, *SHAPE), np.int64), np.zeros(3)),
    ({"image": torch.zeros(3, *SHAPE)}, torch.zeros(3)),
)


@pytest.mark.parametrize("data", OTHERS)
def test_records_of_another_form_are_refused(scatter, data):
    with pytest.raises(ap.InvalidArgument, match="data"):
        extract(scatter, data)
