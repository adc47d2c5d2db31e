"""The console's pages in a real browser, on a real worker and a real Kafka, as a person uses them."""

import asyncio
import dataclasses
import json
import os
import random
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from axe_core_python.selenium import Axe
from hostile import some_value
from patience import LIMIT_S
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from service import Process, Service

from kafka_timers import TimerClient
from kafka_timers.core.routing import hash_of
from kafka_timers.core.schedules import Cron, Schedule
from kafka_timers.core.wire import Callback, Future, Header, future_from
from kafka_timers.dev.broker import free_port
from kafka_timers.errors import WireError

EVIL = "<script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"
SCREENS = ("now", "ahead", "timers", "schedules", "refused", "topics", "partitions", "try", "api")

_T = TypeVar("_T")


class Pages:
    """A browser on the console of a service."""

    def __init__(self, service: Service, console: Process, browser: webdriver.Chrome, worker: Process) -> None:
        self.service = service
        self.worker = worker
        self.console = console
        self.browser = browser

    @property
    def url(self) -> str:
        """Where the console is."""
        return f"http://127.0.0.1:{self.console.port}/"

    async def open(self, screen: str) -> None:
        """Open a screen anew."""
        await asyncio.to_thread(self.browser.get, "about:blank")
        await asyncio.to_thread(self.browser.get, f"{self.url}#/{screen}")

    async def until(self, found: Callable[[], _T]) -> _T:
        """Return the result of *found* once it is not empty."""
        wait = WebDriverWait(self.browser, LIMIT_S, ignored_exceptions=(Exception,))
        return await asyncio.to_thread(wait.until, lambda _: found())

    async def until_shown(self, text: str, times: int = 1) -> None:
        """Wait until the main part of the page shows *text*, at least so many times."""

        def is_shown() -> bool:
            if "ask again" in (shown := self.main):
                self.browser.refresh()
            return shown.count(text) >= times

        try:
            await self.until(is_shown)
        except Exception as error:
            raise AssertionError(f"{text!r} is not shown, but {self.main!r}") from error

    @property
    def main(self) -> str:
        """The text of the main part of the page."""
        return self.browser.find_element(By.ID, "main").text

    async def press(self, text: str) -> None:
        """Press the button that says *text*."""
        await self.until(lambda: self._pressed(text))

    def _pressed(self, text: str) -> bool:
        for button in self.browser.find_elements(By.XPATH, f"//button[normalize-space()='{text}']"):
            if button.is_displayed():
                button.click()
                return True
        return False

    async def confirm(self) -> None:
        """Say yes in the dialog before an action."""
        await self.until(lambda: self.browser.find_element(By.ID, "ask").get_attribute("open"))
        self.browser.find_element(By.ID, "ask-yes").click()

    async def fill(self, name: str, text: str) -> None:
        """Put *text* into a field."""
        field = await self.until(lambda: self.browser.find_element(By.NAME, name))
        field.clear()
        field.send_keys(text)

    async def picture(self, name: str) -> None:
        """Keep a picture of the page where somebody wants to see it."""
        if folder := os.environ.get("CONSOLE_PICTURES"):
            await asyncio.to_thread(self.browser.save_screenshot, f"{folder}/{name}.png")

    def complaints(self) -> list[Any]:
        """
        Return the browser's complaints since the last call.

        A 503 is none: on a busy machine a question takes longer than a person waits, and then the page says so.
        """
        said = [entry for entry in self.browser.get_log("browser") if entry["level"] != "INFO"]
        return [entry for entry in said if "a status of 503" not in entry["message"]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Debian's chromium, or a skip that says how to get it."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium here: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = chromium
    flags = ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync")
    more = ("disable-background-networking", "disable-component-update", "disable-dev-shm-usage")
    folder = tmp_path_factory.mktemp("browser")
    for flag in (*flags, *more, f"user-data-dir={folder}", "window-size=1100,900"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Driver(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
async def pages(
    bootstrap: str, browser: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pages]:
    prefix = f"pages-{time.time_ns()}-"
    folder: Path = tmp_path_factory.mktemp("pages")
    async with Service(bootstrap, prefix, folder) as service:
        await service.start("oscillator")
        worker = await service.firing("--query-port", str(free_port()))
        console = await service.start("console", "--writable", "--group", prefix + "workers")
        await console.until("/livez", lambda status, _: status == 200)
        yield Pages(service, console, browser, worker)


def serious(browser: webdriver.Chrome) -> list[tuple[str, list[str]]]:
    """Return the faults that keep somebody from using the page, by the rules of axe, with their places."""
    found = Axe().run(browser)["violations"]
    return [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


async def test_a_newcomer_sends_a_timer_and_sees_it_fire(pages: Pages) -> None:
    await pages.open("now")
    await pages.until_shown("It fires: every partition is sealed up to")
    await pages.picture("now")
    await pages.open("try")
    await pages.fill("topic", pages.service.callbacks)
    await pages.fill("after", "2")
    await pages.fill("value", EVIL)
    await pages.fill("timerId", "first")
    await pages.press("Send")
    await pages.until_shown("It fires at")
    await pages.until_shown(EVIL)
    await pages.until_shown("ms late, request")
    await pages.picture("try")
    pages.browser.find_element(By.LINK_TEXT, "first").click()
    await pages.until_shown("Its life")
    await pages.open("timer/first")
    await pages.until_shown("fired; was for")
    await pages.picture("timer")


async def test_eight_tabs_of_callbacks_are_alive_together(pages: Pages) -> None:
    browser, first = pages.browser, pages.browser.current_window_handle

    async def send(value: str) -> None:
        await pages.fill("topic", pages.service.callbacks)
        await pages.fill("after", "1")
        await pages.fill("value", value)
        await pages.press("Send")
        await pages.until(lambda: value in browser.find_element(By.CSS_SELECTOR, "ol.life").text)

    try:
        for number in range(8):
            if number:
                browser.switch_to.new_window("tab")
            await pages.open("try")
            await send(f"tab-{number}")
        # A page that has made room watches again once it is used.
        browser.switch_to.window(first)
        await send("tab-again")
        await pages.until_shown(f"watching {pages.service.callbacks}")
    finally:
        for handle in browser.window_handles:
            if handle != first:
                browser.switch_to.window(handle)
                browser.close()
        browser.switch_to.window(first)


async def test_lateness_moves_on_the_page_while_timers_fire(pages: Pages) -> None:
    begin = int(time.time()) + 2
    for number in range(120):
        await pages.service.request(begin + number // 4, Future(callBackTopic=pages.service.callbacks, callBack=b"v"))
    await pages.open("now")
    seen, figures = set(), dict[str, str]()

    def late() -> bool:
        for each in pages.browser.find_elements(By.CSS_SELECTOR, ".figures div"):
            name, value = each.text.split("\n")[:2]
            figures[name] = value
        if figures["fires a second"] != "0":
            seen.add(figures["late, p50 / p99"])
        return len(seen) >= 3

    await pages.until(late)
    assert all(each.endswith(" ms") for each in seen)
    assert re.fullmatch(r"\d{3,} records, 1 MB", figures["request log"])


async def test_a_timer_is_found_and_taken_back_and_does_not_fire(pages: Pages) -> None:
    due = int(time.time()) + 3_600
    topic = pages.service.prefix + "never"
    await pages.service.create_topic(topic)
    for name in ("cust-7/a", "cust-7/b", EVIL):
        await pages.service.request(due, Future(callBackTopic=topic, callBack=b'{"a": 1}', timerId=name))
    await pages.service.until_sealed(int(time.time()))
    await pages.open("timers")
    await pages.fill("q", "cust-7/")
    pages.browser.find_element(By.NAME, "q").send_keys(Keys.ENTER)
    await pages.until_shown("Timers whose id begins so")
    await pages.until_shown("cust-7/b")
    assert EVIL not in pages.main
    await pages.picture("timers")
    pages.browser.find_element(By.LINK_TEXT, "cust-7/a").click()
    await pages.until_shown("pending; fires")
    await pages.press("Move")
    field = await pages.until(lambda: pages.browser.find_element(By.ID, "ask-input"))
    field.clear()
    field.send_keys(str(due + 60))
    await pages.confirm()
    await pages.until_shown("moved")
    await pages.press("Take back")
    assert "kafka-timers cancel cust-7/a --if-pending --request" in pages.browser.find_element(By.ID, "ask-cli").text
    assert not pages.browser.find_element(By.ID, "ask-input").is_displayed()
    await pages.picture("cancel")
    await pages.confirm()
    await pages.until_shown("cancelled; was for")
    # The one whose id is markup is text everywhere.
    await pages.open("timers?q=" + topic)
    await pages.until_shown(EVIL)
    await pages.open("ahead?unit=hour")
    await pages.until_shown("timers wait in")
    assert pages.browser.title == "kafka-timers"


async def test_fire_now_and_ask_again(pages: Pages) -> None:
    topic, due = pages.service.callbacks, int(time.time()) + 3_600
    await pages.service.request(due, Future(callBackTopic=topic, callBack=b"v", timerId="soon"))
    await pages.open("timer/soon")
    await pages.press("Fire now")
    await pages.confirm()
    await pages.until_shown("moved")
    await pages.service.until_sealed(int(time.time()) + 2)
    await pages.open("timer/soon")
    await pages.until_shown("fired; was for")
    await pages.press("Ask again")
    await pages.confirm()
    await pages.until_shown("pending; fires")


@pytest.mark.parametrize("action", ["Take back", "Move", "Fire now", "Ask again"])
async def test_no_action_meets_a_timer_that_was_not_shown(pages: Pages, action: str) -> None:
    service, timer_id = pages.service, f"stale {action}"
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as client:
        await client.after(3_600, topic=service.callbacks, key="me", value=b"mine", timer_id=timer_id)
        if action == "Ask again":
            await client.cancel(timer_id)
        await pages.open(f"timer/{timer_id}")
        await pages.until_shown("cancelled; was for" if action == "Ask again" else "pending; fires")
        other = await client.after(2_400, topic=service.callbacks, key="you", value=b"else's", timer_id=timer_id)
        await pages.press(action)
        await pages.confirm()
        # It says what it has met, and shows that.
        await pages.until_shown(f"request {other.request}")
        await pages.until_shown("nothing has changed")
        await pages.until_shown("else's")
        still = await client.get(timer_id)
    assert still
    assert (still.request, still.due_ms, still.value) == (other.request, other.due_ms, b"else's")


@pytest.mark.parametrize("timer_id", ["shell-1", "-x", "it's $HOME; `id`"])
async def test_the_command_that_a_dialog_shows_does_what_its_button_does(pages: Pages, timer_id: str) -> None:
    service, path = pages.service, f"timer/{quote(timer_id, safe='')}"
    topic = f"{service.prefix}shell-{len(timer_id)}"
    await service.create_topic(topic)
    content = {"key": b"\xff\0", "value": b"\0\xff", "token": "t", "headers": {"h": b"\xff"}, "partition_key": b"\xfe"}
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as client:
        await client.after(3_600, topic=topic, timer_id=timer_id, **content)
        asked = await client.get(timer_id)
        assert asked

        async def by_command(action: str, typed: str = "") -> None:
            """Run the command of a dialog, as a person pastes it into a shell, and leave the dialog."""
            await pages.open(path)
            await pages.press(action)
            await pages.until(lambda: pages.browser.find_element(By.ID, "ask").get_attribute("open"))
            if typed:
                field = pages.browser.find_element(By.ID, "ask-input")
                field.clear()
                field.send_keys(typed)
            command = pages.browser.find_element(By.ID, "ask-cli").text
            pages.browser.find_element(By.XPATH, "//button[@value='no']").click()
            where = {"KAFKA_TIMERS_BOOTSTRAP": service.bootstrap, "KAFKA_TIMERS_TOPIC_PREFIX": service.prefix}
            folder = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            process = await asyncio.create_subprocess_shell(
                command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=os.environ | where | folder
            )
            said, _ = await process.communicate()
            assert process.returncode == 0, (command, said.decode())

        due = int(time.time()) + 7_200
        await by_command("Move", str(due))
        moved = await client.get(timer_id)
        assert moved
        assert moved == dataclasses.replace(asked, due_ms=due * 1000, request=moved.request)
        await by_command("Take back")
        assert await client.get(timer_id) is None
        await by_command("Ask again")
        await service.until_sealed(int(time.time()) + 6)
        await pages.open(path)
        await pages.until_shown("fired; was for")
        await client.after(3_600, topic=topic, timer_id=timer_id, **content)
        await by_command("Fire now")
    fired = await service.read_all(topic, 2)
    told = {(each.key, each.value, each.partition, dict(each.headers)["h"]) for each in fired}
    assert len(fired) == 2
    assert told == {(b"\xff\0", b"\0\xff", hash_of(b"\xfe") % service.partitions, b"\xff")}


async def test_enter_in_a_dialog_does_what_was_typed(pages: Pages, tmp_path: Path) -> None:
    service, browser, due = pages.service, pages.browser, int(time.time()) + 3_600
    await service.request(due, Future(callBackTopic=service.callbacks, callBack=b"v", timerId="enter"))
    tokens = tmp_path / "tokens"
    tokens.write_text("operate operate-0123456789abcdef a newcomer\n")
    console = await service.start("console", "--token-file", str(tokens), "--group", f"{service.prefix}workers")
    try:
        await console.until("/livez", lambda status, _: status == 200)
        guarded = Pages(service, console, browser, pages.worker)
        await guarded.open("timer/enter")
        field = await guarded.until(lambda: shown_field(browser))
        # Nobody reads a token over a shoulder.
        assert field.get_attribute("type") == "password"
        field.send_keys("operate-0123456789abcdef", Keys.ENTER)
        await guarded.until_shown("pending; fires")
        await guarded.press("Move")
        field = await guarded.until(lambda: shown_field(browser))
        assert field.get_attribute("type") == "text"
        field.clear()
        field.send_keys(str(due + 60), Keys.ENTER)
        await guarded.until_shown("moved")
        # Without a field it leaves all as it is.
        await guarded.press("Take back")
        browser.switch_to.active_element.send_keys(Keys.ENTER)
        await guarded.until(lambda: not browser.find_element(By.ID, "ask").get_attribute("open"))
        await guarded.open("timer/enter")
        await guarded.until_shown("pending; fires")
    finally:
        await console.child.stop(LIMIT_S)


def shown_field(browser: webdriver.Chrome) -> WebElement | None:
    """Return the field of the dialog, if it is shown."""
    field = browser.find_element(By.ID, "ask-input")
    return field if field.is_displayed() else None


async def test_the_command_of_a_trial_asks_for_what_its_form_asks_for(pages: Pages) -> None:
    await pages.open("try")
    await pages.fill("key", "it's")
    await pages.until_shown("--key 'it'\"'\"'s'")
    pages.browser.find_element(By.NAME, "key").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    await pages.until_shown("--topic callbacks --value 'pay now'")
    # Where the form asks for no key, an option would ask for an empty one.
    assert "--key" not in pages.main


async def test_a_timer_page_shows_what_stands_and_what_changed_nothing(pages: Pages) -> None:
    service, due = pages.service, int(time.time()) + 600
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as client:
        first = await client.create("stands", due, topic=service.callbacks, value=b"first")
        again = await client.create("stands", due + 300, topic=service.callbacks, value=b"second")
    await pages.open("timer/stands")
    await pages.until_shown("pending; fires")
    await pages.until_shown(f"request {again.asked}")
    await pages.until_shown("ignored; its condition did not hold, and it changed nothing")
    assert (first.asked in pages.main, "first" in pages.main, "second" in pages.main) == (True, True, False)
    assert [each.text for each in pages.browser.find_elements(By.CSS_SELECTOR, "#main .buttons button")][:3] == [
        "Take back",
        "Move",
        "Fire now",
    ]


async def test_records_of_any_bytes_are_shown_as_they_are(pages: Pages) -> None:
    service, chance, ids = pages.service, random.Random(7), set[str]()
    soon, later = b"%d" % time.time(), b"%d" % (time.time() + 7_200)
    for _ in range(40):
        value = some_value(chance)
        await service.request(chance.choice([soon, later, b"", b"\xff", b"9" * 5_000]), value, chance.randrange(4))
        with suppress(WireError):
            ids.add(future_from(value or b"").timerId)
    garbage = await service.request(later, b"\xff\xfe", 0)
    record = Callback(topic=service.callbacks, key=b"\xff\0", partitionKey=b"\xfe")
    headers = [Header(key=EVIL, value=b"\xfd"), Header(key="timer-id", value=b"x"), Header()]
    await service.request(later, Future(callBackRecord=record, timerId="binary", headers=headers))
    await service.until_sealed(int(time.time()) + 1)
    pages.complaints()
    await pages.open("timer/binary")
    await pages.until_shown("pending; fires")
    for told in ("ff 00", "by fe", "None: a tombstone.", EVIL, "fd"):
        assert told in pages.main
    await pages.open(f"timers?q={garbage}")
    await pages.until_shown("It is no request: bytes are not a Future")
    await pages.until_shown("ff fe")
    await pages.open(f"timers?q={service.callbacks}")
    await pages.until_shown("ff 00")
    for timer_id in sorted(name for name in ids if 0 < len(name) < 1_000):
        await pages.open(f"timer/{quote(timer_id, safe='')}")
        await pages.until(lambda: "Its life" in pages.main or "no timer is known" in pages.main)
    screens = {"refused": "value-not-a-future", "topics": service.callbacks, "timers": "that fire next"}
    for screen, told in screens.items():
        await pages.open(screen)
        await pages.until_shown(told)
        await pages.until(lambda: "Looking …" not in pages.main)
    assert [each for each in pages.complaints() if "status of 404" not in each["message"]] == []


async def test_a_refused_request_is_sent_again_once(pages: Pages) -> None:
    topic = pages.service.prefix + "missing"
    await pages.service.request(int(time.time()), Future(callBackTopic=topic, callBack=b"v", timerId="refused"))
    await pages.service.until_sealed(int(time.time()) + 1)
    await pages.open(f"refused?topic={topic}")
    await pages.until_shown("topic-unknown")
    await pages.picture("refused")
    for said in ("was sent again, as request", "or its id has a later timer"):
        await pages.press("Send again")
        await pages.confirm()
        await pages.until_shown(said)


async def test_a_refused_schedule_is_shown_as_one_with_its_cause(pages: Pages) -> None:
    service = pages.service
    bad = Schedule(cron=Cron(expression="61 * * * *"), callback=Future(callBackTopic="nightly-runs", callBack=b"v"))
    planner = await service.start("planner")
    try:
        await service.producer.send_and_wait(service.topics.schedules, bad.SerializeToString(), key=b"nightly")
        await pages.console.until("/v1/rejected?reason=schedule-invalid", lambda _, body: "nightly" in body)
        await pages.open("refused?reason=schedule-invalid")
        await pages.until_shown("schedule nightly: 61 * * * * in UTC, to nightly-runs")
        assert "schedule-invalid: cron.expression: '61 " in pages.main
        assert not pages.browser.find_elements(By.XPATH, "//button[normalize-space()='Send again']")
    finally:
        await planner.child.stop(LIMIT_S)


async def test_while_the_worker_is_away_no_page_says_that_no_timer_waits(pages: Pages) -> None:
    pages.worker.child.pause()
    try:
        for screen in ("timers?q=x", "ahead", "topics"):
            await pages.open(screen)
            await pages.until_shown("Unknown: partition 0")
            shown = pages.main
            assert not re.search(r"^None\.$|Nothing waits|all 0 timers|^0 timers wait", shown, re.MULTILINE), shown
    finally:
        pages.worker.child.resume()
        await pages.console.until("/v1/timers", lambda _, body: '"unknown":[]' in body)


async def test_the_page_shows_the_problems_of_the_service(pages: Pages) -> None:
    await pages.open("partitions")
    await pages.until_shown("sealed up to")
    await pages.until(lambda: len(pages.browser.find_elements(By.CSS_SELECTOR, "tbody tr")) == 4)
    await pages.picture("partitions")
    await pages.open("timer/nobody")
    await pages.until_shown("no timer is known as 'nobody'")


async def test_ahead_shows_when_most_fire_and_leads_there(pages: Pages) -> None:
    service, begin = pages.service, int(time.time()) // 3_600 * 3_600 + 7_200
    topic = service.prefix + "map"
    await service.create_topic(topic)
    # More than other tests may have left in a minute.
    due = {f"most-{number}": begin for number in range(200)} | {"less-1": begin + 60, "less-2": begin + 3_600}
    for name, second in due.items():
        await service.request(second, Future(callBackTopic=topic, callBack=b"v", timerId=name))
    await service.until_sealed(int(time.time()))
    await pages.open("ahead")
    await pages.until_shown("minutes of the day to come, an hour in each row")
    cells = pages.browser.find_elements(By.CSS_SELECTOR, ".heat td[data-second]")
    told = {int(cell.get_attribute("data-second") or 0): cell for cell in cells}
    assert {begin, begin + 60, begin + 3_600} <= set(told)
    assert (told[begin].get_attribute("title") or "").endswith("UTC: 200")
    most, less = (told[second].get_attribute("class") or "" for second in (begin, begin + 60))
    assert "shade5" == most > less > "shade0"
    await pages.picture("ahead")
    told[begin].click()
    await pages.until_shown("most-7")
    assert "less-" not in pages.main
    await pages.open("ahead?unit=second")
    await pages.until_shown("of the hour to come, a minute in each row")


async def test_a_request_is_found_by_its_place_and_its_topic_is_shown(pages: Pages) -> None:
    service, topic = pages.service, pages.service.prefix + "placed"
    await service.create_topic(topic)
    due = int(time.time()) + 1_800
    place = await service.request(due, Future(callBackTopic=topic, callBack=b'{"without": "an id"}'))
    await service.request(due, Future(callBackTopic=service.prefix + "nowhere", timerId="nowhere"))
    await service.until_sealed(int(time.time()))
    await pages.open("timers")
    await pages.fill("q", place)
    pages.browser.find_element(By.NAME, "q").send_keys(Keys.ENTER)
    await pages.until_shown("UTC: it waits")
    assert '"without": "an id"' in pages.main
    await pages.open("topics")
    await pages.until_shown(topic)
    lines = {line.split(" ")[0]: line for line in pages.main.splitlines()}
    assert lines[topic].startswith(f"{topic} 4 1 ")
    assert lines[service.prefix + "nowhere"].endswith("does not exist, or this console may not look at it")
    await pages.picture("topics")


@pytest.mark.parametrize("width", [1100, 360])
async def test_no_screen_complains_overflows_or_asks_another_host(pages: Pages, width: int) -> None:
    browser = pages.browser
    pages.complaints()
    browser.get_log("performance")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    for screen in SCREENS:
        await pages.open(screen)
        await pages.until(lambda: browser.find_element(By.CSS_SELECTOR, "main h2"))
        await asyncio.sleep(0.3)
        await pages.picture(f"{screen}-{width}")
        assert width == 360 or serious(browser) == [], screen
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, screen
        assert browser.find_elements(By.CSS_SELECTOR, "nav a[aria-current=page]"), screen
    assert pages.complaints() == []
    asked = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    urls = {part.split('"')[0] for message in asked for part in message.split('"url":"')[1:]}
    assert urls
    assert {url for url in urls if not url.startswith((pages.url, "about:", "data:"))} == set()
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.chaos
async def test_among_a_million_timers_one_is_found_and_taken_back(pages: Pages) -> None:
    """A hundred thousand of them wait within the day to come."""
    service, begin, count = pages.service, int(time.time()) + 300, 1_000_000
    topic = service.prefix + "many"
    await service.create_topic(topic)
    await service.request_many((begin + number * 864 // 1_000, many(number, topic)) for number in range(count))
    await pages.console.until("/v1/status", lambda _, body: waiting_in(body) >= count, 600)
    await pages.open("timers")
    await pages.fill("q", "many-077777")
    pages.browser.find_element(By.NAME, "q").send_keys(Keys.ENTER)
    await pages.until_shown("many-0777779")
    assert "many-0777769" not in pages.main
    pages.browser.find_element(By.LINK_TEXT, "many-0777777").click()
    await pages.until_shown("pending; fires")
    # The history of its id is read from a log of 250,000 records.
    await pages.until_shown("asked for at")
    await pages.press("Take back")
    await pages.confirm()
    await pages.until_shown("cancelled; was for")
    await service.until_sealed(int(time.time()))
    await pages.open("timers?q=many-077777")
    await pages.until_shown("many-0777779")
    assert "many-0777777" not in pages.main
    await pages.open("timers?q=nobody")
    # None has this beginning of an id, this key or this topic, as far as there was time to look.
    await pages.until_shown("None.", 3)
    for unit in ("second", "minute"):
        await pages.open(f"ahead?unit={unit}")
        await pages.until_shown("timers wait in")
        await pages.picture(f"ahead-million-{unit}")


def many(number: int, topic: str) -> Future:
    """Return the request of one of many timers."""
    return Future(callBackTopic=topic, callBackKey=f"k-{number}", callBack=b"v" * 100, timerId=f"many-{number:07}")


def waiting_in(status: str) -> int:
    """Return how many timers wait, by the *status* of the service."""
    return sum(row["pending"] or 0 for row in json.loads(status).get("partitions", ()))


async def test_it_can_be_used_by_keyboard_alone(pages: Pages) -> None:
    await pages.open("now")
    await pages.until_shown("Now")
    body = pages.browser.find_element(By.TAG_NAME, "body")
    for _ in range(4):
        body.send_keys(Keys.TAB)
        body = pages.browser.switch_to.active_element
    assert body.text == "Timers"
    body.send_keys(Keys.ENTER)
    await pages.until_shown("that fire next")
    assert pages.browser.switch_to.active_element.get_attribute("id") == "main"
