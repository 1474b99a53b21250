"""The page as a document: whole, escaped, self-contained; and the server that shows it."""

import http.client
import json
import re
import threading

import pytest
from made_up_results import document, run, two_methods, write

from vpng.errors import InputError
from vpng.paper.report import build_page, write_report
from vpng.paper.report.serve import HOST, make_server
from vpng.plot.palette import STYLES


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "vae", document(two_methods(), experiment="vae", grid={"vpng": [{"rate": 1}]}))
    psd = document([run("psd", 0, 1.0)], headline=None, experiment="psd", findings=["Found."])
    write(tmp_path / "psd", psd)
    (tmp_path / "psd" / "psd.png").write_bytes(b"\x89PNG not really")
    return tmp_path


def test_the_page_has_everything_in_it(folder):
    path = write_report(folder)
    page = path.read_text()
    assert path == folder / "report.html"
    assert page.index('id="psd"') < page.index('id="vae"'), "in the paper's order"
    for text in ("Found.", "VPNG is ahead", "&lt;b&gt;VPNG", "jax==", "data:image/png;base64,"):
        assert text in page
    assert "<b>VPNG</b>" not in page
    assert "@DATA@" not in page


def test_nothing_is_fetched(folder):
    page = build_page(folder)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a namespace, not an address"
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:)", page)


def test_the_data_cannot_end_their_script_early(tmp_path):
    made = document(two_methods())
    made["headline"]["label"] = "</script><script>alert(1)</script>"
    page = build_page(write(tmp_path / "x", made))
    assert "alert(1)</script>" not in page
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    labels = [metric["label"] for metric in json.loads(block[1])["x"]["metrics"]]
    assert labels[0] == made["headline"]["label"]


def test_lines_differ_without_colour():
    assert len({style.dash for style in STYLES.values()}) == len(STYLES)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)


def test_the_command_line_writes_the_page(vpng, folder, tmp_path):
    target = tmp_path / "page.html"
    code, out, _ = vpng("report", str(folder), "--out", str(target))
    assert code == 0
    assert "page.html" in out
    assert target.read_text() == build_page(folder)


def test_a_folder_without_results_is_refused(vpng, tmp_path):
    code, _, err = vpng("report", str(tmp_path))
    assert code == 2
    assert "results.json" in err
    with pytest.raises(InputError):
        build_page(tmp_path / "nowhere")


def test_the_server_gives_one_page_to_this_machine_alone():
    with make_server("<p>é</p>") as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def get(path, **headers):
            connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        assert get("/") == (200, "<p>é</p>")
        assert get("/../etc/passwd")[0] == 404
        assert get("/", Host="evil.example")[0] == 404
        server.shutdown()
