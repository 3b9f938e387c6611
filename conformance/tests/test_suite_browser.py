"""The page in a real browser, from a file, without a server: what is seen, clicked, typed and copied."""

from __future__ import annotations

import shutil

import pytest
from filed import case, difference, made, of_version_1

from pagebind_conformance.reporting import page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("no-sandbox", "disable-gpu", "disable-quic", "disable-background-networking", "disable-component-update")
OUTSIDE = difference(["1 2 3", ". . ."], ["1 2 9", ". . 7"], outside=2, differing=2)
WORDS = difference(["0 1000", "5 1000"], ["0 1001", "5 1000"], words=["seat", "bad_row"], name="chain", shape=[2, 32])
HIGH = difference([f"{n} 0" for n in range(64)], [f"{n} {int(n == 40)}" for n in range(64)], row=100, shape=[400, 2])
OPEN = difference(None, ["4 2"], call=False, name="freed", shape=[2])
COMMAND = "PAGEBIND_DEVICE=cpu python -m pytest --pyargs pagebind_conformance --backend {}"
ADDRESS = "'pagebind_conformance.suite.read_table::test_wide[a b]'"
ALONE = COMMAND.format("mine").replace("pagebind_conformance", ADDRESS)
STYLES = ("color", "backgroundColor")
LIGHTNESS = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
EVIL = "<b>bold</b><img src=x onerror=alert(1)>"


def failing():
    cases = [
        *(case("read_table", n, features=["fill=sink"]) for n in range(5)),
        case("read_table", 0, "failed", difference=OUTSIDE, reproduce=ALONE, reason="out: wrong\nFailing: x")
        | {"id": "read_table.py::test_wide[a b]", "features": ["fill=sink"]},
        case("read_table", 8, "errored", reason=EVIL, difference=WORDS, reproduce="as told"),
        case("read_table", 9, "failed", difference=HIGH, reproduce="as told"),
        case("alloc", 1, "failed", "extended", difference=OPEN, reproduce="as told"),
        case("alloc", 2, "not-supported", "extended", reason="windowed of alloc", features=["windowed"]),
        case("bind", 1, "skipped", reason="a graph needs mode gpu; this is mode cpu"),
        case("bind", 2, "known-failure", reason="upstream: see issue 12"),
    ]
    one = made(cases)
    one["reproduce"] = COMMAND.format("mine")
    one["backend"]["features"] = ["fill=prefix", "fill=sink"]
    return one


@pytest.fixture(scope="module")
def browser():
    """Start the browser that is installed, through playwright; skip where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser; none of {', '.join(BROWSERS)} is on the path")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=found, args=[f"--{option}" for option in QUIET])
        yield launched
        launched.close()


def hash_of(tab):
    """Return what the page itself has behind its address: the tab's `url` is told of it some time later."""
    return tab.evaluate("location.hash")


@pytest.fixture
def show(browser, tmp_path):
    """Open a page of reports; what the browser complains of, or asks the network for, fails the test."""
    troubles, contexts = [], []

    def opened(reports, address="", scheme="light"):
        path = tmp_path / "page.html"
        path.write_text(page.render(reports, lambda package: "a" * 64), encoding="utf-8")
        contexts.append(browser.new_context(color_scheme=scheme, viewport={"width": 1400, "height": 900}))
        contexts[-1].grant_permissions(["clipboard-read", "clipboard-write"])
        tab = contexts[-1].new_page()
        tab.set_default_timeout(5000)
        tab.on("console", lambda message: troubles.append(message.text))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("dialog", lambda dialog: troubles.append(dialog.message))
        tab.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or troubles.append(asked.url))
        tab.goto(f"{path.as_uri()}{address}")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def tab(show):
    return show([failing(), made(name="fine", digest="b" * 64)])


def texts(tab, selector):
    return [text.strip() for text in tab.locator(selector).all_inner_texts()]


def cell(tab, row, column):
    line = tab.locator("#matrix tbody tr").filter(has=tab.locator(f'th[scope="row"]:text-is("{row}")'))
    return line.locator("td").nth(column)


def test_who_fails_what_is_seen_without_scrolling(tab):
    assert tab.locator("#headline strong").inner_text() == "✗ 1 of 2 runs fails"
    assert texts(tab, "#headline li") == ["mine (cpu) fails 4: read_table 3, alloc 1"]
    assert texts(tab, "#matrix thead .badge") == ["passed", "failed"]
    cells = ["✗ 3 of 8 failed", "✗ 1 of 1 failed", "✗ 1 of 6 failed"]
    assert texts(tab, "#matrix td .failed") == cells
    for place in ("#headline li", "#matrix td button.failed >> nth=0"):
        box = tab.locator(place).bounding_box()
        assert box["y"] + box["height"] < 900


def test_an_older_build_is_marked_with_its_commit(tab):
    assert texts(tab, "#matrix thead .older .mark") == ["older build 0123456789ab"]
    assert "older" in tab.locator("#matrix thead th.older").get_attribute("class")


