"""The console's screen of schedules in a real browser, by keyboard alone, on a real planner, worker and Kafka."""

import asyncio
from zoneinfo import ZoneInfo

import pytest
import test_console_pages
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from test_console_pages import EVIL, Pages, serious

from kafka_timers import Cron, Every, TimerClient
from kafka_timers.client.recurring import Recurring

browser, pages = test_console_pages.browser, test_console_pages.pages
HERE = "America/New_York"


def focused(pages: Pages) -> WebElement:
    """Return what a key that is pressed goes to."""
    return pages.browser.switch_to.active_element


async def go_to(pages: Pages, name: str) -> WebElement:
    """Press Tab until the focus is on the field or the button of this *name*, and return it."""

    def is_there() -> bool:
        at = focused(pages)
        return name in (at.get_attribute("name"), at.text)

    named = f"//*[@name='{name}' or normalize-space()='{name}']"
    await pages.until(lambda: pages.browser.find_elements(By.XPATH, named))
    for _ in range(60):
        if is_there():
            return focused(pages)
        focused(pages).send_keys(Keys.TAB)
    raise AssertionError(f"no Tab leads to {name!r} in {pages.main!r}")


async def write(pages: Pages, name: str, text: str) -> None:
    """Go to a field and type *text* in place of what it has."""
    field = await go_to(pages, name)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text or Keys.DELETE)


async def act(pages: Pages, name: str, *keys: str) -> None:
    """Press a button by Enter, and *keys* and Enter in the dialog that asks."""
    (await go_to(pages, name)).send_keys(Keys.ENTER)
    await pages.until(lambda: pages.browser.find_element(By.ID, "ask").get_attribute("open"))
    if not keys:
        # The button that changes nothing has the focus.
        focused(pages).send_keys(Keys.SHIFT + Keys.TAB)
    for each in (*keys, Keys.ENTER):
        focused(pages).send_keys(each)


def dialog(pages: Pages) -> str:
    """Return the text of the dialog that puts or changes a schedule; empty without one."""
    found = pages.browser.find_elements(By.CSS_SELECTOR, "dialog.wider")
    return found[0].text if found else ""


async def known(timers: TimerClient, name: str) -> Recurring:
    """Return a schedule that there is."""
    found = await timers.schedules.get(name)
    assert found is not None
    return found


async def test_a_schedule_is_put_skipped_paused_resumed_run_changed_and_deleted_by_keyboard(pages: Pages) -> None:
    topic = pages.service.callbacks
    pages.browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": HERE})
    async with TimerClient(pages.service.bootstrap, topic_prefix=pages.service.prefix) as timers:
        await pages.open("schedules")
        await pages.until_shown("There is no schedule yet.")
        assert "kafka-timers schedule put report" in pages.main
        (await go_to(pages, "Put a schedule")).send_keys(Keys.ENTER)
        await write(pages, "id", "report")
        await write(pages, "times", "30 9 * * MON-FRI")
        await write(pages, "zone", "Europe/Pariss")
        await write(pages, "topic", topic)
        await pages.until(lambda: "cron.zone: 'Europe/Pariss' is no time zone" in dialog(pages))
        await write(pages, "zone", "Europe/Paris")
        await write(pages, "value", EVIL)
        # Its runs are shown before it is put, each by both clocks.
        await pages.until(lambda: len(pages.browser.find_elements(By.CSS_SELECTOR, "dialog .plan tbody tr")) == 10)
        shown = pages.browser.find_element(By.CSS_SELECTOR, "dialog .plan").text
        assert await timers.schedules.get("report") is None
        assert f"fires, by yours ({HERE})" in shown
        options = f"--cron '30 9 * * MON-FRI' --zone Europe/Paris --topic {topic} --value "
        assert f"kafka-timers schedule put report {options}" in dialog(pages)
        await pages.picture("schedule-put")
        (await go_to(pages, "note")).send_keys("daily", Keys.ENTER)
        await pages.until_shown("Next runs")
        put = await known(timers, "report")
        assert (put.times, put.value, put.note) == ("30 9 * * MON-FRI in Europe/Paris", EVIL.encode(), "daily")
        for run in put.next(10):
            here = run.due.astimezone(ZoneInfo(HERE))
            assert f"{run.instant:%Y-%m-%d %H:%M:%S} {run.instant.tzname()} {here:%Y-%m-%d %H:%M:%S}" in shown
        first, second = put.next(2)
        await pages.picture("schedule")

        await act(pages, "Skip the next")
        await pages.until_shown(f"The run of {first.instant:%Y-%m-%d %H:%M:%S} {first.instant.tzname()} is left out.")
        assert (await known(timers, "report")).next(1) == [second]
        await act(pages, "Pause", "the receiver moves")
        await pages.until_shown("paused: the receiver moves")
        paused = await known(timers, "report")
        assert (paused.paused, paused.hold.note) == (True, "the receiver moves")
        await act(pages, "Run now")
        await pages.until_shown("A run was asked for: report@")
        [callback] = await pages.service.read_all(topic, 1)
        assert callback.value == EVIL.encode()
        await act(pages, "Resume")
        await pages.until_shown("It runs again.")
        assert not (await known(timers, "report")).paused
        await pages.until_shown("ms late")

        (await go_to(pages, "Change")).send_keys(Keys.ENTER)
        await write(pages, "times", "0 7 * * *")
        (await go_to(pages, "note")).send_keys(Keys.ENTER)
        await pages.until_shown("It was changed.")
        changed = await known(timers, "report")
        assert (changed.times, changed.value, changed.note) == ("0 7 * * * in Europe/Paris", EVIL.encode(), "daily")
        await pages.open("schedules")
        await pages.until_shown("ms late")
        assert "0 7 * * * in Europe/Paris" in pages.main
        await pages.picture("schedules")
        (await go_to(pages, "report")).send_keys(Keys.ENTER)
        await act(pages, "Delete")
        await pages.until_shown("report was deleted.")
        assert await timers.schedules.get("report") is None
    assert pages.browser.title == "kafka-timers"


