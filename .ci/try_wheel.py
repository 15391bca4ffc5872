"""Try a wheel as its users will: installed into an empty environment, without the checkout.

    python .ci/try_wheel.py dist/apportion-*.whl

First with the core's dependencies only, then with all extras. Versions come from constraints.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEEDED = ("py.typed", "compare/demo.toml", "reporting/template/page.html.j2", "reporting/template/style.css.j2")
FOREIGN = ("tests/", "reproduction/", "benchmarks/", ".ci/", "runs/")
TRAIN = "train --data digits --epsilon 3 --delta 1e-5 --unit record --population 1437 --batch-size 128 --steps 10 --lr 1 --out one"
COMPARE = "compare demo --steps 10 --out demo"


def main(wheel: Path) -> None:
    check_content(wheel)
    with tempfile.TemporaryDirectory(prefix="apportion-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        binaries = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python, apportion = str(binaries / "python"), str(binaries / "apportion")

        install(python, place, str(wheel))
        where = run([python, "-c", "import apportion; print(apportion.__file__)"], place)
        require(Path(where.strip()).is_relative_to(place), f"{where} is not the installed package")
        epsilon = float(run([python, str(HERE / "short_training.py")], place))
        require(1.9 < epsilon <= 2, f"the short training spent ε = {epsilon}")
        refusal = run([apportion, "train"], place, code=2)
        require(refusal.count("\n") == 1 and 'pip install "apportion[cli]"' in refusal, refusal)

        install(python, place, f"{wheel}[all]")
        require("compare" in run([apportion, "--help"], place), "--help does not name the commands")
        run([apportion, *TRAIN.split()], place)
        run([apportion, *COMPARE.split()], place)
        require((place / "demo" / "report.html").stat().st_size > 1_000_000, "the report is not self-contained")
    print(f"{wheel.name} works without the checkout.")


def check_content(wheel: Path) -> None:
    """The data files are inside, and nothing but the package is; the source archive has no tests either."""
    inside = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in NEEDED if f"apportion/{name}" not in inside]
    require(not missing, f"{wheel.name} lacks {missing}")
    strange = [name for name in inside if not name.startswith(("apportion/", "apportion-"))]
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archived = [name.partition("/")[2] for name in archive.getnames()]
    strange += [name for name in archived if name.startswith(FOREIGN)]
    require(not strange, f"there should be no {strange[:5]} in the packages")
    lines = sum(zipfile.ZipFile(wheel).read(name).count(b"\n") for name in inside if name.endswith(".py"))
    modules = sum(name.endswith(".py") for name in inside)
    print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB, {modules} modules, {lines:,} lines")


def install(python: str, place: Path, what: str) -> None:
    """Install and say how much that was."""
    started = time.monotonic()
    constraints = HERE.parent / "constraints.txt"
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", str(constraints), what], place)
    packages = len(run([python, "-m", "pip", "list", "--format", "freeze"], place).splitlines())
    extras = what[what.index("[") :] if what.endswith("]") else ""
    print(f"apportion{extras}: {packages} packages installed, {time.monotonic() - started:.0f} s")


def run(command: list[str], place: Path, code: int = 0) -> str:
    """What a command printed, in a folder and an environment that do not lead to the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    require(done.returncode == code, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def require(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"error: {message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
