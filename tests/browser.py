"""A real browser for the console's tests: headless Chromium, driven through selenium."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving

pytest.importorskip("selenium", reason="no Selenium here: it comes with the extra `dev`")
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

PROGRAMS = ("chromium", "chromedriver")
ADVICE = "no Chromium with its driver here: `apt-get install chromium chromium-driver`"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
FLAGS += ("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--no-first-run")
# One process shows all pages. Otherwise Chromium starts a process per page and a spare process, which is slow.
FLAGS += ("--disable-site-isolation-trials", "--renderer-process-limit=1")
UNUSED = (
    "SpareRendererForSitePerProcess",
    "BackForwardCache",
    "MediaRouter",
    "OptimizationHints",
    "Prerender2",
    "Translate",
)
FLAGS += ("--in-process-gpu", f"--disable-features={','.join(UNUSED)}")
# Runs in every page before its own scripts. It records forbidden actions, and stores copied texts.
WATCH = """
window.ran = 0; window.violations = []; window.problems = []; window.copied = null;
document.addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective));
addEventListener("error", (e) => window.problems.push(String(e.message)));
navigator.clipboard.writeText = async (text) => { window.copied = text; };
"""
FIND = """
const [css, text] = arguments;
const fits = (element) => element.checkVisibility() && (element.innerText ?? "").includes(text);
return [...document.querySelectorAll(css)].find(fits);
"""

FOCUSED = "const { innerText, name } = document.activeElement; return [innerText?.trim(), name];"

SAYS = "return document.body.innerText.includes(arguments[0])"


class Browser:
    """A page of the console.

    Args:
        driver: The browser.
        url: The server's address.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, fragment: str = "#/sessions", url: str | None = None) -> None:
        """Load the console again, at this fragment of its address."""
        if self.driver.current_url != "about:blank":
            self.driver.get("about:blank")  # a change of the fragment alone doesn't reload a page
        self.driver.get(f"{url or self.url}/console/{fragment}")

    def resize(self, width: int, height: int = 800, *, dark: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, look: Any, description: str) -> Any:
        """Wait until `look` returns a true value, and return the value. Ignore errors of a changing page."""

        def attempt() -> Any:
            try:
                return look()
            except WebDriverException:
                return None

        deadline, pause = time.monotonic() + serving.PATIENCE, 0.005
        while not (value := attempt()):
            assert time.monotonic() < deadline, f"{description} did not happen; the page says:\n{self.text()}"
            time.sleep(pause)
            pause = min(pause * 2, 0.1)  # each look costs three processes some milliseconds
        return value

    def text(self) -> str:
        return self.run("return document.body.innerText")

    def sees(self, *texts: str) -> str:
        """Wait until the page shows all these texts."""
        for text in texts:
            self.until(lambda text=text: self.run(SAYS, text), f"{text!r} on the page")
        return self.text()

    def find(self, css: str, text: str = "") -> Any:
        """Wait for a visible element, with this text in it."""

        return self.until(lambda: self.run(FIND, css, text), f"{css} with {text!r}")

    def click(self, text: str, css: str = "button, a, summary, [role=treeitem] > .row") -> None:
        """Click the element with this text."""

        def press() -> bool:
            self.find(css, text).click()
            return True

        self.until(press, f"a click on {text!r}")

    def field(self, name: str) -> Any:
        return self.find(f"[name='{name}']")

    def write(self, name: str, text: str) -> None:
        """Replace the text of a field."""
        field = self.field(name)
        if field.tag_name == "select":
            Select(field).select_by_visible_text(text)
        elif field.get_attribute("type") == "date":
            self.run("arguments[0].value = arguments[1]", field, text)
        else:
            field.clear()
            field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, text: str) -> None:
        """Press the tab key until an element with this text or name has the focus."""
        for _ in range(200):
            self.press(Keys.TAB)
            if text in self.run(FOCUSED):
                return
        raise AssertionError(f"the tab key doesn't lead to {text!r}")

    @property
    def hash(self) -> str:
        return self.run("return location.hash")

    def at(self, start: str) -> str:
        """Wait until the address after the # begins with this text."""
        self.until(lambda: self.hash.startswith(start), f"an address {start}")
        return self.hash


@contextlib.contextmanager
def browser(url: str, folder: Path) -> Iterator[Browser]:
    """Start a browser that writes only to this folder. Skip the test if there is no browser."""
    chromium, driver = map(shutil.which, PROGRAMS)
    if chromium is None or driver is None:
        pytest.skip(ADVICE)
    options = Options()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    home = {name: str(folder) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    started = webdriver.Chrome(options=options, service=Service(driver, env=os.environ | home))
    try:
        started.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        page = Browser(started, url)
        page.resize(1280)
        yield page
    finally:
        started.quit()
