"""A headless Chromium, driven through the pipe of its DevTools protocol, for tests of pages.

`--remote-debugging-pipe` makes the browser read messages from file descriptor 3 and write them to 4, each one JSON that
ends with a null byte. It therefore needs no port and no package.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, _NAMES) if path), None)


class Browser:
    """One page in a browser; use it as a context manager.

    Attributes:
      errors: messages of exceptions, console errors and log entries of the page since it was opened.
      requests: addresses of everything that the page has requested since it was opened.
    """

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        self.errors, self.requests = [], []
        self._next_id, self._answers, self._pending = 1, {}, b""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        # Child descriptors 3 and 4, whatever numbers the pipes have here.
        def place_descriptors():
            first, second = os.dup(to_browser), os.dup(from_browser)
            spare = [os.dup(first), os.dup(second)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        command = [find_browser(), *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=place_descriptors,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._folder},
        )
        os.close(to_browser)
        os.close(from_browser)
        target = next(each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        arguments = {"targetId": target["targetId"], "flatten": True}
        self._session = self._call("Target.attachToTarget", **arguments)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, path: Path, *, width=1200, height=900, dark=False, is_phone=False) -> None:
        """Opens a file and waits until its figures are drawn."""
        self.set_dark(dark)
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if is_phone else 1, "mobile": is_phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.errors, self.requests = [], []
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'true' || document.querySelector('[role=alert]')")

    def set_dark(self, dark: bool) -> None:
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression: str):
        """Returns the JSON value of an expression, after awaiting it."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str, timeout_secs: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_secs
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"waited {timeout_secs:g} s for {condition}; errors: {self.errors}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def screenshot(self, path: Path, *, full_page=False, clip=None) -> None:
        options = {"captureBeyondViewport": True} if full_page or clip else {}
        if full_page:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        if clip:
            options["clip"] = {"scale": 1, **clip}
        image = self.call("Page.captureScreenshot", format="png", **options)
        Path(path).write_bytes(base64.b64decode(image["data"]))

    def call(self, method: str, **arguments):
        return self._call(method, self._session, **arguments)

    def _call(self, method, session=None, **arguments):
        number, self._next_id = self._next_id, self._next_id + 1
        message = {"id": number, "method": method, "params": arguments}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while number not in self._answers:
            self._receive(deadline, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _receive(self, deadline, method):
        ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"the browser did not answer {method} in time"
        block = os.read(self._read, 1 << 20)
        assert block, f"the browser ended during {method}"
        *messages, self._pending = (self._pending + block).split(b"\0")
        for each in messages:
            self._handle(json.loads(each))

    def _handle(self, message):
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, arguments = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(arguments["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and arguments["type"] in ("error", "warning"):
            self.errors.append(str(arguments["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(str(arguments["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(arguments["request"]["url"])
