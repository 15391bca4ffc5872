"""Values, texts and files that are wrong, or look it."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch
from hypothesis import strategies as st

# Nothing here may lead outside the current folder: an input that happens to be valid is carried out.
PATHS = (
    "folder",
    "empty",
    "binary",
    "missing",
    "no/such/folder",
    "empty/inside",
    "/dev/null",
    "/dev/full",
    "/dev/null/in",
    ".",
)
NUMBERS = (
    *(
        "nan",
        "-nan",
        "inf",
        "-inf",
        "0",
        "-0.0",
        "-1",
        "-1e-9",
        "1e400",
        "-1e400",
        "1e-400",
        "5e-324",
        "1e-300",
        "1e300",
        "1e15",
    ),
    *(
        "9" * 30,
        "9" * 5000,
        "0.1.2",
        "1,5",
        "0x10",
        "1_0",
        "1e",
        "٣",
        "¹",
        "½",
        "2.5",
        "1.0",
        "1 2",
        "+",
        "0e0",
        "1e-60",
        "0.999999",
    ),
)
WORDS = (
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "-x",
        "--no-such-option",
        "=",
        "--epsilon=",
        "true",
        "null",
        "None",
        "[]",
        "{}",
        "[1",
        '{"a": 1}',
        '""',
    ),
    *(
        "\0",
        "a\0b",
        "\ud800",
        "\udcff",
        "\n",
        "a\nerror: b",
        "\r",
        "\x1b[31m",
        "\u202e",
        "\u2028",
        "🦄",
        "é" * 200,
        "a" * 300,
        "a" * 5000,
    ),
    *(
        "folder:",
        "folder:folder",
        "folder:missing",
        "folder:empty",
        "folder:~nobody-here",
        "folder:a\0",
        "folder:" + "a" * 5000,
    ),
    *(
        ":",
        "a:b",
        ":b",
        "a:",
        ".a:b",
        "..:b",
        "a..b:c",
        "a:b:c",
        "a b:c",
        "mine:nothing",
        "mine:data",
        "mine:fails",
        "mine:four",
        "broken:model",
    ),
    *(
        "~nobody-here",
        "clip",
        "clip.",
        ".threshold=1",
        "clip.threshold",
        "clip.threshold=",
        "clip.threshold=nan",
        "clip.threshold=-1",
    ),
    *(
        "clip.threshold=[1]",
        "clip.threshold=null",
        "clip.threshold=Infinity",
        "clip.threshold=" + "9" * 5000,
        "noise.multiplier=0",
    ),
    *(
        "noise.multiplier=1e-300",
        "noise.multiplier=1e300",
        "noise.multiplier=true",
        "clip.__class__=1",
        "model.a=1",
        "clip.threshold=" + "[" * 5000,
    ),
    *(
        "abadi",
        "digits",
        "mnist",
        "adult",
        "linear",
        "lstm",
        "record",
        "person",
        "sgd",
        "lbfgs",
        "pld",
        "clt",
        "gaussian",
        "sum",
    ),
)


def texts():
    """What may stand on a command line where something else was wanted."""
    harmless = st.text(max_size=20).filter(lambda text: "/" not in text and ".." not in text)
    return st.sampled_from(NUMBERS) | st.sampled_from(WORDS) | st.sampled_from(PATHS) | harmless


def values():
    """What may be passed to a function where a number was wanted."""
    numbers = st.sampled_from(
        [
            *(
                0,
                0.0,
                -0.0,
                -1,
                -1.5,
                1,
                2.5,
                10**30,
                10**400,
                10**5000,
                -(10**5000),
                1e300,
                5e-324,
                1e-300,
                math.nan,
                math.inf,
                -math.inf,
            ),
            *(
                True,
                False,
                1j,
                complex(math.nan),
                Decimal("NaN"),
                Decimal("0.5"),
                Fraction(1, 3),
                np.float64("nan"),
                np.float32("inf"),
            ),
            *(
                np.int64(-3),
                np.bool_(True),
                np.array([1.0, 2.0]),
                np.array("x"),
                np.array([]),
                np.datetime64("2020-01-01"),
            ),
            *(
                torch.tensor(math.nan),
                torch.tensor([1.0, 2.0]),
                torch.tensor([]),
                torch.tensor(1j),
                torch.empty(1, device="meta"),
            ),
        ]
    )
    things = st.sampled_from(
        [
            None,
            "",
            "x",
            "1",
            "0.5",
            "\0",
            "\ud800",
            b"\xff",
            [],
            [1.0],
            (),
            {},
            {"a": 1},
            {1.0},
            object(),
            int,
            len,
            Ellipsis,
        ]
    )
    return numbers | things | st.floats() | st.integers() | st.text(max_size=10)


def documents():
    """What JSON can hold, with the numbers that it should not."""
    # A number of steps that is neither small nor absurd would be valid, and take hours.
    integers = st.integers(-9, 9) | st.integers(min_value=10**9) | st.integers(max_value=-10) | st.just(10**400)
    floats = st.floats().filter(lambda number: not 9 < number < 1e9)
    leaves = st.none() | st.booleans() | floats | integers | st.text(max_size=8)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    )


def damaged(content):
    """`content` cut off, with bytes changed, doubled or replaced, or something else altogether."""
    return _damaged(content).filter(lambda changed: changed != content)


@st.composite
def _damaged(draw, content):
    way = draw(st.sampled_from(["cut", "flip", "flip", "insert", "remove", "repeat", "other"]))
    if way == "other" or not content:
        return draw(st.binary(max_size=200))
    at = draw(st.integers(0, len(content) - 1))
    if way == "cut":
        return content[:at]
    if way == "flip":
        changed = bytearray(content)
        for _ in range(draw(st.integers(1, 8))):
            changed[draw(st.integers(0, len(content) - 1))] ^= draw(st.integers(1, 255))
        return bytes(changed)
    length = draw(st.integers(1, 60))
    if way == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at:]
    if way == "remove":
        return content[:at] + content[at + length :]
    return content[: at + length] + content[at:]


@st.composite
def mutated(draw, document):
    """A JSON-like document in which one to three places hold something else, are missing or stand there twice."""
    changed = document
    for _ in range(draw(st.integers(1, 3))):
        changed = _changed_somewhere(draw, changed)
    return changed


def _changed_somewhere(draw, part):
    inside = list(part) if isinstance(part, dict) else list(range(len(part))) if isinstance(part, list) else []
    if not inside or draw(st.integers(0, 5)) == 0:
        return draw(documents())
    key = draw(st.sampled_from(inside))
    copy = dict(part) if isinstance(part, dict) else list(part)
    way = draw(st.sampled_from(["inside", "inside", "inside", "drop", "rename"]))
    if way == "inside":
        copy[key] = _changed_somewhere(draw, part[key])
    else:
        value = copy.pop(key)
        if way == "rename" and isinstance(copy, dict):
            copy[draw(st.text(max_size=6))] = value
    return copy
