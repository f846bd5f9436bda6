"""The pages as a reader meets them: opened from a disk, at two widths, clicked; hostile rows do nothing."""

import json
import re
import shutil
from importlib.resources import files
from itertools import pairwise

import pytest
from report_world import HOSTILE

from lpt_data.report.document import LARGEST
from lpt_data.report.find import story_of
from lpt_data.report.write import rendered
from manifests.errors import BadInputError

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WIDTHS = (400, 1280)
PAGES = ("dedup", "clean", "decontaminate", "split", "mix", "trees", "bad", "carried")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """Every page on disk; one of them of a manifest that came from elsewhere, with hostile text wherever text fits."""
    folder = tmp_path_factory.mktemp("pages")
    carried = folder / "elsewhere" / "manifest.json"
    carried.parent.mkdir()
    carried.write_text(json.dumps(poisoned(world.bad.body)))
    for name in PAGES:
        story = story_of(None, str(carried)) if name == "carried" else world.story(name)
        (folder / f"{name}.html").write_bytes(rendered(story, "html"))
    return folder


def poisoned(body):
    """A manifest with the same shape whose free texts are hostile; line breaks too."""
    found = json.loads(json.dumps(body))
    evil = f"{HOSTILE}\nrm -rf /"
    found["checks"] = [{**check, "detail": evil, "next": evil, "id": evil + check["id"]} for check in found["checks"]]
    found["not_checked"] = [evil]
    found["policy"] |= {"name": evil, "text": evil}
    found["env"] = {evil: evil, "lpt": evil, "packages": {evil: evil}}
    found["sources"] = [{**source, "path": evil, "split": evil} for source in found["sources"]]
    found["funnel"] = [{**flow, "stage": evil, "removed": {evil: 1}} for flow in found["funnel"]]
    found["tokenizer"] = {"name": evil, "max_length": evil}
    found["benchmarks"] = [{"name": evil, "items": 1, "files": []}]
    found["created"] = evil
    return found


class Visit:
    """A page in a browser that lets nothing but the file itself load, and everything that went wrong on it."""

    def __init__(self, browser, path, width, scheme="light", **options):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.requests, self.faults = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("popup", lambda page: self.faults.append("a window"))
        self.url = path.as_uri()
        self.page.route("**/*", lambda route: route.continue_() if route.request.url == self.url else route.abort())
        self.page.goto(self.url)

    def __enter__(self):
        return self.page

    def __exit__(self, *failure):
        if failure[0] is None:
            assert self.requests == [self.url]
            assert self.faults == []
            assert self.page.evaluate("window.__pwned") is None
        self.context.close()


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_fits_and_runs_nothing_of_the_data(browser, folder, name, width):
    with Visit(browser, folder / f"{name}.html", width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("h1").count() == 1
        for box in page.locator("main > section").all():
            assert box.bounding_box()["x"] + box.bounding_box()["width"] <= width
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("img, iframe, object, embed, link, form, base, svg script, main style").count() == 0
        assert page.locator("script").count() == 1
        assert page.evaluate("document.querySelectorAll('main *').length") > 20  # nothing closed it early
        assert page.evaluate(
            "[...document.querySelectorAll('*')].every(e => [...e.attributes].every(a => !a.name.startsWith('on')))"
        )


@needs_chromium
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("dedup", ("U+202Eevil", "U+001B[31m", "U+0000nul")),
        ("bad", ("<script>window.__pwned=1;alert(1)</script>", "</details></main>")),
        ("carried", ("<script>window.__pwned=1;alert(1)</script>", "U+202Eevil", "U+001B[31m", "U+000Arm -rf /")),
    ],
)
def test_hostile_text_can_be_read(browser, folder, name, shown):
    with Visit(browser, folder / f"{name}.html", 1280) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        said = page.locator("main").inner_text()
        for part in shown:
            assert part in said
        assert not set(said) & {"\x00", "\x1b", "\u202e", "\u200b", "\u2066"}


