"""The page in a real browser: it draws, answers and fetches nothing; phone and keyboard too."""

import shutil

import pytest
from made_up_results import document, run, two_methods, write

from vpng.paper.report import write_report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs a browser: pip install '.[browser]'"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
if not CHROMIUM:
    pytest.skip("needs chromium on the PATH", allow_module_level=True)

pytestmark = pytest.mark.endurance


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write(folder / "vae", document(two_methods(), experiment="vae"))
    psd = document([run("psd", 0, 1.0)], headline=None, experiment="psd", findings=["Found."])
    write(folder / "psd", psd)
    return write_report(folder)


@pytest.fixture
def page(browser, report):
    """The page at desktop width; fails on any error, and on any request but the page itself."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    opened = context.new_page()
    troubles, requests = [], []
    opened.on("console", lambda message: troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(report.as_uri())
    yield opened
    assert troubles == []
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    context.close()


def view(page):
    return page.evaluate("document.querySelector('[data-chart=vae]').chart.view")


def plot(page):
    return page.locator("[data-chart=vae] svg.plot")


def readout(page):
    return page.locator("[data-chart=vae] .readout").inner_text()


def test_lines_and_bands_are_drawn(page):
    chart = page.locator("[data-chart=vae]")
    assert chart.locator("g.line").count() == 2
    assert chart.locator("path.band").count() == 2
    assert page.locator("[data-chart=psd] g.line").count() == 3
    boxes = [chart.locator("g.line").nth(k).bounding_box() for k in range(2)]
    assert all(box["width"] > 300 and box["height"] > 100 for box in boxes)


def test_methods_can_be_hidden(page):
    button = page.locator("[data-chart=vae] button[data-line=gradient]")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("[data-chart=vae] g.line").count() == 1
    page.locator("[data-chart=vae] button[data-line=vpng]").click()
    assert "No line is shown" in plot(page).inner_html()
    button.click()
    assert page.locator("[data-chart=vae] g.line").count() == 1


def test_the_axis_and_the_metric_can_be_chosen(page):
    assert plot(page).get_attribute("aria-label") == "test ELBO against seconds"
    page.locator("[data-chart=vae] input[value=iteration]").check()
    page.locator("[data-chart=vae] select").select_option("loss")
    assert plot(page).get_attribute("aria-label") == "loss against iterations"


def test_hovering_reads_values(page):
    plot(page).scroll_into_view_if_needed()
    box = plot(page).bounding_box()
    page.mouse.move(box["x"] + 0.999 * box["width"], box["y"] + box["height"] / 2)
    # The last record: -100 + 10 * 8 for VPNG and -100 + 10 * 4 for the gradient.
    assert "VPNG -20" in readout(page)
    assert "Gradient -60" in readout(page)


def test_a_curve_has_no_value_where_it_is_not(browser, tmp_path):
    runs = [run("vpng", 0, 8.0, pace=2.0), run("gradient", 0, 4.0)]
    opened = browser.new_page()
    opened.goto(write_report(write(tmp_path / "vae", document(runs))).as_uri())
    plot(opened).focus()
    opened.keyboard.press("ArrowRight")
    assert "Gradient -96" in readout(opened)
    assert "VPNG –" in readout(opened), "its first record is at two seconds"


def test_dragging_zooms_and_a_double_click_resets(page):
    plot(page).scroll_into_view_if_needed()
    box = plot(page).bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.4 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=4)
    page.mouse.up()
    low, high = view(page)
    assert 3.0 < low < high < 8.0
    plot(page).dblclick()
    assert view(page) is None


def test_everything_works_from_the_keyboard(page):
    plot(page).focus()
    page.keyboard.press("ArrowRight")
    assert "seconds 1:" in readout(page)
    page.keyboard.press("ArrowRight")
    assert "seconds 2:" in readout(page)
    page.keyboard.press("+")
    low, high = view(page)
    assert (low, high) != (1, 10)
    page.keyboard.press("Shift+ArrowRight")
    assert view(page)[0] > low
    page.keyboard.press("0")
    assert view(page) is None
    page.locator("[data-chart=vae] button[data-line=vpng]").focus()
    page.keyboard.press("Space")
    assert page.locator("[data-chart=vae] g.line").count() == 1
    summary = page.locator("#vae summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#vae details").first.get_attribute("open") is not None


def test_it_fits_a_phone(page):
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    width = "document.querySelector('[data-chart=vae] svg.plot').viewBox.baseVal.width"
    # Playwright's own way to wait evaluates strings in the page, which the page forbids.
    for _ in range(200):
        if page.evaluate(width) < 360:
            break
        page.wait_for_timeout(50)
    assert page.evaluate(width) < 360
    for button in page.locator("[data-chart=vae] button").all():
        assert button.bounding_box()["height"] >= 28, "large enough for a finger"