async def test_an_action_that_meets_a_change_does_nothing_and_says_what_it_met(pages: Pages) -> None:
    async with TimerClient(pages.service.bootstrap, topic_prefix=pages.service.prefix) as timers:
        await timers.schedules.put("met", Every(3_600), topic=pages.service.callbacks)
        await pages.open("schedules/met")
        await pages.until_shown("every 3600 s; next")
        await timers.schedules.change("met", Every(7_200))
        await act(pages, "Delete")
        await pages.until_shown("nothing has changed: you have seen another one, and 'met' runs every 7200 s")
        assert (await known(timers, "met")).times == "every 7200 s"
        (await go_to(pages, "Look again")).send_keys(Keys.ENTER)
        await pages.until_shown("every 7200 s; next")
        # What another one has meanwhile put under a name is not replaced.
        await pages.open("schedules")
        (await go_to(pages, "Put a schedule")).send_keys(Keys.ENTER)
        await write(pages, "id", "met")
        await write(pages, "times", "0 7 * * *")
        await write(pages, "topic", pages.service.callbacks)
        focused(pages).send_keys(Keys.ENTER)
        await pages.until(lambda: "you have seen none, and 'met' runs every 7200 s" in dialog(pages))
        focused(pages).send_keys(Keys.ESCAPE)
        await pages.until(lambda: not dialog(pages))
        await timers.schedules.delete("met")


async def test_bytes_that_cannot_be_typed_stay_in_a_change(pages: Pages) -> None:
    async with TimerClient(pages.service.bootstrap, topic_prefix=pages.service.prefix) as timers:
        await timers.schedules.put(
            "bytes", Every(60.5, anchor=7), topic=pages.service.callbacks, key=b"\xff", value=None, jitter=3, runs=9
        )
        before = await known(timers, "bytes")
        await pages.open("schedules/bytes")
        (await go_to(pages, "Change")).send_keys(Keys.ENTER)
        await pages.until(lambda: len(pages.browser.find_elements(By.CSS_SELECTOR, "dialog .plan tbody tr")) == 9)
        (await go_to(pages, "note")).send_keys("n", Keys.ENTER)
        await pages.until_shown("It was changed.")
        after = await known(timers, "bytes")
        before.message.note = "n"
        assert after.message == before.message
        await timers.schedules.delete("bytes")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_the_screen_is_legible_at_each_width_and_in_both_schemes(pages: Pages, width: int, scheme: str) -> None:
    driver = pages.browser
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    async with TimerClient(pages.service.bootstrap, topic_prefix=pages.service.prefix) as timers:
        schedules = timers.schedules
        cron = Cron("0 9 * * MON-FRI", zone="America/Argentina/ComodRivadavia")
        await schedules.put("morning-report", cron, topic=pages.service.callbacks, note="for the team")
        await schedules.put("held", Every(900), topic=pages.service.callbacks, paused=True)
        await schedules.pause("held", "incident 42: the receiver moves to another region")
        await schedules.skip("morning-report")
    pages.complaints()
    for screen, has in (("schedules", "paused: incident 42"), ("schedules/morning-report", "Left out")):
        await pages.open(screen)
        await pages.until_shown(has)
        await _judged(pages, f"{screen.replace('/', '-')}-{width}-{scheme}", width)
    (await go_to(pages, "Change")).send_keys(Keys.ENTER)
    await pages.until(lambda: "is left out" in dialog(pages))
    await _judged(pages, f"schedule-change-{width}-{scheme}", width)
    assert pages.complaints() == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


async def _judged(pages: Pages, name: str, width: int) -> None:
    await pages.picture(name)
    assert await asyncio.to_thread(serious, pages.browser) == []
    assert pages.browser.execute_script("return document.documentElement.scrollWidth") <= width
    overflows = "const d = document.querySelector('dialog[open]'); return d ? d.scrollWidth - d.clientWidth : 0"
    assert pages.browser.execute_script(overflows) <= 0
