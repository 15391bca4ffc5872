"""`python -m reproduction`: run the studies of the papers, draw their figures, fill the pages of results."""

from __future__ import annotations

import typer

from apportion.cli.main import main
from apportion.cli.search_command import search
from reproduction.figures_command import figures
from reproduction.list_command import list_studies
from reproduction.run_command import run
from reproduction.trials_command import choose, trials

app = typer.Typer(
    name="reproduction",
    help="Run tables and figures of papers again, and keep what came out.",
    epilog="Start with: python -m reproduction list",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command("list")(list_studies)
app.command()(figures)
app.command()(trials)
app.command()(choose)
app.command(help=f"{search.__doc__}\n\nThis is `apportion search` with the networks of the papers.")(search)

if __name__ == "__main__":
    main(commands=app)
