"""Every whole number by which the library cuts its work, made so small that ordinary tests meet several pieces.

`SMALL` are the numbers that cut: the result is the same for any of them, up to rounding, or a bound stays a bound. `HARMLESS` are the
others, each with the reason why no test has to meet a second piece of it. `tests/guard/test_pieces.py` finds every such number in
the sources and misses the ones that stand in neither list.
"""

import ast
import collections
import contextlib
import functools
import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("curator", "models", "accounting", "training")
HALL = ("execution", "sampling", "planning", "plan_files", "plan_filters")
HIDDEN = 100
"""A whole number of this size inside a function is a constant without a name."""

BOOKS = {"accounting.chain._PAGE": 2}
"""Of ledgers."""
WORK = {
    "execution.DEFAULT_MICRO_BATCH": 4,
    "execution.SMALL_MICRO_BATCH": 4,
    "curator.clipping.FRAME_CHUNK_NUMBERS": 8,
    "curator.curator.SUM_PIECE_NUMBERS": 8,
    "curator.gradients.rounding.MAX_FLOAT32_TERMS": 16,
    "curator.gradients.layer_use.CHUNK_NUMBERS": 64,
    "curator.mechanisms.PIECE_NUMBERS": 50,
    "curator.normal_field.BLOCK": 64,
    "curator.normal_field.CHUNK": 17,
    "curator.owners.POOLED_NUMBERS": 1,
    "curator.randomness.FIELD_FROM_NUMBERS": 20,
    "curator.randomness.NOISE_CHUNK_NUMBERS": 5,
    "curator.randomness._CHUNK": 64,
    "curator.randomness._SPARE": 5,
    "curator.reader.MIN_PIECE_RECORDS": 2,
    "curator.reader.MAX_PIECES": 5,
    "models.gradient_probe._SKETCHED": 50,
    "models.synthetic.COMPARED_NUMBERS": 50,
    "training.evaluation._BATCH": 7,
    **BOOKS,
}
"""Of answers: in the suites of the curator and of what is guarded, for every test without the marker `usual_pieces`."""
PRICES = {
    "accounting.composition._BLOCK": 1,
    "accounting.composition._LOGARITHMS": 64,
    "accounting.composition._SERIES": 1,
    "accounting.composition._WITNESSES": 2,
    "accounting.grid._KEPT": 16,
}
"""Of prices, which stay the same: in `tests/guard/test_pieces.py`, because convolutions in small pieces take long."""
BOUNDS = {
    "accounting.buckets.MOST": 4,
    "accounting.grid._LARGEST": 256,
    "accounting.group_calibration.COARSE": 2,
    "accounting.grid._SKETCHES": 2,
    "accounting.interpolation.EXACT": 3,
    "accounting.renyi._FEW": 2,
    "accounting.renyi._PIECES": 2,
    "accounting.run_filter._CURVES": 2,
    "accounting.run_filter._POINTS": 8,
}
"""Of prices, which may rise by less exact work and must not fall: there too."""
SMALL = WORK | PRICES | BOUNDS

