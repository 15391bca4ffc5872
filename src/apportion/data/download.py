"""Get one file from one address: to a temporary name first, so that a file with its real name is always whole."""

from __future__ import annotations

import http.client
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

TIMEOUT_SECONDS = 10


class Unreachable(Exception):
    """This source cannot be used now; the next one may."""


def open_url(url: str) -> Any:
    """The one place that opens a connection."""
    request = urllib.request.Request(url, headers={"User-Agent": "apportion"})
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def download(url: str, target: Path, console: Console) -> Path:
    """Write the content of `url` to `target`, with a progress bar."""
    from rich.progress import wrap_file

    part = target.with_name(f"{target.name}.part")
    try:
        with open_url(url) as response, part.open("wb") as output:
            length = response.headers.get("Content-Length")
            total = int(length) if length else 0
            with wrap_file(response, total, description=target.name, console=console, transient=True) as stream:
                shutil.copyfileobj(stream, output)
            if total and output.tell() != total:
                raise OSError(f"the connection ended after {output.tell()} of {total} bytes")
    except (urllib.error.URLError, http.client.HTTPException, OSError) as problem:
        part.unlink(missing_ok=True)
        raise Unreachable(f"{url}: {getattr(problem, 'reason', problem)}") from problem
    return part.replace(target)
