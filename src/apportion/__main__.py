"""`python -m apportion`: the command line, where no script is installed or on the path."""

from apportion.cli import run

run()