@needs_chromium
def test_the_policy_is_in_force(browser, folder):
    """Even a script that found its way into a page would not run, and nothing could be loaded."""
    page = Visit(browser, folder / "dedup.html", 1280).page
    page.evaluate("() => { const s = document.createElement('script'); s.textContent = 'window.__pwned = 1';"
                  "document.body.append(s); const i = document.createElement('img'); i.src = 'https://a.example/';"
                  "document.body.append(i); document.body.setAttribute('onclick', 'window.__pwned = 1') }")  # fmt: skip
    page.mouse.click(5, 5)
    page.wait_for_timeout(100)
    assert page.evaluate("window.__pwned") is None
    page.context.close()


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_filters_search_and_expanding(browser, folder, width):
    with Visit(browser, folder / "dedup.html", width) as page:
        rows = page.locator("#pairs > details:visible")
        assert rows.count() == 8
        page.get_by_role("button", name=re.compile("^near_duplicate")).click()
        assert rows.count() == 5
        assert page.locator("[aria-pressed=true]").inner_text().startswith("near_duplicate")
        assert page.get_by_role("status").inner_text() == "5 of 8 shown"
        page.get_by_label("Search in the rows").fill("changed1")
        assert rows.count() == 1
        page.get_by_label("Search in the rows").fill("")
        page.get_by_role("button", name=re.compile("^all")).click()
        closed = page.locator("#pairs > details:not([open])").first
        closed.locator("summary").click()
        assert rows.nth(2).locator("pre").first.is_visible()
        page.get_by_role("button", name="Expand all").click()
        assert page.locator("#pairs > details[open]").count() == 8
        assert page.locator("mark.differs").count() > 4


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_sorting_by_a_column_both_ways(browser, folder, width):
    with Visit(browser, folder / "bad.html", width) as page:
        table = page.locator("#check-rows table")

        def values():
            return [float(v) for v in table.locator("tbody tr td:nth-child(3)").evaluate_all(
                "cells => cells.map(c => c.dataset.sort).filter(Boolean)")]  # fmt: skip

        before = table.locator("tbody tr").first.inner_text()
        assert "failed" in before
        table.get_by_role("button", name="value").click()
        assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
        assert all(a <= b for a, b in pairwise(values()))
        table.get_by_role("button", name="value").click()
        assert all(a >= b for a, b in pairwise(values()))
        table.get_by_role("button", name="status").click()
        assert table.locator("tbody tr").first.inner_text() == before


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_a_command_is_copied_as_it_is_shown(browser, folder, width):
    visit = Visit(browser, folder / "bad.html", width, permissions=["clipboard-read", "clipboard-write"])
    with visit as page:
        command = page.locator("#verdict .command").first
        command.get_by_role("button").click()
        sync_api.expect(command.locator("button")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == command.locator("code").inner_text()
        assert command.locator("code").inner_text().startswith("lpt data ")


@needs_chromium
def test_without_scripts_everything_can_be_read(browser, folder):
    with Visit(browser, folder / "dedup.html", 400, java_script_enabled=False) as page:
        assert page.locator(".toolbar:visible, .copy:visible").count() == 0
        assert page.locator("#pairs > details").count() == 8
        page.locator("#pairs > details").nth(3).locator("summary").click()
        assert page.locator("#pairs > details").nth(3).locator("pre").first.is_visible()


@needs_chromium
def test_with_the_keyboard_alone(browser, folder):
    with Visit(browser, folder / "dedup.html", 1280) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the content"
        button = page.get_by_role("button", name=re.compile("^exact_duplicate"))
        button.focus()
        page.keyboard.press("Enter")
        assert page.locator("#pairs > details:visible").count() == 3
        page.locator("#pairs > details:visible summary").last.focus()
        page.keyboard.press("Enter")
        assert page.locator("#pairs > details:visible").last.get_attribute("open") is not None


@needs_chromium
@pytest.mark.parametrize("name", PAGES)
def test_everything_has_a_name(browser, folder, name):
    """Controls have labels, drawings have words, sections have titles, headings leave out no level, ids are unique."""
    with Visit(browser, folder / f"{name}.html", 1280) as page:
        assert page.evaluate("document.documentElement.lang") == "en"
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('button, input, svg, table, section, nav')].filter(e =>
                !(e.getAttribute('aria-label') || e.getAttribute('aria-hidden') === 'true' || e.textContent.trim()
                  || (e.labels && e.labels.length))).map(e => e.outerHTML.slice(0, 80))"""
        )
        assert unnamed == []
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        named = page.evaluate(
            "[...document.querySelectorAll('[aria-labelledby]')].map(e => e.getAttribute('aria-labelledby'))"
        )
        links = page.evaluate("[...document.querySelectorAll('a')].map(e => e.getAttribute('href').slice(1))")
        assert set(named) | set(links) <= set(ids)
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(e => Number(e.tagName[1]))")
        assert levels[0] == 1
        # The names of the two sides of a pair are h4 beneath its section: the pair itself is a summary, not a heading.
        assert all(b - a <= 1 for a, b in pairwise(level for level in levels if level < 4))


@needs_chromium
def test_paper_is_white_in_the_dark_too_and_shows_what_was_closed(browser, folder):
    with Visit(browser, folder / "dedup.html", 900, scheme="dark") as page:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.command code')).backgroundColor")
            == "rgb(236, 238, 241)"
        )
        assert page.locator("nav:visible, .toolbar:visible, .copy:visible").count() == 0
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("#pairs > details:not([open])").count() == 0


def test_pages_are_small(folder):
    for name in PAGES:
        assert (folder / f"{name}.html").stat().st_size < LARGEST / 8


# -- colours, by the formula of WCAG 2.2


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes():
    css = files("lpt_data.report").joinpath("page.css").read_text("utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    return {
        name: dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", part))
        for name, part in (("light", light), ("dark", dark))
    }


def test_the_formula_of_contrast():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_drawings_stand_out(scheme):
    colours = palettes()[scheme]
    assert set(colours) == set(palettes()["light"])
    for ground in ("card", "paper"):
        for name in ("ink", "dim", "accent", "pass", "warn", "fail", "skipped"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for ground in ("differs", "matches", "chip", "band"):
        assert contrast(colours["ink"], colours[ground]) >= 7, ground
    assert contrast(colours["dim"], colours["band"]) >= 4.5
    for name in ("kept", "gone-1", "gone-2", "gone-3", "gone-4", "gone-5", "aside"):
        assert contrast(colours[name], colours["card"]) >= 3, name


# Matrices of Machado, Oliveira and Fernandes 2009 for complete dichromacy, over linear RGB.
BLINDNESS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(colour, matrix):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [min(1.0, max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in matrix]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_kept_and_removed_differ_for_every_eye(scheme, blindness):
    colours = palettes()[scheme]
    kept = seen(colours["kept"], BLINDNESS[blindness])
    for name in ("gone-1", "gone-2", "gone-3"):
        gone = seen(colours[name], BLINDNESS[blindness])
        assert max(abs(a - b) for a, b in zip(kept, gone, strict=True)) > 0.15, name


# -- manifests from elsewhere


def carried(folder, body):
    folder.mkdir()
    path = folder / "manifest.json"
    path.write_text(json.dumps(body))
    return str(path)


def test_a_page_of_enormous_texts_is_no_larger_and_says_what_it_leaves_out(world, tmp_path):
    """Two hundred checks with a megabyte each: the verdict stays, the section that would not fit does not."""
    body = json.loads(json.dumps(world.bad.body))
    check = body["checks"][0]
    body["checks"] = [{**check, "id": f"c{n}", "detail": "\u202e" * 200_000, "next": "x" * 200_000} for n in range(300)]
    body["not_checked"] = ["\0" * 100_000] * 100
    body["policy"]["text"] = "y" * 1_000_000
    page = rendered(story_of(None, carried(tmp_path / "a", body)), "html")
    assert len(page) <= LARGEST
    assert b"and is left out: a page has at most 2.0 MB" in page
    assert b"Rejected" in page


@pytest.mark.parametrize(
    "change",
    [
        {"policy": None},
        {"policy": {"name": 1, "digest": "x"}},
        {"sources": [{"path": 1}]},
        {"sources": "x"},
        {"funnel": [{"stage": "s", "removed": {"a": "b"}}]},
        {"funnel": [{"rows_in": 1}]},
        {"stages": [7]},
        {"not_checked": [{}]},
        {"benchmarks": [{"name": "a"}]},
        {"env": []},
        {"created": 3},
    ],
    ids=str,
)
def test_a_manifest_of_another_shape_is_refused_in_three_parts(world, tmp_path, change):
    with pytest.raises(BadInputError, match="damaged") as refused:
        story_of(None, carried(tmp_path / "a", {**world.bad.body, **change}))
    assert next(iter(change)) in str(refused.value.seen)


@pytest.mark.parametrize(
    "change",
    [
        *(
            {name: None}
            for name in ("sources", "funnel", "stages", "not_checked", "benchmarks", "env", "disjoint", "created")
        ),
        {"stages": ["../../../etc/passwd", "0" * 64]},
        {"supersedes": "../x"},
        {"checks": []},
        {"tokenizer": {}},
    ],
    ids=str,
)
def test_what_a_manifest_may_leave_out(world, tmp_path, change):
    path = carried(tmp_path / "a", {**world.bad.body, **change})
    for catalog in (None, world.catalog):
        story = story_of(catalog, path)
        for name in ("html", "md", "json", "croissant", "in-toto"):
            assert rendered(story, name)
