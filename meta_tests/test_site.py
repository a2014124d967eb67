"""The site that `make docs` builds: without a warning, read by clicks; its table of runs."""

import functools
import http.server
import os
import subprocess
import sys
import threading

import pytest

from meta_tests.conftest import ROOT

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site. The build fails for each warning, such as a link to nowhere."""
    pytest.importorskip("material", reason="needs mkdocs-material, of the [dev] packages")
    pytest.importorskip("mkdocstrings_handlers", reason="needs mkdocstrings-python, of [dev]")
    folder = tmp_path_factory.mktemp("site")
    # With --quiet, mkdocs would not count its warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture
def address(site):
    """Where a server shows the site."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_reader_clicks_to_a_claim_searches_one_and_sorts_the_runs(address, chromium):
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(30_000)
    complaints = []
    fetched = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(address)
    page.locator("article").get_by_role("link", name="Claims", exact=True).first.click()
    page.locator("article").get_by_role("link", name="grad.backward-4BN").click()
    page.locator("article h2#gradbackward-4bn").wait_for()
    assert page.title() == "grad - prooflops"
    page.locator("input.md-search__input").fill("fp16 underflow")
    found = page.locator(".md-search-result__item a[href*='claims/dtype.html']").first
    found.click()
    page.wait_for_url("**/claims/dtype.html*")
    page.goto(f"{address}results/index.html")
    table = page.locator("table").last
    search = page.get_by_label("Search runs").last
    search.fill("h200")
    assert table.locator("tbody tr:visible").count() == 1
    search.fill("")
    for first in ("NVIDIA H200", "Intel(R) Xeon(R)"):
        table.get_by_role("button", name="bf16").click()
        assert first in table.locator("tbody tr").first.inner_text()
    table.get_by_role("link", name="NVIDIA H200").click()
    assert page.get_by_text("DELIVERS").first.is_visible()
    assert complaints == []
    elsewhere = [url for url in fetched if not url.startswith((address, "data:", "blob:"))]
    assert elsewhere == []
    page.close()
