"""`python -m apportion`: the command line, where no script is installed or on the path."""

from apportion.cli import run

if __name__ == "__main__":
    run()
