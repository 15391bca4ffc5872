"""A headless Chromium for tests, driven over its debugging pipe: nothing but the standard library, no port, no network."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
OPTIONS = [
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
    "hide-scrollbars",
    "remote-debugging-pipe",
]
PATIENCE = 60.0
# Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
LAUNCHER = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One browser, for as many pages as wanted, one after the other."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_command, self._write = _pipe()
        self._read, write_answer = _pipe()
        options = [*(f"--{option}" for option in OPTIONS), f"--user-data-dir={profile}"]
        options.append("--host-resolver-rules=MAP * ~NOTFOUND")  # no name leads anywhere
        self._process = subprocess.Popen(
            [sys.executable, "-SEc", LAUNCHER, str(read_command), str(write_answer), CHROMIUM, *options],
            pass_fds=(read_command, write_answer),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_command)
        os.close(write_answer)
        self._sent, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result; what happens in the meantime is in `events`."""
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._sent:
                assert "error" not in message, message["error"]
                return dict(message["result"])
            self.events.append(message)

    def open(self, page: Path) -> Page:
        """Load a page and wait until its scripts have run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        opened = Page(self, session, page.as_uri())
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        opened.show()
        self.call("Page.navigate", session, url=opened.address)
        while not any(event["method"] == "Page.loadEventFired" for event in opened.events()):
            self.events.append(self._receive())
        return opened

    def close(self) -> None:
        """End the browser that was started here."""
        self.call("Browser.close")
        self._process.wait(PATIENCE)
        os.close(self._write)
        os.close(self._read)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._read, 1 << 20) if ready else b""
            if not more:
                raise TimeoutError(f"chromium did not answer (its exit code: {self._process.poll()})")
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))


class Page:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str, address: str) -> None:
        self.browser, self.session, self.address = browser, session, address

    def run(self, script: str) -> Any:
        """The value of an expression in the page, which may be a promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        found = self.browser.call("Runtime.evaluate", self.session, expression=script, **options)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def show(self, *, width: int = 1280, dark: bool = False, media: str = "screen") -> None:
        """On a screen of this width, with this preference of its owner, or on paper."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.call("Emulation.setDeviceMetricsOverride", self.session, **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.browser.call("Emulation.setEmulatedMedia", self.session, media=media, features=scheme)
        self.browser.call("Page.bringToFront", self.session)  # a page in the background is told later, or never
        self.run("new Promise(done => setTimeout(done, 200))")

    def events(self) -> list[dict[str, Any]]:
        """What happened in this page so far."""
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def problems(self) -> list[str]:
        """Exceptions, errors on the console, and what the browser itself complained about."""
        self.run("new Promise(done => setTimeout(done, 50))")
        found = []
        for event in self.events():
            facts = event["params"]
            said = {
                "Runtime.exceptionThrown": "error",
                "Runtime.consoleAPICalled": facts.get("type"),
                "Log.entryAdded": facts.get("entry", {}).get("level"),
            }.get(event["method"])
            found += [json.dumps(facts)] if said in ("error", "warning", "assert") else []
        return found

    def requests(self) -> list[str]:
        """The addresses of all requests except the one for the page itself."""
        sent = [
            event["params"]["request"]["url"]
            for event in self.events()
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in sent if address != self.address]


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are out of the way of 3 and 4."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
