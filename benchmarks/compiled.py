"""Does `torch.compile` make a private step faster on processors?

    python benchmarks/compiled.py                      # about 15 minutes; keeps each workload in benchmarks/compiled.json as it comes
    python benchmarks/compiled.py --workloads mlp

Each way of training is measured as it is and compiled, with one thread, in seconds of the processor, by turns in one process
(measuring.py). Poisson batches differ in size, so everything is compiled with `dynamic=True`. What compiling takes is counted as well,
the C++ compiler included, with empty caches: the seconds of the first steps beyond those of later ones. What the first compilation of a
process costs anyway, whatever it is of, is noted apart ("loading"). Compiled are

- plain SGD: the model;
- `torch.func` by hand: the gradients of all records, as a peer would. `vmap` is compiled anew for each size, up to the limit of eight, so
  here batches are filled up to one size;
- ours, *model*: the forward pass inside the one-pass engine, which interrupts the graph at each layer to note its input;
- ours, *kernels*: the functions for norms, scaled rows and weighted sums;
- *one graph*: what is left if nothing interrupts. Forward pass, backward pass, norms, weights and sums of a stack of linear layers,
  written out for this purpose, with torch's generator and no account. A bound of what could be gained, not a way of training.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_tables import NOTHING, ranged, rows

FILE = Path(__file__).with_name("compiled.json")
BUSY = 1.5
"""The load of a machine on which more than this benchmark runs."""
SCALES = {
    "logistic": 1.0,
    "table": 1.0,
    "mlp": 1.0,
    "imdb": 1.0,
    "papernot": 0.25,
    "lora": 0.25,
    "bert-tiny": 0.25,
    "transformer": 0.125,
}
"""The workloads, and which part of their batch is measured."""
ROUNDS, WARM_UP = 5, 6
STEPS, WORTH_IT = 1_000, 0.9
"""Compiling would be worth an option if so many steps took this part of their time, compiling included."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(SCALES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", action="store_true", help="one workload, in this process")
    options = parser.parse_args()
    if options.one:
        (name,) = options.workloads
        print(json.dumps(measure(name, options.rounds)))
        return 0
    import measuring  # here: the page is written without torch

    for name in options.workloads:
        with tempfile.TemporaryDirectory() as cache:
            surroundings = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            command = [__file__, "--one", f"--workloads={name}", f"--rounds={options.rounds}"]
            try:
                record = measuring.in_new_process(command, surroundings)
            except RuntimeError as error:
                print(f"error: {name}: {error}", file=sys.stderr)
                return 2
        FILE.write_text(json.dumps(stored() | {name: record}, indent=1) + "\n", encoding="utf-8")
        for way, found in record["ways"].items():
            print(f"{name:<12} {way:<24} {text(found)}", flush=True)
    return 0


def stored() -> dict[str, dict[str, Any]]:
    """By workload, what was measured."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def text(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"left out: {found['failed']}"
    return (
        f"{found['milliseconds']:9.3f} ms  ready after {found['compiling']:6.1f} s  {found['graphs']} graphs, "
        f"{found['breaks']} interruptions, {found['later']} compiled later"
    )


def section() -> str:
    """Of docs/performance.md; empty if nothing was measured."""
    found = {name: record for name, record in stored().items() if "milliseconds" in record["ways"]["apportion"]}
    if not found:
        return ""
    ways = {"sgd, compiled": "sgd", "vmap, compiled": "vmap", "apportion, model": "apportion"}
    ways |= {"apportion, kernels": "apportion", "one graph": "one graph, not compiled"}
    body = [
        [name, str(record["batch"]), *(_cell(record["ways"], way, base) for way, base in ways.items())]
        for name, record in found.items()
    ]
    head = ["plain SGD", "`torch.func`", "ours, model", "ours, kernels", "one graph"]
    table = rows(["workload", "batch", *head], body)
    all_in = {
        (name, way): gain
        for name, record in found.items()
        for way in ("apportion, model", "apportion, kernels")
        if (gain := _all_in(record["ways"], way, "apportion")) is not None
    }
    name, way = min(all_in, key=all_in.__getitem__)
    quicker = sorted({name for (name, _), ratio in all_in.items() if ratio <= WORTH_IT})
    verdict = f"{', '.join(quicker)} gained a tenth or more" if quicker else "no workload gained a tenth"
    loading = statistics.median(record["loading"] for record in found.values())
    days = ", ".join(sorted({record["date"] for record in found.values()}))
    busy = [
        name for name, record in found.items() if record.get("load", BUSY) >= BUSY
    ]  # older ones have none, and were
    beside = f" Other jobs ran beside {', '.join(busy)}, hence their wide ranges." if busy else ""
    return f"""## Compiling

