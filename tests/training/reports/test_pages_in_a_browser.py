"""Report pages in a real browser: no errors, no requests, a viewer that moves, both themes, and phones."""

import pytest
from browser import Browser, find_browser
from rlds2reverb.training.reports import report_runs, report_source, report_tables
from written_runs import write_run

from rlds2reverb import ReplayServer, ingest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="requires Chromium: apt-get install chromium"),
]
PHONE = {"width": 390, "height": 844, "is_phone": True}


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(data, tmp_path_factory):
    """The three kinds of reports, by name."""
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in ("source", "tables", "runs")}
    report_source(data / "rlds/physics_rlds/pendulum_pixels", paths["source"], reference_returns=(-1200, -150))
    ingest(data / "d4rl/invertedpendulum_random-v2.hdf5", folder / "items")
    with ReplayServer.from_directory(folder / "items") as server:
        report_tables(server, paths["tables"])
    runs = [write_run(folder / f"run_{seed}", "td3", seed, q_values=(1.0, 1e4, 1e8)) for seed in (0, 1)]
    report_runs([*runs, write_run(folder / "iql")], paths["runs"])
    return paths


def read_errors(browser):
    """Returns errors, and requests for anything but the page itself and images in it."""
    requests = [each for each in browser.requests if not each.startswith(("data:", "blob:", "file:", "about:"))]
    return browser.errors, requests, browser.evaluate("document.querySelector('[role=alert]')?.textContent ?? null")


@pytest.mark.parametrize("name", ["source", "tables", "runs"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", [{}, PHONE], ids=["desktop", "phone"])
def test_page_draws_all_figures_without_errors(browser, pages, name, dark, screen):
    browser.open(pages[name], dark=dark, **screen)
    assert read_errors(browser) == ([], [], None)
    num_figures, num_drawn = browser.evaluate(
        "[document.querySelectorAll('.plot').length, document.querySelectorAll('.plot .main-svg .cartesianlayer').length]"
    )
    assert num_figures == num_drawn >= 4
    assert browser.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    background, ink = browser.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.xtick text')).fill]"
    )
    assert (background, ink) == (
        ("rgb(20, 23, 28)", "rgb(230, 233, 238)") if dark else ("rgb(255, 255, 255)", "rgb(28, 32, 38)")
    )


@pytest.mark.parametrize("screen", [{}, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ["source", "tables", "runs"])
def test_texts_of_a_figure_do_not_overlap(browser, pages, name, screen):
    """Compares the rectangles of all texts of each figure, less one pixel for rounding."""
    browser.open(pages[name], **screen)
    overlaps = browser.evaluate("""[...document.querySelectorAll('.plot')].flatMap((plot) => {
        const texts = [...plot.querySelectorAll('text')].filter((text) => text.textContent && text.getBoundingClientRect().width);
        const boxes = texts.map((text) => text.getBoundingClientRect());
        return texts.flatMap((text, i) => texts.slice(i + 1).filter((_, k) => {
            const [a, b] = [boxes[i], boxes[i + 1 + k]];
            return Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
        }).map((other) => `${plot.id}: ${text.textContent} / ${other.textContent}`));
    })""")
    assert overlaps == []


def test_figures_follow_a_change_of_the_theme(browser, pages):
    browser.open(pages["tables"])
    fill = "getComputedStyle(document.querySelector('.xtick text')).fill"
    assert browser.evaluate(fill) == "rgb(28, 32, 38)"
    browser.set_dark(True)
    browser.wait_for(f"{fill} === 'rgb(230, 233, 238)'")
    assert read_errors(browser) == ([], [], None)


def test_viewer_changes_step_and_episode(browser, pages):
    browser.open(pages["source"])
    part = "document.querySelector('[data-part={}]')".format
    readout, image = f"{part('readout')}.textContent", f"{part('frames')}.querySelector('img').src"
    cursor = f"{part('plot')}.layout.shapes[0].x0"
    assert browser.evaluate(readout).startswith("step 0 of 100, reward ")
    first_image = browser.evaluate(image)
    browser.evaluate(f"{part('time')}.value = 40; {part('time')}.dispatchEvent(new Event('input'))")
    assert browser.evaluate(readout).startswith("step 40 of 100, ") and browser.evaluate(cursor) == 40
    assert browser.evaluate(image) != first_image
    label = f"{part('episode')}.selectedOptions[0].textContent"
    best = browser.evaluate(label)
    browser.click("[data-part=next]")
    browser.wait_for(f"{readout}.startsWith('step 0 ')")
    assert "best return" in best and "median return" in browser.evaluate(label)
    browser.click("[data-part=play]")
    browser.wait_for(f"{cursor} > 20")
    browser.click("[data-part=play]")
    assert read_errors(browser) == ([], [], None)


def test_damaged_page_says_that_it_cannot_be_drawn(browser, pages, tmp_path):
    page = pages["tables"].read_text(encoding="utf-8")
    start = page.index('id="content">') + len('id="content">')
    (tmp_path / "damaged.html").write_text(page[:start] + "!" + page[start + 1 :], encoding="utf-8")
    browser.open(tmp_path / "damaged.html")
    assert "The figures of this report cannot be drawn: " in read_errors(browser)[2]
