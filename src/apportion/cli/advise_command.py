"""`apportion advise`: what a value of ε means and buys, before anything is decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Column, Table

from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_error_stream, print_lines, screen
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.advice import Advice, Candidate
    from apportion.budget import Unit
    from apportion.compare.resolve import Subject
    from apportion.compare.table_subject import TableChoice

_SYNTHETIC_RECORDS, _LR = 5000, 0.5


@options.declared_in(options.Table)
def advise(
    population: Annotated[int, option("Declared number of records (of users): a public figure, never counted.")],
    unit: Annotated[Literal["record", "user"], option("Whom the guarantee protects.")] = "record",
    epsilon: Annotated[list[float] | None, option("A candidate. Repeatable.", "0.25, 0.5, 1, 2, 4 and 8")] = None,
    delta: Annotated[float | None, option("δ.", "a power of ten, at most a tenth of 1/population")] = None,
    runs: Annotated[int | None, option("Also: ε as the limit of so many equal runs on the same data.")] = None,
    recipe: Annotated[str, option("A name from `apportion recipes`.", options.DEFAULT_RECIPE_SHOWN)] = "default",
    sample_rate: Annotated[float | None, option("q, the probability of a record to join a batch.")] = None,
    batch_size: Annotated[int | None, option("Instead: expected batch size.", "512, or the population")] = None,
    steps: Annotated[int | None, option("Number of updates.")] = None,
    epochs: Annotated[float | None, option("Instead of --steps; an epoch is round(1/q) steps.", "10")] = None,
    dry_run: Annotated[
        str | None,
        option(
            "Try each ε on data that is public, with the noise of your run: a built-in name, synthetic, module:function, or a CSV or "
            "Parquet file with --schema, --target and --test (naming it here declares that it is public)."
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "Of the dry runs: linear, additive, mlp, spread-mlp, cnn, lstm, embedding, or your own module:function.",
            "by the kind of data",
        ),
    ] = None,
    lr: Annotated[float | None, option("Learning rate of the dry runs.", "0.5")] = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option("Also draw it all on a page (.html).")] = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Compare values of ε for a run that you describe: noise, what kept results reached, and what is left to an attacker.

    ε bounds how much surer anybody can become that one record was used. What accuracy it costs depends above all on the number of records.

    δ must lie well below 1/population: publishing one random record in full has δ = 1/population.

    With --runs 5, each ε is the limit of five equal runs on the same data; what each may spend is shown for both rules of a ledger.

    No data of yours is read. Nothing is charged.

    Example: apportion advise --population 4000 --batch-size 400 --steps 100

    Example: apportion advise --population 60000 --epsilon 2 --runs 5 --dry-run digits --out advice.html
    """
    from apportion.advice import advise as give_advice

    _require_page(out)
    table = options.read_table_choice(said | ({} if dry_run is None else {"data": dry_run}))
    if table is not None and dry_run is None:
        reason = "no data of yours is read; a table can be named for a dry run, and then is public"
        raise InvalidArgument("schema", str(said.get("schema")), reason, "Leave it out, or pass --dry-run public.csv")
    for name, value in {"model": model, "lr": lr}.items():
        if value is not None and dry_run is None:
            reason = "only a dry run trains a model, and none was asked for"
            raise InvalidArgument(name, value, reason, "Pass --dry-run synthetic, or data that is public")
    if sample_rate is None and batch_size is None:
        batch_size = min(512, population) if population > 0 else None
    if steps is None and epochs is None:
        epochs = 10.0
    more: dict[str, Any] = {"epsilons": epsilon} if epsilon else {}
    advice = give_advice(
        recipe,
        population=population,
        unit=_unit(unit),
        delta=delta,
        runs=runs,
        sample_rate=sample_rate,
        batch_size=batch_size,
        steps=steps,
        epochs=epochs,
        **more,
    )
    if dry_run is not None:
        advice = _try(advice, dry_run, _subject(dry_run, model, data_dir, table), table, _LR if lr is None else lr)
    if out is not None:
        from apportion.cli.advise_figure import write_advice

        write_advice(advice, out)
    if as_json:
        typer.echo(json.dumps(advice.to_json()))
    else:
        _show(advice, out)


def _require_page(out: Path | None) -> None:
    from apportion.reporting.export import require_suffix

    if out is not None:
        require_suffix("out", out, (".html",))


def _unit(name: str) -> Unit:
    from apportion.budget import UNITS

    return UNITS[name]()