_LIMIT = "a limit on what is asked for; tests ask for more"
_FORMAT = "the format of a file or of a key: no other value can be read"
_BEGINS = "of a sketch, from which a search begins; what ends it is the price of the schedule itself"
HARMLESS = {
    "accounting.account.BLOCK": "steps that are charged together; tests have blocks of two to five, by their spare steps",
    "accounting.interpolation._WIDEST": "how far nodes of steps that hardly matter lie apart; a test bounds what they add",
    "accounting.calibration.SKETCHED": _BEGINS,
    "accounting.calibration._SKETCH": _BEGINS,
    "accounting.sharing._ROUNDS": "of a bisection, whose result is checked on the safe side",
    "curator.foreign_code.MAX_TEXT": "of a text for the owner of the data",
    "curator.shard.COMPARED": "records that are looked at to compare two ranks; nothing is cut",
    "curator.problems.MAX_TEXTS": "of a list for the owner of the data",
    "execution.MAX_MICRO_BATCH": "a limit on micro-batches, which tests give sizes of their own and cross",
    "curator.gradients.embedding.TEMPORARIES": "divides CHUNK_NUMBERS, which is made small",
    "curator.gradients.linear.SKINNY_RATIO": "chooses between two orders of a product, both compared with the reference",
    "curator.gradients.convolution.MAX_GRAM_ENTRIES": "chooses between two ways to a norm, both compared with the reference",
    "models.inspection._ROUNDS": "repeats a measurement of time",
    "models.memory.BASE_BYTES": "bytes of a prediction of memory; nothing is cut",
    "models.memory.DEFAULT_ACTIVATION_BYTES": "bytes, from which the size of a micro-batch follows: tests give it other sizes",
    "models.memory.SMALL_ACTIVATION_BYTES": "which of two sizes is usual; both are made small",
    "models.memory.QUICK_NUMBERS": "up to which one thread computes; nothing is cut",
    "models.memory.QUICK_PRODUCTS": "up to which one thread computes; nothing is cut",
    "models.memory.CONVOLUTION_FACTOR": "a factor of a prediction of memory; nothing is cut",
    "models.memory.LINEAR_FROM_BYTES": "bytes, from which the size of a micro-batch follows: tests give it other sizes",
    "curator.randomness.KEY_BYTES": _FORMAT,
    "models.fix._MOST_GROUPS": "the groups of a layer that is put in place of another one; the model is then a new one",
    "models.proof._COMPOSITE": "records that are followed without values; what is run is never so large",
    "models.record_tracer.ANY": "marks an order that is not settled; not a number of anything",
    "models.record_tracer._SHAPE_CACHE_SIZE": "the size of a cache",
    "models.synthetic.RECORDS": "of a synthetic batch, which has a second and a third record",
    "curator.ziggurat.LAYERS": "of the table that normals are made with: another number would need another table",
    "accounting.accountant.LARGEST_COUNT": _LIMIT,
    "accounting.accountant.LARGEST_OUTCOMES": _LIMIT,
    "accounting.accountant.LARGEST_GROUP": _LIMIT,
    "accounting.rules.LARGEST_MULTISET": _LIMIT,
    "accounting.rules.FIRST": "the number of what is asked before step 1",
    "accounting.calibration._ROUNDS": "of a search that raises when they are used up",
    "accounting.group_calibration._ROUNDS": "of a search that keeps the last value that is not too large when they are used up",
    "accounting.run_filter._MOST_TERMS": "of a sum of probabilities, whose rest is added as a whole",
    "accounting.selection.MOST_TRIALS": _LIMIT,
    "accounting.selection.WORD": "bits of a random word, which is compared with exact sums",
    "accounting.selection._DIGITS": "of exact sums; more than a random word has",
    "accounting.ledger.FORMAT": _FORMAT,
    "accounting.ledger._MOST_TIMES": _LIMIT,
    "training.checkpoint.FORMAT": _FORMAT,
    "training.evaluation.TRAINED_LIKE": "how often a model is evaluated",
    "training.history.REPORTS": "how often a run is looked at",
    "training.private.SEPARABILITY_CHECKS": "a closer look at the first batches of a loop, whose loss is in its own hands",
    "training.progress.LINES": "of a display",
    "plan_files.FORMAT": _FORMAT,
    "planning.POINTS": "of a drawing",
    "models.gradient_probe._OTHERS": "records of a batch of five",
    "plan_filters._NEAR": "Rényi orders that are tried; a test plans with all of them",
    "plan_filters._SPARSE": "likewise",
    "planning.ROWS": "of a printed table",
    "training.session.REHEARSED": "steps that are tried on zeros before anything is charged",
    "training.typical_course.DIMENSION": "of a made-up problem",
    "training.storage.CHECKPOINTS": "how often a run is saved; tests save after every step",
    "sampling.MOST_STEPS": _LIMIT,
}
HARMLESS_INSIDE = {
    "training.sharded_checkpoint._write_parts": "the permissions of files that are secret",
    "training.individual_runs.write_estimate": "the permissions of files that are secret",
    "training.session.write_problems": "the permissions of files that are secret",
    "accounting.accountant._epsilon": "the cache, and how many nodes a group may have",
    "accounting.chain._code": "a mask of bits",
    "accounting.chain.new_file": "the rights of a file",
    "accounting.ledger.create": "the rights of a file",
    "accounting.loss._inverse": "a bracket, halved down to rounding afterwards; and where an exponential would overflow",
    "accounting.loss.sketch": "points of a sketch, from which a window is chosen and nothing is priced; and the cache",
    "accounting.renyi._curve": "the cache",
    "accounting.renyi._known": "the cache",
    "accounting.renyi._log_mixture": "where an exponential would overflow",
    "accounting.selection.__post_init__": "a limit in words",
    "execution.format_bytes": "units of bytes in words",
    "training.checkpoint.replace_file": "the rights of a file",
    "training.checkpoint.write": "the rights of a file",
    "training.exact._key_of": "the rights of a file",
    "training.statement.in_words": "words",
}


def _module(name):
    return importlib.import_module(f"apportion.{name}")


@functools.cache
def _trees():
    """Module → its syntax tree, of the rooms."""
    source = ROOT / "src/apportion"
    files = sorted(path for room in ROOMS for path in (source / room).rglob("*.py"))
    files += [source / f"{name}.py" for name in HALL]
    names = [".".join(path.relative_to(ROOT / "src/apportion").with_suffix("").parts) for path in files]
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for name, path in zip(names, files, strict=True)
        if not name.endswith("__init__")
    }


def constants():
    """Every whole number with a name at the top of a module of the rooms, and its value."""
    found = {}
    for name, tree in _trees().items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in [one for many in targets for one in getattr(many, "elts", [many])]:
                value = getattr(_module(name), target.id, None) if isinstance(target, ast.Name) else None
                if type(value) is int:
                    found[f"{name}.{target.id}"] = value
    return found


def hidden():
    """Functions with a whole number that is large enough to cut work, and these numbers."""
    found = {}
    for name, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                if large := sorted({value for value in inside if type(value) is int and value >= HIDDEN}):
                    found[f"{name}.{node.name}"] = large
    return found


@functools.cache
def _importers():
    """Constant → the modules that have it by name: what a function imports, it looks up anew."""
    found = collections.defaultdict(list)
    for module, tree in _trees().items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                for one in node.names:
                    found[f"{node.module}.{one.name}"].append(module)
    return found


def _places(constant):
    """The modules that have this constant as an attribute: its own, and those that import it by name."""
    return [constant.rpartition(".")[0], *_importers()[f"apportion.{constant}"]]


def _forget_prices():
    """What was computed with other numbers is not handed out again."""
    for name in ("accounting.accountant", "accounting.grid", "accounting.loss", "accounting.renyi"):
        for value in vars(_module(name)).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@contextlib.contextmanager
def changed(numbers):
    """These constants with other values, wherever they are used."""
    before = [
        (_module(module), constant.rpartition(".")[2], value)
        for constant, value in numbers.items()
        for module in _places(constant)
    ]
    before = [(module, name, value, getattr(module, name)) for module, name, value in before]
    prices = not (PRICES | BOUNDS).keys().isdisjoint(numbers)
    for module, name, value, _ in before:
        setattr(module, name, value)
    if prices:
        _forget_prices()
    try:
        yield
    finally:
        for module, name, _, usual in before:
            setattr(module, name, usual)
        if prices:
            _forget_prices()
