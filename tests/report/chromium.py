# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A small client for headless Chromium over its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
import typing as t
import urllib.request
from pathlib import Path

import websocket

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]

#: Finds texts on the page with less contrast to their background than WCAG 2 level AA requires (1.4.3).
CONTRAST = """(() => {
  const rgb = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const shapes = e.namespaceURI.endsWith("svg") && e.tagName === "g" ? e.querySelectorAll(":scope > rect") : [];
      if (shapes.length) return rgb(getComputedStyle(shapes[shapes.length - 1]).fill);
      const color = rgb(getComputedStyle(e).backgroundColor);
      if (color[3] === 1) return color;
    }
    return [255, 255, 255, 1];
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || /^(SCRIPT|STYLE|title|desc)$/.test(element.tagName)) continue;
    if (!element.checkVisibility || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const under = behind(element);
    const ink = over(rgb(element.tagName === "text" ? style.fill : style.color), under);
    const [a, b] = [light(ink), light(under.slice(0, 3))].sort((x, y) => y - x);
    const big = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < (big ? 3 : 4.5)) {
      bad.push(`${element.tagName}.${element.getAttribute("class")} ${((a + 0.05) / (b + 0.05)).toFixed(2)} `
        + walk.currentNode.textContent.trim().slice(0, 40));
    }
  }
  return { seen, bad: [...new Set(bad)].slice(0, 20) };
})()"""

#: Finds boxes that extend beyond the page and are not inside a scrollable region.
OVERFLOWING_BOXES = """[...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, .skip, head, script")
  && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className).slice(0, 10)"""


class Browser:
    """One page. `problems` collects console errors, exceptions and refused loads, `loads` all loaded addresses."""

    def __init__(self, program: str, profile: Path) -> None:
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._port(profile / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            targets = json.load(answer)
        address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
        self.socket = websocket.create_connection(address, timeout=60)
        self.numbers = itertools.count(1)
        self.problems: list[str] = []
        self.loads: list[str] = []
        self.loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _port(path: Path) -> str:
        for _attempt in range(600):
            with contextlib.suppress(OSError, IndexError):
                return path.read_text().splitlines()[0]
            time.sleep(0.1)
        raise TimeoutError("Chromium did not start")

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)

    def _receive(self) -> dict[str, t.Any]:
        message = json.loads(self.socket.recv())
        method, values = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.problems.append(str(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.problems.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.loads.append(values["request"]["url"])
        return message

    def call(self, method: str, **values: t.Any) -> dict[str, t.Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": values}))
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def open(
        self, path: Path, width: int = 1280, dark: bool = False, script: bool = True, media: str = "screen"
    ) -> None:
        self.problems.clear()
        self.loads.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.loaded = False
        self.call("Page.navigate", url=path.as_uri())
        while not self.loaded:
            self._receive()

    def evaluate(self, expression: str) -> t.Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            if kind != "char" or key == "Enter":
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    windowsVirtualKeyCode=code,
                    text="\r" if key == "Enter" else "",
                )

    def screenshot(self, path: Path, height: int) -> None:
        width = self.evaluate("innerWidth")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
