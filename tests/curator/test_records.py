import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from apportion.curator.records import DatasetRecords, as_records
from apportion.errors import InvalidArgument

INPUTS, TARGETS = torch.arange(12.0).reshape(6, 2), torch.arange(6)


class Pairs(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"x": INPUTS[index], "length": 2}, int(TARGETS[index])


class Doubled(TensorDataset):
    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return 2 * inputs, target


class Words(Pairs):
    def __getitem__(self, index):
        return "words", 0


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    "data",
    [(INPUTS, TARGETS), [INPUTS, TARGETS], (INPUTS.numpy(), TARGETS.numpy()), TensorDataset(INPUTS, TARGETS)],
    ids=["tensors", "list", "arrays", "dataset"],
)
def test_the_usual_forms_give_the_same_batches(data):
    records = as_records(data)
    inputs, targets = records.batch(np.array([1, 4]))
    assert len(records) == 6
    assert torch.equal(inputs, INPUTS[[1, 4]])
    assert torch.equal(targets, TARGETS[[1, 4]])


def test_dicts_and_tuples_of_inputs():
    inputs, _ = as_records(({"a": INPUTS, "b": TARGETS}, TARGETS)).batch(np.array([2]))
    assert torch.equal(inputs["a"], INPUTS[[2]])
    inputs, _ = as_records(((INPUTS, TARGETS), TARGETS)).batch(np.array([2]))
    assert torch.equal(inputs[0], INPUTS[[2]])
    inputs, targets = as_records(Pairs()).batch(np.array([0, 3]))
    assert torch.equal(inputs["x"], INPUTS[[0, 3]])
    assert torch.equal(targets, TARGETS[[0, 3]])


EVERYONE = np.arange(3)
SUBSETS = {
    "list": [5, 0, 5],
    "array": np.array([5, 0, 5], dtype=np.uint8),
    "tensor": torch.tensor([5, 0, 5]),
    "range": range(1, 6, 2),
}


@pytest.mark.parametrize("kind", SUBSETS)
def test_a_plain_tensor_data_set_is_read_as_tensors(kind):
    whole = TensorDataset(INPUTS, TARGETS)
    subset = Subset(whole, SUBSETS[kind])
    for data in (whole, subset, Subset(subset, [2, 1, 0])):
        records = as_records(data)
        assert not isinstance(records, DatasetRecords)
        assert len(records) == len(data)
        inputs, targets = records.batch(EVERYONE)
        assert torch.equal(inputs, torch.stack([data[k][0] for k in range(3)]))
        assert torch.equal(targets, torch.stack([data[k][1] for k in range(3)]))


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (Doubled(INPUTS, TARGETS), 2 * INPUTS[:3]),
        (Subset(Doubled(INPUTS, TARGETS), [0, 1, 2]), 2 * INPUTS[:3]),
        (Subset(TensorDataset(INPUTS, TARGETS), [0, -1, -2]), INPUTS[[0, 5, 4]]),
    ],
    ids=["subclass", "subset of a subclass", "negative"],
)
def test_what_may_mean_something_else_is_asked(data, rows):
    records = as_records(data)
    assert isinstance(records, DatasetRecords)
    assert torch.equal(records.batch(EVERYONE)[0], rows)


def test_double_precision_arrays_become_float32():
    assert as_records((np.ones((3, 2)), np.zeros(3, dtype=int))).example[0].dtype == torch.float32


def test_the_example_holds_no_value_of_a_record():
    example = as_records((INPUTS + 5, TARGETS + 3)).example
    assert example[0].shape == (2,)
    assert example[0].abs().sum() == 0
    assert example[1].item() == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(TensorDataset(INPUTS, TARGETS), shuffle=True), "RandomSampler.*loader.dataset"),
        (
            DataLoader(TensorDataset(INPUTS, TARGETS), sampler=WeightedRandomSampler([1.0] * 6, 6)),
            "WeightedRandomSampler",
        ),
        (DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=3), "its own sampling"),
        (Stream(), "indexed"),
        ((INPUTS, TARGETS[:4]), "same, positive number of rows"),
        ((INPUTS[:0], TARGETS[:0]), "same, positive number of rows"),
        (TensorDataset(INPUTS), "pair"),
        (TensorDataset(INPUTS[:0], TARGETS[:0]), "nothing to train on"),
        (Words(), "cannot be stacked"),
        (("a", "b"), "tensors or NumPy arrays"),
        (None, "neither a pair"),
        (7, "neither a pair"),
    ],
)
def test_what_has_its_own_sampling_or_no_records_is_refused(data, words):
    with pytest.raises(InvalidArgument, match=words):
        as_records(data)
