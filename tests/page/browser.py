"""A headless Chromium, driven over its DevTools protocol: one page, what it asks for, and what it complains about."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-port=0",
)
START_S = 60.0
PATIENCE_S = 60.0  # what a page that is in order never needs


def find_chromium() -> str | None:
    """The browser's command, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Broken(AssertionError):
    """The page threw, or did not come to what was waited for."""


@dataclass
class Page:
    """One tab."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    urls: list[str] = field(default_factory=list)  # all that were asked for
    complaints: list[str] = field(default_factory=list)  # console errors, exceptions, violations of the policy

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._context = ""

    async def listen(self) -> None:
        """Take answers and events until the browser goes."""
        async for message in self.socket:
            said = json.loads(message.data)
            if (waiting := self._answers.pop(said.get("id", 0), None)) is not None:
                if not waiting.done():
                    waiting.set_result(said)
            elif "method" in said and said.get("sessionId") == self.session:
                self._note(said["method"], said["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"]))

    async def renew(self) -> None:
        """A tab that knows nothing of the one before: no page, no storage, no cache."""
        self.session = ""
        if self._context:
            await self.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        self.urls.clear()
        self.complaints.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        await self.socket.send_json(command)
        said = await asyncio.wait_for(self._answers[number], PATIENCE_S)
        if "error" in said:
            raise Broken(f"{method}: {said['error']}")
        result: dict[str, Any] = said["result"]
        return result

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in said:
            raise Broken(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    async def until(self, condition: str, seconds: float = PATIENCE_S) -> None:
        """Wait, in the page, for an expression to be true."""
        look = f"const look = () => ({condition}) ? done(true) : late() ? done(false) : setTimeout(look, 20)"
        late = f"const end = Date.now() + {seconds * 1000:.0f}, late = () => Date.now() > end"
        if not await self.evaluate(f"new Promise((done) => {{ {late}; {look}; look(); }})"):
            text = await self.evaluate("document.body.innerText")
            raise Broken(f"not within {seconds} s: {condition}\n{self.complaints}\n{text}")

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    async def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)

    async def media(self, **features: str) -> None:
        """prefers_color_scheme="dark" and the like."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=named)

    async def press(self, key: str, text: str = "", shift: bool = False) -> None:
        """A key, as a person presses it."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def photograph(self, file: Path) -> None:
        said = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(said["data"]))


@asynccontextmanager
async def browsing(chromium: str) -> AsyncIterator[Page]:
    """A page in a browser of its own, which ends with it."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            chromium,
            *ARGUMENTS,
            f"--user-data-dir={folder}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            url = await asyncio.wait_for(_address(process), START_S)
            async with aiohttp.ClientSession() as client, client.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                await page.renew()
                yield page
                listening.cancel()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Where the browser says that it listens."""
    assert process.stderr is not None
    said = b""
    async for line in process.stderr:
        said += line
        if line.startswith(b"DevTools listening on "):
            return line.split()[-1].decode()
    raise Broken(f"chromium ended: {said.decode(errors='replace')}")