There is no option to compile, because it was measured (`python benchmarks/compiled.py`, {days}, one thread, processor time). The table
has the time of a step compiled over that of the same step as it is, below 1 if compiling helps; in brackets the seconds until everything
is compiled, with empty caches, after {loading:.0f} s for the first compilation of a process, whatever it is of.{beside}

{table}

- Over {STEPS:,} steps, compiling included, {verdict}; the best was {all_in[name, way]:.2f} ({name}, {way.split(", ")[1]}).
- *Model*: the forward pass inside the one-pass engine. It is interrupted at each layer, whose input has to be noted, so there is little
  to fuse.
- *Kernels*: norms, scaled rows and weighted sums. They are interrupted where values decide (rows too small for float32, factors too large),
  and a compiler leaves matrix products to the same library.
- *One graph* is a bound, not a way of training: a whole step of a stack of linear layers that nothing interrupts, with torch's noise and
  no account, over the same code not compiled.
- `torch.func`: `vmap` is compiled anew for every size of a batch, and Poisson batches have a new one at each step. Here they were filled
  up to one size, which costs time as well. Everything else takes any size (`dynamic=True`).
- A compiled model could not be vetted either: that records stay apart is
  [proved](architecture.md#why-records-stay-apart-a-proof-not-a-probe) operation by operation, and generated code has other operations than
  those that were followed."""


def _cell(ways: dict[str, dict[str, Any]], way: str, base: str) -> str:
    if "milliseconds" not in ways.get(way, {}) or "milliseconds" not in ways.get(base, {}):
        return NOTHING
    ratio = ranged([one / other for one, other in zip(ways[way]["turns"], ways[base]["turns"], strict=True)])
    return f"{ratio} ({ways[way]['compiling']:.0f} s)"


def _all_in(ways: dict[str, dict[str, Any]], way: str, base: str) -> float | None:
    """The time of so many steps, compiling included, over that of as many steps as they are."""
    if "milliseconds" not in ways.get(way, {}) or "milliseconds" not in ways.get(base, {}):
        return None
    ratio = statistics.median(one / other for one, other in zip(ways[way]["turns"], ways[base]["turns"], strict=True))
    return ratio + ways[way]["compiling"] / (STEPS * ways[base]["milliseconds"] / 1e3)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """The record of one workload: by way of training, milliseconds of a step and what compiling took."""
    import measuring
    import torch
    from engine import surroundings
    from results import code

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    noted = {"code": code(), **surroundings(), "load": round(os.getloadavg()[0], 1)}
    workload = measuring.ALL[name].scaled(SCALES[name])
    started = seconds()
    torch.compile(torch.nn.Linear(2, 2))(torch.zeros(2, 2)).sum().backward()
    loading = round(seconds() - started, 1)
    ways, found, turns = {}, {}, {}
    for way, build in builders().items():
        try:
            engine = build(workload)
            if engine is None:
                continue
            found[way] = warm_up(engine)
            ways[way], turns[way] = engine, []
        except Exception as error:
            found[way] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    for _ in range(rounds):
        for way, engine in ways.items():
            took = None
            while took is None:  # a turn in which something was compiled belongs to compiling
                graphs, started = compilations()[0], seconds()
                took = measuring.turn(engine)[2]
                if again := compilations()[0] - graphs:
                    found[way]["later"] += again
                    found[way]["first"] += seconds() - started
                    took = None
            turns[way].append(1e3 * workload.batch * took)
    for way in ways:
        middle = statistics.median(turns[way])
        first = found[way].pop("first")
        found[way]["compiling"] = round(max(0.0, first - WARM_UP * middle / 1e3), 2)
        found[way] |= {"milliseconds": round(middle, 4), "turns": [round(one, 4) for one in turns[way]]}
    return {**noted, "batch": workload.batch, "loading": loading, "ways": found}


def warm_up(engine: Any) -> dict[str, Any]:
    """The first steps: seconds, graphs that were compiled, and where they were interrupted."""
    graphs, breaks = compilations()
    started = seconds()
    for _ in range(WARM_UP):
        engine.step()
    first = seconds() - started
    now = compilations()
    return {"first": first, "graphs": now[0] - graphs, "breaks": now[1] - breaks, "later": 0}


def seconds() -> float:
    """Of processors, of this process and of those that it has waited for, as a C++ compiler."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compilations() -> tuple[int, int]:
    """(how many graphs were compiled, how many times a graph was interrupted) so far in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def builders() -> dict[str, Callable[[Any], Any]]:
    """By way of training, what makes it from a workload; `None` where there is no such thing."""
    import peers

    return {
        "sgd": peers.Sgd,
        "sgd, compiled": compiled_sgd,
        "vmap": peers.Vmap,
        "vmap, compiled": compiled_vmap,
        "apportion": peers.Apportion,
        "apportion, kernels": compiled_kernels,
        "one graph, not compiled": lambda workload: one_graph(workload, compiled=False),
        "one graph": lambda workload: one_graph(workload, compiled=True),
        "apportion, model": compiled_model,
    }


def compiled_sgd(workload: Any) -> Any:
    import peers
    import torch

    engine = peers.Sgd(workload)
    engine.model = torch.compile(engine.model, dynamic=True)
    return engine


def compiled_vmap(workload: Any) -> Any:
    import peers
    import torch

    engine = peers.Vmap(workload)
    size = round(workload.batch + 6 * workload.batch**0.5)  # no Poisson batch is larger
    compiled = torch.compile(engine._rows)

    def rows(parameters: Any, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        missing = size - len(inputs)
        inputs, targets = (torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in (inputs, targets))
        return {name: found[: size - missing] for name, found in compiled(parameters, inputs, targets).items()}

    engine._rows = rows
    return engine


def compiled_model(workload: Any) -> Any:
    """Ours; what runs the records is compiled once everything was proved of it as it is."""
    import peers
    import torch

    engine = peers.Apportion(workload)
    one_pass = engine._session.curator._engine._together
    torch._dynamo.config.recompile_limit = 256  # each layer is another model to the compiler, and 8 is the limit
    one_pass.save_input = torch.compiler.disable(one_pass.save_input)
    one_pass.tap_output = torch.compiler.disable(one_pass.tap_output)
    one_pass.scratch = torch.compile(one_pass.scratch, dynamic=True)
    return engine


def compiled_kernels(workload: Any) -> Any:
    """Ours, with the pure functions of tensors compiled while it takes a step."""
    import peers
    import torch

    from apportion.curator.gradients import convolution, embedding, layer_use, linear, normalisation, one_pass, rounding

    names = ("squared_row_norms", "scale_rows", "weighted_sum", "norms_from_grams", "gram_matrix")
    kept = {
        (module, name): vars(module)[name]
        for module in (convolution, embedding, layer_use, linear, normalisation, one_pass, rounding)
        for name in names
        if name in vars(module)
    }
    made = {function: torch.compile(function, dynamic=True) for function in set(kept.values())}

    class Engine(peers.Apportion):
        def step(self) -> int:
            try:
                for (module, name), function in kept.items():
                    setattr(module, name, made[function])
                return super().step()
            finally:
                for (module, name), function in kept.items():
                    setattr(module, name, function)

    return Engine(workload)


def one_graph(workload: Any, *, compiled: bool) -> Any:
    """A private step of a stack of linear layers, of which nothing interrupts a compiler; `None` for other models."""
    import peers
    import torch
    from torch import nn
    from torch.nn import functional

    model = workload.model()
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    if not all(isinstance(layer, nn.Linear | nn.ReLU) for layer in layers):
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]

    def sums(inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Clipped sums, in the order of the parameters."""
        noted = []
        for layer in linear:
            noted.append(inputs)
            inputs = functional.linear(inputs, layer.weight, layer.bias)
            inputs = inputs if layer is linear[-1] else inputs.relu()
        gradient = torch.softmax(inputs, 1) - functional.one_hot(targets, inputs.shape[1])
        gradients = [gradient]
        for layer, activations in zip(linear[:0:-1], noted[:0:-1], strict=True):
            gradient = (gradient @ layer.weight) * (activations > 0)
            gradients.insert(0, gradient)
        pairs = list(zip(noted, gradients, strict=True))
        squares = sum((a.square().sum(1) + 1) * b.square().sum(1) for a, b in pairs)
        weights = (peers.THRESHOLD / (squares.sqrt() + 1e-6)).clamp(max=1.0)[:, None]
        scaled = [(a, b * weights) for a, b in pairs]
        return [one for a, b in scaled for one in (b.mT @ a, b.sum(0))]

    class Engine:
        def __init__(self) -> None:
            self.model = model
            self._inputs, self._targets = workload.records()
            self._optimizer = torch.optim.SGD(model.parameters(), lr=peers.LEARNING_RATE)
            self._sums = torch.compile(sums, dynamic=True) if compiled else sums

        def step(self) -> int:
            (drawn,) = peers.poisson_pieces(workload)
            with torch.no_grad():
                found = self._sums(self._inputs.index_select(0, drawn), self._targets.index_select(0, drawn))
            for parameter, total in zip(model.parameters(), found, strict=True):
                noise = torch.empty_like(parameter).normal_(std=peers.MULTIPLIER * peers.THRESHOLD)
                parameter.grad = (total + noise) / workload.batch
            self._optimizer.step()
            return len(drawn)

    return Engine()


if __name__ == "__main__":
    sys.exit(main())