def test_cells_tell_what_became_of_their_cases(show):
    old = of_version_1(made([case("bind", 1, "skipped")], name="old"))
    old["backend"]["features"] = ["fill=sink"]
    tab = show([failing(), made(name="fine"), old])
    told = {
        ("read_table", 0): "✓ 2",
        ("read_table", 1): "✗ 3 of 8 failed",
        ("bind", 1): "◐ 1 known",
        ("bind", 0): "—",
        ("alloc", 0): "✓ 1",
        ("fill=sink", 1): "✗ 1 of 6 failed",
        ("fill=sink", 0): "not declared",
        ("windowed", 1): "○ not supported",
        ("bind", 2): "\N{EN DASH} skipped",
        ("fill=sink", 2): "declared",
        ("fill=prefix", 1): "declared, no case",
    }
    assert {key: cell(tab, *key).inner_text().strip() for key in told} == told


def test_a_cell_opens_its_cases_and_closes_them_again(tab):
    failed = ["read_table.py::test_wide", "read_table.py::test_9", "alloc.py::test_1", "read_table.py::test_8"]
    assert texts(tab, "#cases h3") == failed
    cell(tab, "bind", 1).locator("button").click()
    assert tab.locator("#cases-title").inner_text() == "Cases: mine (cpu), core: bind"
    assert texts(tab, "#cases h3") == ["bind.py::test_2", "bind.py::test_1"]
    tab.locator("#cases details summary").click()
    assert "needs mode gpu" in tab.locator("#cases details summary").inner_text()
    assert texts(tab, "#cases details .ids div") == ["[False]"]
    assert "run=1" in hash_of(tab)
    cell(tab, "bind", 1).locator("button").click()
    assert tab.locator("#cases-title").inner_text() == "Cases"
    tab.go_back()
    assert tab.locator("#cases-title").inner_text() == "Cases: mine (cpu), core: bind"


def test_statuses_and_text_filter_cases_and_the_matrix(tab):
    tab.click('[data-status="passed"]')
    assert tab.locator('[data-status="passed"]').get_attribute("aria-pressed") == "true"
    assert {text.split(" in ")[0] for text in texts(tab, "#cases .block p")} == {"✓ passed 1"}
    assert cell(tab, "alloc", 1).get_attribute("class") == "dim"
    assert not cell(tab, "alloc", 0).get_attribute("class")
    assert not cell(tab, "bind", 1).is_visible()
    tab.click("#clear")
    tab.keyboard.type("ISSUE 12")
    assert texts(tab, "#cases h3") == ["bind.py::test_2"]
    assert texts(tab, '#matrix tbody th[scope="row"]') == ["bind"]
    tab.fill("#text", "wide a")
    assert texts(tab, "#cases h3") == ["read_table.py::test_wide"]
    assert cell(tab, "read_table", 0).get_attribute("class") == "dim"
    assert not cell(tab, "read_table", 1).get_attribute("class")
    tab.fill("#text", "no such thing")
    assert "Nothing matches" in tab.locator("#matrix").inner_text()
    tab.click("#clear")
    assert not tab.locator("#clear").is_visible()


def test_a_case_shows_expected_and_actual_with_the_differing_cells_marked(tab):
    tab.click('#cases .open:has-text("[a b]")')
    assert tab.locator("#case-title").inner_text().startswith("read_table.py::test_wide[a b]\nmine (cpu), x86_64")
    assert tab.locator(".reason").inner_text() == "out: wrong\nFailing: x"
    assert texts(tab, ".expected td") == ["1", "2", "3", "·", "·", "·"]
    assert texts(tab, ".actual td") == ["1", "2", "9", "·", "·", "7"]
    assert texts(tab, ".expected .due") == ["3", "·"]
    assert texts(tab, ".actual .wrong") == ["9", "7"]
    assert tab.locator(".expected .due >> nth=1").get_attribute("title") == "nothing belongs here"
    assert "2 cells differ; 2 element(s) were written outside" in tab.locator("#case h3 >> nth=0").inner_text()
    body = tab.locator("#case .body").inner_text()
    assert "Input: the call of read_table" in body
    assert "req_rows [2]" in body
    assert "delta (argument)" in body
    assert "torch 2.13.0" in body
    ink, paper = (tab.eval_on_selector(".actual .wrong", f"e => getComputedStyle(e).{what}") for what in STYLES)
    assert ink != paper != tab.eval_on_selector(".actual td:not(.wrong)", "e => getComputedStyle(e).backgroundColor")


@pytest.mark.parametrize("clipboard", [True, False], ids=["clipboard", "selection"])
def test_the_command_that_runs_a_case_again_is_copied(show, clipboard):
    tab = show([failing()])
    tab.evaluate("navigator.clipboard.writeText('what was there')")
    if not clipboard:
        tab.evaluate("navigator.clipboard.writeText = () => Promise.reject(new Error('no')); 0")
    tab.click('#cases .open:has-text("[a b]")')
    assert tab.locator("#case .again code").inner_text() == ALONE
    tab.click("#case .copy")
    tab.wait_for_selector('#case .copy:has-text("Copied")')
    assert tab.evaluate("navigator.clipboard.readText()") == ALONE