def _try(advice: Advice, data: str, subject: Subject, table: TableChoice | None, lr: float) -> Advice:
    """Train with each plan on public data."""
    from torch.nn.functional import cross_entropy

    from apportion.advice import dry_run
    from apportion.budget import Public

    if subject.test is None:
        reason = "it has no test part, so that nothing can be measured"
        fix = "Return (train, apportion.Public(test))" if table is None else "Pass --test too, another public table"
        raise InvalidArgument("dry_run", data, reason, fix)
    if subject.encoding is not None and subject.encoding.classes is None:
        reason = "accuracy is compared, and the target of this table is a number"
        raise InvalidArgument("dry_run", data, reason, "Name one whose target has categories")
    print_error_stream(f"dry run on {data}, which is taken to be public: {len(advice.plans)} runs")
    train, loss = Public(subject.train), cross_entropy if table is None else table.loss()
    reached = dry_run(advice.plans, subject.build, loss, train, evaluate=subject.test, lr=lr)
    return advice.with_accuracies(reached, data)


def _subject(data: str, model: str | None, data_dir: Path | None, table: TableChoice | None) -> Subject:
    from functools import partial

    from apportion.advice.rehearsal import SYNTHETIC, make_synthetic
    from apportion.compare import networks
    from apportion.compare.resolve import Subject, resolve

    if data != SYNTHETIC:
        return resolve(data, model, data_dir, table)
    made = make_synthetic(_SYNTHETIC_RECORDS)
    name = model or networks.default_name(made)
    return Subject(data, name, made.train, made.test, made.population, partial(networks.build, name, made))


def _show(advice: Advice, out: Path | None) -> None:
    from apportion.reporting.statements import round_up_share

    console, sampling = screen(), advice.sampling
    print_lines(
        console,
        f"{advice.recipe}: {sampling.population:,} {advice.unit}s, {sampling.steps:,} steps with q = {sampling.sample_rate:.4g} "
        f"(batches of {sampling.expected_batch_size:g})",
        advice.delta_reason + ".",
    )
    tried = advice.dry_run_data is not None
    headings = ["ε", "noise z", "on an update", "right guesses", "recognised", *(["dry run"] if tried else [])]
    table = Table(*(Column(heading, justify="right") for heading in headings), "kept results with such noise")
    for one in advice.candidates:
        cells = [f"{one.epsilon:g}", f"{one.noise_multiplier:.4g}", f"{one.noise_per_update:.2g}"]
        cells += [f"≤ {round_up_share(one.right_guesses)}", f"≤ {round_up_share(one.recognised, 2)}"]
        cells += [f"{one.accuracy:.1%}" if one.accuracy is not None else ""] if tried else []
        table.add_row(*cells, _alike(one))
    console.print(table)
    print_lines(console, *_explain(advice))
    for one in advice.candidates:
        if one.shares is not None:
            print_lines(console, _describe_shares(one, advice.delta))
    if out is not None:
        print_lines(console, f"Look at   {out}")


def _alike(one: Candidate) -> str:
    shown = [f"{kept.accuracy:.1%} on {kept.data} (ε = {kept.epsilon:g})" for kept in one.alike()[:2]]
    return "; ".join(shown) or "none"


def _explain(advice: Advice) -> list[str]:
    one = advice.unit
    lines = [
        "on an update: standard deviation of the noise on the mean gradient of a batch, in clip thresholds, z/(q·N): "
        "the smaller, the more is learned. What it means for your model and data, --dry-run shows.",
        f"right guesses: when a fair coin decides whether a {one} is used, and an attacker knows everything else and sees all that this "
        f"run releases. recognised: of used {one}s, while 1 in 1,000 unused ones is mistaken for used. Both are limits for this "
        "noise, for any attack.",
        "kept results: of the same recipe on other data, with about the same noise on an update (reproduction/results).",
    ]
    if all(one.shares is None for one in advice.candidates):
        lines.append(
            "Several runs on the same data together cost more than one: --runs 5 shows what each of five may spend."
        )
    return lines


def _describe_shares(one: Candidate, delta: float) -> str:
    shares = one.shares
    assert shares is not None
    return (
        f"{shares.runs} equal runs under ε = {one.epsilon:g}, δ = {delta:g}: ε = {shares.gaussian:.3g} each with the rule gaussian "
        f"(z = {shares.gaussian_noise:.4g}); {shares.sum:.3g} each at δ = {delta / shares.runs:.2g} with the rule sum "
        f"(z = {shares.sum_noise:.4g}). Less noise: {shares.cheaper}."
    )
