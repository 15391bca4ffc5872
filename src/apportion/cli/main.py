"""The command `apportion`. Heavy imports happen inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import getdoc
from typing import Annotated, Any

import typer

from apportion import __version__
from apportion.cli import audit_command as audit
from apportion.cli import data_command as data
from apportion.cli import ledger_command as ledger
from apportion.cli.account_command import account
from apportion.cli.advise_command import advise
from apportion.cli.check_command import check
from apportion.cli.compare_command import compare
from apportion.cli.pate_command import pate
from apportion.cli.plan_command import plan
from apportion.cli.predict_command import predict
from apportion.cli.recipes_command import recipes
from apportion.cli.report_command import report
from apportion.cli.search_command import search
from apportion.cli.statement_command import statement
from apportion.cli.statistics_command import statistics
from apportion.cli.train_command import train
from apportion.cli.tune_command import tune
from apportion.errors import ApportionError, InvalidArgument, MissingExtra, RankLost, UnusableRecords
from apportion.execution import ACCUMULATION
from apportion.extras import EXTRAS

LOST = 4
"""Exit code of a run of several processes that has lost one."""

app = typer.Typer(
    name="apportion",
    help="Train models under differential privacy, and spend the budget where it buys the most accuracy.",
    epilog="Start with: apportion compare demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (
    train,
    predict,
    compare,
    advise,
    plan,
    search,
    tune,
    pate,
    statistics,
    recipes,
    account,
    report,
    statement,
    check,
):
    app.command()(_command)
_groups = {"data": data.app, "ledger": ledger.app, "audit": audit.app}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name)


def _describe(command: Any) -> str:
    """What a command says about itself, a line for each paragraph: a terminal is narrower than its docstring."""
    return "\n\n".join(" ".join(part.split()) for part in (getdoc(command) or "").split("\n\n"))


for _listed in (app, *_groups.values()):
    for _registered in _listed.registered_commands:
        _registered.help = _describe(_registered.callback)

# Some versions of typer carry their own copy of click, so its base error is found by name.
_CommandLineError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None, commands: typer.Typer | None = None) -> None:
    """Run the command line. Deliberate errors, and those of the file system, are one line on standard error and exit code 2; 3 for a run
    that was charged and has stopped because its records cannot be used, 4 for one of several processes that has lost another."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without ε, or a name that is no text
    said = sys.argv[1:] if arguments is None else arguments
    if _started() > 1:  # torchrun ends the others so when one has failed: they say how to go on
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _require_text(said)
        _require_one_process(said)
        with warnings.catch_warnings(), _only_the_first_rank_tells():
            warnings.showwarning = _one_line
            code = (commands or app)(args=arguments, standalone_mode=False)
    except UnusableRecords as error:
        _fail(str(error), code=3)
    except RankLost as error:
        _fail(str(error), code=LOST)
    except ApportionError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
        if extra is None:  # a person's own code lacks it, or there is a bug
            raise
        _fail(str(MissingExtra(extra, module)))
    except _CommandLineError as error:
        if not error.format_message():  # called without a command: the help was printed
            sys.exit(2)
        looked_for = "accumul" in str(getattr(error, "option_name", ""))
        _fail(f"{error.format_message()} {ACCUMULATION + ' (--micro-batch).' if looked_for else ''}")
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}. Nothing more was done.")
    except (KeyboardInterrupt, typer.Abort):
        if _rank() == 0:
            print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _require_text(arguments: list[str]) -> None:
    """No file name, and no number, holds a zero byte or bytes that are not UTF-8."""
    for argument in arguments:
        if "\0" in argument or any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise InvalidArgument("argument", argument, "it is not text in UTF-8", "Type it anew")


def _rank() -> int:
    """Which of the processes that torchrun has started this is; 0 if it is the only one."""
    return int(os.environ.get("RANK", "0")) if _started() > 1 else 0


def _started() -> int:
    """How many processes torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def _require_one_process(arguments: list[str]) -> None:
    """Refuse to do the same several times over: only `train` is made for several processes."""
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    if _started() > 1 and asked not in (None, "train"):
        reason = "torchrun has started several processes, and each would do and charge the same for itself"
        raise InvalidArgument("command", asked, reason, "Start it without torchrun; `apportion train` can use it")


@contextmanager
def _only_the_first_rank_tells() -> Iterator[None]:
    """What other ranks would print is printed once, by the first."""
    if _rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _fail(message: str, code: int = 2) -> None:
    """Of several ranks the first one tells; another one only of a rank that was lost, which may be the first."""
    rank = _rank()
    if rank == 0 or code == LOST:
        print(f"error{f' (rank {rank})' if rank else ''}:", " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


def _one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", " ".join(str(message).split()), file=sys.stderr)


if __name__ == "__main__":
    main()
