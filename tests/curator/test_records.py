import time
import warnings

import numpy as np
import pandas
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from apportion.curator.randomness import Stream
from apportion.curator.records import DatasetRecords, as_records, cut_evenly
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


class Endless(IterableDataset):
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
    "list": [5, 0, 3],
    "array": np.array([5, 0, 3], dtype=np.uint8),
    "tensor": torch.tensor([5, 0, 3]),
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
        (Endless(), "indexed"),
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


# --- odd items: each is its own affair ------------------------------------------------------------------------------------


def rows_of(data, size=6):
    """What a draw of everybody reads, one below the other, in this process."""
    batches = as_records(data).read(np.arange(len(data)), cut_evenly(len(data), size), Stream(bytes(32)))
    return torch.cat([inputs.reshape(len(inputs), -1) for (inputs, _), _ in batches])


class Odd(Dataset):
    """Item 4 is what `make` makes of it."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 6

    def __getitem__(self, index):
        inputs = INPUTS[index].clone()
        return (self.make(inputs) if index == 4 else inputs), int(TARGETS[index])


class Marked(torch.Tensor):
    """A subclass with its own idea of what may be done with it."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        raise RuntimeError("not with me")


LEFT_OUT = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: torch.stack([x, x]).to_sparse_csr(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([x]),
    "nowhere": lambda x: x.to("meta"),
    "objects": lambda x: np.array([1, None], dtype=object),
    "words": lambda x: np.array(["a", "b"]),
    "a word": lambda x: "ab",
    "bytes": lambda x: b"ab",
    "times": lambda x: np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
    "fields": lambda x: np.zeros(2, dtype=[("a", "f4")]),
    "none": lambda x: None,
    "a set": lambda x: {1.0, 2.0},
    "too large": lambda x: [10**400, 1.0],
}
KEPT = {
    "needs a gradient": lambda x: x.requires_grad_(),
    "has a history": lambda x: x.requires_grad_() * 1,
    "parameter": lambda x: torch.nn.Parameter(x),
    "subclass": lambda x: x.as_subclass(Marked),
    "conjugate": lambda x: torch.complex(x, x).conj().real,
    "negative": lambda x: torch.complex(-x, -x).conj().imag,
    "reversed": lambda x: x.numpy()[::-1].copy()[::-1],
    "other byte order": lambda x: x.numpy().astype(">f4"),
    "read only": lambda x: np.broadcast_to(x.numpy(), (2,)),
    "list": lambda x: x.tolist(),
    "list of tensors": list,
    "complex": lambda x: x.to(torch.complex64),
    "half": lambda x: x.half(),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("odd", LEFT_OUT)
def test_an_item_that_cannot_be_joined_is_left_out_alone(odd):
    assert torch.equal(rows_of(Odd(LEFT_OUT[odd])), INPUTS[[0, 1, 2, 3, 5]])


@pytest.mark.parametrize("odd", KEPT)
def test_an_item_of_another_make_becomes_a_plain_one(odd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((batch, _),) = as_records(Odd(KEPT[odd])).read(np.arange(6), cut_evenly(6, 6), Stream(bytes(32)))
    assert type(batch[0]) is torch.Tensor
    assert not batch[0].requires_grad
    assert torch.equal(batch[0], INPUTS)


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("odd", ["sparse", "quantized", "nested", "nowhere", "objects", "words", "none", "a set"])
def test_a_data_set_whose_first_item_cannot_be_joined_is_refused(odd):
    class First(Odd):
        def __getitem__(self, index):
            return super().__getitem__(4)

    with pytest.raises(InvalidArgument, match="cannot be"):
        as_records(First(LEFT_OUT[odd]))


# --- one buffer for all -----------------------------------------------------------------------------------------------------


class Buffered(Dataset):
    """Writes every record into the same place."""

    def __init__(self, place):
        self.place = place

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if isinstance(self.place, dict):
            self.place["x"][:] = INPUTS[index]
        elif isinstance(self.place, np.ndarray):
            self.place[:] = INPUTS[index].numpy()
        else:
            self.place[:] = INPUTS[index] if isinstance(self.place, torch.Tensor) else INPUTS[index].tolist()
        return self.place, 0


class ManyBuffered(Buffered):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


PLACES = {
    "tensor": lambda: torch.zeros(2),
    "array": lambda: np.zeros(2, dtype=np.float32),
    "dict": lambda: {"x": torch.zeros(2)},
    "list": lambda: [0.0, 0.0],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [Buffered, ManyBuffered])
def test_a_data_set_that_returns_its_one_buffer_is_copied_item_by_item(kind, place):
    """Otherwise all rows of a piece would be its last record."""
    ((batch, _),) = as_records(kind(PLACES[place]())).read(np.arange(6), cut_evenly(6, 6), Stream(bytes(32)))
    found = torch.stack(tree_leaves(batch[0]), 1) if place == "list" else tree_leaves(batch[0])[0]
    assert torch.equal(found.float().reshape(6, 2), INPUTS)


class Padding(Dataset):
    """Reads many at once and pads them to the longest, as tokenizers do."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitems__(self, indices):
        longest = max(len(self.texts[index]) for index in indices)
        return [(torch.tensor(self.texts[index] + [0] * (longest - len(self.texts[index]))), 0) for index in indices]


@pytest.mark.parametrize("workers", [0, 1])
def test_one_long_text_does_not_pad_the_others(workers):
    """What a record is must not depend on the others that are read with it."""
    texts = [[1, 2, 3] for _ in range(20)]
    records = as_records(Padding([*texts[:7], [5] * 200, *texts[7:]]))
    records.start_workers(workers)
    pieces = list(records.read(np.arange(21), cut_evenly(21, 21), Stream(bytes(32))))
    records.close()
    assert sorted(piece.batch[0].shape[1] for piece in pieces) == [3] * 20 + [200]


IN_MEMORY = {
    "expanded": (INPUTS[:1].expand(6, 2), INPUTS[[0] * 6]),
    "read only": (np.broadcast_to(INPUTS[:1].numpy(), (6, 2)), INPUTS[[0] * 6]),
    "reversed": (INPUTS.numpy()[::-1], INPUTS.flip(0)),
    "byte order": (INPUTS.numpy().astype(">f4"), INPUTS),
    "needs a gradient": (INPUTS.clone().requires_grad_(), INPUTS),
    "subclass": (INPUTS.clone().as_subclass(Marked), INPUTS),
    "conjugate": (torch.complex(INPUTS, INPUTS).conj().imag, -INPUTS),
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_what_is_in_memory_is_copied_into_plain_tensors(kind):
    inputs, expected = IN_MEMORY[kind]
    records = as_records((inputs, TARGETS))
    (((found, _), _),) = records.read(np.arange(6), cut_evenly(6, 6), Stream(bytes(32)))
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert torch.equal(found, expected)
    found.fill_(-1)
    assert torch.equal(records.batch(np.array([5]))[0], expected[5:]), "the person's data was written to"


def test_a_file_in_memory_is_read_and_never_written(tmp_path):
    np.save(tmp_path / "x.npy", INPUTS.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    (((found, _), _),) = as_records((mapped, TARGETS)).read(np.arange(6), cut_evenly(6, 6), Stream(bytes(32)))
    assert torch.equal(found, INPUTS)


# --- one record, one row ----------------------------------------------------------------------------------------------------

WHOLE, CUSTOM = TensorDataset(INPUTS, TARGETS), Doubled(INPUTS, TARGETS)
REPEATED = {
    "subset": lambda: Subset(WHOLE, [0, 1, 1]),
    "array": lambda: Subset(WHOLE, np.array([0, 1, 1])),
    "tensor": lambda: Subset(WHOLE, torch.tensor([0, 1, 1])),
    "mask": lambda: Subset(WHOLE, [True, False, True, True, False, True]),
    "custom": lambda: Subset(CUSTOM, [0, 1, 1]),
    "from the end": lambda: Subset(CUSTOM, [5, 0, -1]),
    "outer": lambda: Subset(Subset(WHOLE, [3, 4, 5]), [0, 0]),
    "inner": lambda: Subset(Subset(CUSTOM, [3, 3, 5]), [0, 1]),
    "by name": lambda: Subset({"a": (INPUTS[0], 0), "b": (INPUTS[1], 1)}, ["a", "b", "a"]),
    "concatenated": lambda: ConcatDataset([WHOLE, WHOLE]),
    "overlapping": lambda: ConcatDataset([Subset(CUSTOM, [0, 1]), Subset(CUSTOM, [1, 2])]),
    "part of twice": lambda: Subset(ConcatDataset([WHOLE, WHOLE]), [0, 6]),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_a_record_that_stands_there_twice_is_refused(kind):
    with pytest.raises(InvalidArgument, match=r"more than once.*Name every record once"):
        as_records(REPEATED[kind]())


@pytest.mark.parametrize(
    "data",
    [
        Subset(WHOLE, [5, 0, 3]),
        Subset(Subset(CUSTOM, [3, 3, 5]), [0, 2]),
        Subset({"a": (INPUTS[0], 0), "b": (INPUTS[1], 1)}, ["b", "a"]),
        ConcatDataset([WHOLE, CUSTOM]),
        ConcatDataset([Subset(CUSTOM, [0, 1]), Subset(CUSTOM, [2, 5])]),
        Subset(ConcatDataset([WHOLE, WHOLE]), [0, 7]),
    ],
)
def test_records_that_stand_there_once_are_accepted(data):
    assert len(as_records(data)) == len(data)


def test_the_check_for_repeated_records_takes_a_moment():
    size = 2_000_000
    data = Subset(Subset(TensorDataset(torch.zeros(size, 1), torch.zeros(size)), range(size)), range(size))
    started = time.process_time()
    as_records(data)
    assert time.process_time() - started < 5


class Frame:
    """Indexed by column, as tables are."""

    def __len__(self):
        return 6

    def __getitem__(self, name):
        return {"x": INPUTS}[name]


class Dicts(Pairs):
    def __getitem__(self, index):
        return {"input": INPUTS[index], "label": int(TARGETS[index])}


class Closed(Pairs):
    def __getitem__(self, index):
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": INPUTS, "y": TARGETS}, "data='dict'.*by name.*inputs, targets"),
        (Frame(), "data='Frame'.*first item cannot be read .KeyError"),
        (Closed(), "data='Closed'.*first item cannot be read .SystemExit"),
        (Dicts(), "items of type dict.*pair"),
        (["ab", "cd", "ef"], "items of type str.*pair"),
        ("patients.csv", r"'str': it is a file or a table.*apportion.tables.records\("),
        (
            pandas.DataFrame({"age": [1.0], "ill": [0]}),
            r"'DataFrame': it is a file or a table.*apportion.tables.records\(",
        ),
        ((pandas.DataFrame({"age": [1.0]}), torch.zeros(1)), r"'DataFrame': .*apportion.tables.records\("),
        (([np.zeros((3, 2)), np.zeros((4, 2))], np.zeros(3)), "same, positive number of rows"),
        (([1.0, 2.0], [0, 1]), "tensors or NumPy arrays"),
        (zip(INPUTS, TARGETS, strict=True), "neither a pair"),
        (INPUTS, "data='Tensor'.*a pair of inputs and targets"),
        ((INPUTS, TARGETS, TARGETS), "data='3 arrays'.*a pair of inputs and targets"),
        ((INPUTS, np.array(["well", "ill"] * 3)), "data='ndarray of <U4'.*not hold numbers.*int64 from 0"),
        ((INPUTS, np.array(["well", "ill"] * 3, dtype=object)), "not hold numbers.*int64 from 0"),
        ((INPUTS.to_sparse(), TARGETS), "dense"),
        ((INPUTS.to("meta"), TARGETS), "dense"),
        ((np.array([["a"], ["b"]]), np.zeros(2)), "dense|numbers"),
        ((np.array([[None], [1]]), np.zeros(2)), "dense|numbers"),
        (((), TARGETS), "no inputs"),
        (({}, TARGETS), "no inputs"),
    ],
)
def test_odd_containers_are_refused_in_words(data, words):
    with pytest.raises(InvalidArgument, match=words):
        as_records(data)
