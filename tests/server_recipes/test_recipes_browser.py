"""The pages in a real browser: without script, with it, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import datetime as dt
import shutil

import pytest
from recipes_site import ByTokens, served

from tandem.recipes.build import rebuild_store
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.store import Store
from tandem.recipes.synthetic import synthetic_models, synthetic_recipes

pytestmark = pytest.mark.browser

TODAY = dt.date(2026, 11, 1)
MAIN = "glm53-flash-2x64-layer-split"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PAGES = [
    "/recipes",
    f"/recipes/{MAIN}?hw=2x64gib",
    "/recipes/-/models",
    f"/recipes/-/compare?id={MAIN}&id=glm53-flash-2x64-tp2",
    "/recipes/-/scatter",
    "/recipes?grain=measurement",
    "/recipes?grain=profile&hw=2x64gib",
    "/recipes?foo=1",
]


def chromium_path() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser():
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site():
    with served(Catalogue(None, today=TODAY, calculator=ByTokens())) as address:
        yield address


@pytest.fixture(scope="module")
def large_site():
    store = Store(None)
    rebuild_store(store, synthetic_recipes(200, 3), synthetic_models(40), (), TODAY.toordinal(), "fixed")
    with served(Catalogue(None, store=store, today=TODAY)) as address:
        yield address


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert [problem for problem in problems if "status of 400" not in problem] == []


def test_drilling_and_undoing(page, site):
    page.goto(site + "/recipes")
    assert page.locator("table.rows tbody tr").count() == 5
    page.locator('[data-facet="cards"] a', has_text="2").first.click()
    assert page.url.endswith("/recipes?cards=2")
    assert page.locator("table.rows tbody tr").count() == 2
    assert page.locator(".tally").inner_text() == "2 of 5"
    chosen = page.locator('[data-facet="cards"] a[aria-current="true"]')
    assert chosen.inner_text().split()[0] == "2"
    page.get_by_role("link", name="Remove Cards: 2").click()
    assert page.url.endswith("/recipes")
    page.go_back()
    assert page.locator("table.rows tbody tr").count() == 2


def test_forms_work_without_script(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site + "/recipes?engine=exllamav3&engine=vllm")
    page.locator('[data-facet="cards"] input[name="cards.min"]').fill("2")
    page.locator('[data-facet="cards"] button').click()
    assert page.url.endswith("/recipes?cards=2..&engine=exllamav3&engine=vllm")
    page.fill("#hw", "2x64GiB")
    page.get_by_role("button", name="Check fit").click()
    assert "hw=2x64gib" in page.url
    page.locator('[data-facet="fits"] a').first.click()
    assert "fits=" in page.url
    page.fill("#q", "k_hcfuse")
    page.get_by_role("button", name="Search").click()
    assert page.locator("table.rows tbody tr").count() == 1
    page.locator("table.rows tbody th a").click()
    assert page.locator("h1").inner_text().startswith("GLM 5.3 Flash on 2x 8 GB")
    context.close()


def test_values_of_a_facet_are_found_while_typing(page, large_site):
    page.goto(large_site + "/recipes?engine=vllm")
    facet = page.locator('[data-facet="quant_repo"]')
    facet.locator("summary").click()
    before = facet.locator("li").count()
    owner = facet.locator(".label").first.inner_text().partition("/")[0]
    facet.locator('input[name="find.quant_repo"]').press_sequentially(f"{owner.upper()} / weights")
    page.wait_for_function(
        """owner => [...document.querySelectorAll('[data-facet="quant_repo"] .label')]
        .every(node => node.textContent.startsWith(owner + '/'))""",
        arg=owner,
    )
    count = facet.locator(".count").first.inner_text()
    facet.locator("li a").first.click()
    assert "engine=vllm" in page.url
    assert f"quant_repo={owner}/" in page.url
    assert page.locator(".tally strong").inner_text() == count
    page.go_back()
    assert facet.locator("li").count() == before


def test_comparing_two(page, site):
    page.goto(site + "/recipes")
    button = page.get_by_role("button", name="Compare two chosen")
    assert button.is_disabled()
    boxes = page.locator('input[type="checkbox"]')
    boxes.nth(0).check()
    boxes.nth(1).check()
    assert boxes.nth(2).is_disabled()
    button.click()
    assert page.locator("table.versus thead th").count() == 2


def test_everything_is_reached_by_keyboard(page, site):
    page.goto(site + "/recipes")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("tp2")
    page.keyboard.press("Enter")
    page.wait_for_url("**/recipes?q=tp2")
    summary = page.locator('[data-facet="engine"] summary')
    summary.focus()
    was_open = summary.evaluate("node => node.parentElement.open")
    page.keyboard.press("Enter")
    assert summary.evaluate("node => node.parentElement.open") is not was_open


def test_structure_for_screen_readers(page, site):
    for path in PAGES:
        page.goto(site + path)
        assert page.locator("h1").count() == 1, path
        assert page.locator("main").count() == 1, path
        assert page.locator("html").get_attribute("lang") == "en"
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('input:not([type=hidden]), select, button, a[href]')]
            .filter(node => !(node.textContent || '').trim() && !node.getAttribute('aria-label')
                && !(node.labels && node.labels.length)).map(node => node.outerHTML)"""
        )
        assert unnamed == [], path
        twice = page.evaluate(
            """() => { const ids = [...document.querySelectorAll('[id]')].map(node => node.id);
            return ids.filter((id, index) => ids.indexOf(id) !== index) }"""
        )
        assert twice == [], path


CONTRAST = """() => {
  const channel = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 };
  const parse = text => { const m = text.match(/[\\d.]+/g); return m ? m.map(Number) : [0, 0, 0, 0] };
  const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const ground = node => { for (; node; node = node.parentElement) {
      const c = parse(getComputedStyle(node).backgroundColor);
      if (c.length < 4 || c[3] > .95) return c } return [255, 255, 255] };
  const poor = [];
  for (const node of document.querySelectorAll('main *')) {
    if (![...node.childNodes].some(c => c.nodeType === 3 && c.data.trim())) continue;
    if (!node.checkVisibility() || node.closest('svg, .hidden, :disabled')) continue;
    const a = light(parse(getComputedStyle(node).color)), b = light(ground(node));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const what = `${node.className || node.tagName} "${node.innerText.slice(0, 30)}"`;
    if (ratio < 4.5) poor.push(`${what} ${ratio.toFixed(2)}`);
  }
  return [...new Set(poor)].slice(0, 8) }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser, site, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    for path in PAGES:
        page.goto(site + path)
        assert page.evaluate(CONTRAST) == [], path
    context.close()


@pytest.mark.parametrize("width", [360, 768, 1160, 1280])
def test_nothing_runs_off_the_side(browser, site, width):
    context = browser.new_context(viewport={"width": width, "height": 800}, is_mobile=width < 500)
    page = context.new_page()
    for path in PAGES:
        page.goto(site + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()


def test_a_phone_reads_results_first(browser, site):
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True)
    page = context.new_page()
    page.goto(site + "/recipes")
    results, filters = page.locator("#results").bounding_box(), page.locator("#filters").bounding_box()
    assert results["y"] < filters["y"]
    page.get_by_role("link", name="Filters").click()
    assert page.evaluate("window.scrollY") > results["y"]
    context.close()