def test_rows_that_are_equal_are_left_out_until_asked_for(tab):
    tab.click('#cases .block:has-text("test_9") .open')
    assert texts(tab, ".actual tbody th") == ["", "139", "140", "141", ""]
    assert texts(tab, ".actual .skip td") == ["39 equal rows", "22 equal rows"]
    assert "rows 100 to 163 of 400, columns 0 to 1 of 2" in tab.locator("#case h3 >> nth=0").inner_text()
    tab.click("#case .rows")
    assert len(texts(tab, ".actual tbody th")) == 64


def test_state_blocks_are_told_word_by_word_and_open_cells_without_an_expectation(tab):
    tab.click('#cases .block:has-text("test_8") .open')
    assert texts(tab, "#case .pair >> nth=0 >> thead th") == [
        "",
        *(f"{what}, block {n}" for what in ("expected", "actual") for n in range(2)),
    ]
    assert texts(tab, "#case .pair >> nth=0 >> tbody tr >> nth=1 >> th,td") == [
        "bad_row",
        "1000",
        "1000",
        "1001",
        "1000",
    ]
    assert texts(tab, "#case .wrong") == ["1001"]
    assert tab.locator(".reason").inner_text() == EVIL
    tab.keyboard.press("Escape")
    tab.click('#cases .block:has-text("alloc.py") .open')
    assert "what it has to hold is said in the reason" in tab.locator("#case .pair").inner_text()
    assert texts(tab, "#case .grid td") == ["4", "2"]


def test_the_keyboard_reaches_everything(tab):
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "text"
    tab.keyboard.press("Tab")
    first = tab.evaluate("document.activeElement.textContent")
    tab.keyboard.press("ArrowRight")
    assert (first, tab.evaluate("document.activeElement.textContent")) == ("✓ 2", "✗ 3 of 8 failed")
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.textContent") == "◐ 1 known"
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    assert tab.locator("#cases-title").inner_text() == "Cases: mine (cpu), core: read_table"
    assert tab.evaluate("document.activeElement.textContent") == "✗ 3 of 8 failed"
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "open"
    tab.keyboard.press("Enter")
    assert tab.locator("#case").is_visible()
    titles = [tab.locator("#case-title").inner_text()]
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        tab.keyboard.press(key)
        titles.append(tab.locator("#case-title").inner_text())
    assert titles[0].endswith("1 of 3")
    assert titles[2] == titles[3] != titles[1] == titles[4]
    assert "case=" in hash_of(tab)
    tab.keyboard.press("Escape")
    assert not tab.locator("#case").is_visible()
    tab.wait_for_function("!location.hash.includes('case=')")  # a dialog tells of its end a moment later


def test_an_address_leads_to_its_case(tab, show):
    tab.click('#cases .open:has-text("[a b]")')
    again = show([failing(), made(name="fine", digest="b" * 64)], hash_of(tab))
    assert again.locator("#case-title").inner_text().startswith("read_table.py::test_wide[a b]")
    wrong = show([failing()], "#case=99999&run=7&status=green&row=x&text=%3Cb%3E")
    assert wrong.locator("#case").is_hidden()
    assert wrong.locator("#text").input_value() == "<b>"


def test_markup_in_names_is_shown_as_it_is(show):
    one = failing()
    one["backend"]["name"] = EVIL
    one["cases"][0] |= {"operation": EVIL, "features": [EVIL]}
    one["cases"][5] |= {"id": f"read_table.py::{EVIL}[{EVIL}]"}
    tab = show([one])
    assert EVIL in tab.locator("#headline").inner_text()
    assert tab.locator("#matrix thead th >> nth=0").inner_text() == EVIL
    assert EVIL in texts(tab, '#matrix tbody th[scope="row"]')
    assert f"read_table.py::{EVIL}" in texts(tab, "#cases h3")
    assert tab.locator("main img, dialog img, main th b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_follow_the_system_and_the_button(show, scheme):
    tab = show([failing()], scheme=scheme)
    first = tab.evaluate(LIGHTNESS)
    assert (first > 380) == (scheme == "light")
    tab.click("#theme")
    assert (tab.evaluate(LIGHTNESS) > 380) == (scheme == "dark")
    tab.click("#theme")
    assert tab.evaluate(LIGHTNESS) == first


def test_where_nothing_failed_the_page_says_so(show):
    tab = show([made(), of_version_1(made(name="old"))])
    assert tab.locator("#headline").inner_text() == "✓ Nothing failed in 2 runs"
    assert tab.locator("#cases").inner_text().startswith("Nothing failed. Choose a cell")
    assert show([]).locator("#headline").inner_text() == "No report was given."


def test_runs_tell_their_environment_and_command(tab):
    tab.locator("#runs summary").nth(1).click()
    told = tab.locator("#runs details[open]").inner_text()
    for text in (COMMAND.format("mine"), "4 case(s) failed", "0123456789ab", "torch 2.13.0", "1 need mode gpu"):
        assert text in told
