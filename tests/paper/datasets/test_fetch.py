"""Where files come from, in which order, and what is refused on the way."""

import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from vpng.errors import InputError
from vpng.paper.datasets import Mirrored
from vpng.paper.datasets.fetch import fetch

CONTENT = bytes(range(256)) * 40
FILE = Mirrored("numbers.gz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Reply(NamedTuple):
    body: bytes
    status: int = 200
    declared_length: int | None = None


@pytest.fixture
def server(monkeypatch):
    """A loopback server: `replies` by path, `requested` the paths asked for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.requested.append(self.path)
            reply = self.server.replies.get(self.path, Reply(b"nothing here", status=404))
            self.send_response(reply.status)
            length = len(reply.body) if reply.declared_length is None else reply.declared_length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.replies, http.requested = {}, []
        http.address = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield http
        http.shutdown()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """(data folder, cache folder), the first named by VPNG_DATA_DIR."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    (data / "set").mkdir(parents=True)
    (cache / "set").mkdir(parents=True)
    monkeypatch.setenv("VPNG_DATA_DIR", str(data))
    return data, cache


def get(cache, mirrors=(), file=FILE):
    return fetch(file, folder="set", mirrors=mirrors, cache=cache, progress=False)


def test_the_data_folder_comes_first(folders, server):
    data, cache = folders
    (data / "set" / FILE.name).write_bytes(gzip.compress(CONTENT))
    (cache / "set" / FILE.name).write_bytes(b"never read")
    assert get(cache, [server.address]) == CONTENT
    assert server.requested == []


def test_the_cache_comes_second(folders, server):
    _, cache = folders
    (cache / "set" / FILE.name).write_bytes(gzip.compress(CONTENT))
    assert get(cache, [server.address]) == CONTENT
    assert server.requested == []


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_download_is_kept_in_the_cache(folders, server, slash):
    data, cache = folders
    server.replies[f"/base/{FILE.name}"] = Reply(gzip.compress(CONTENT))
    assert get(cache, [f"{server.address}/base{slash}"]) == CONTENT
    assert [path.name for path in (cache / "set").iterdir()] == [FILE.name]
    assert list((data / "set").iterdir()) == []
    assert get(cache, [f"{server.address}/base{slash}"]) == CONTENT
    assert server.requested == [f"/base/{FILE.name}"]


def test_mirrors_may_pack_differently(folders, server):
    _, cache = folders
    server.replies[f"/{FILE.name}"] = Reply(gzip.compress(CONTENT, compresslevel=1, mtime=7))
    assert get(cache, [server.address]) == CONTENT


def test_a_second_mirror_helps_out(folders, server):
    _, cache = folders
    server.replies[f"/bad/{FILE.name}"] = Reply(gzip.compress(CONTENT[::-1]))
    server.replies[f"/good/{FILE.name}"] = Reply(gzip.compress(CONTENT))
    mirrors = [f"{server.address}/{name}" for name in ("missing", "bad", "good")]
    assert get(cache, mirrors) == CONTENT
    assert server.requested == [f"/{name}/{FILE.name}" for name in ("missing", "bad", "good")]


PACKED = gzip.compress(CONTENT)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(b"no", status=404), "404"),
        (Reply(b"no", status=503), "503"),
        (Reply(PACKED[:50], declared_length=len(PACKED)), "IncompleteRead|broken"),
        (Reply(PACKED[:50]), "a complete gzip file"),
        (Reply(b"<html>busy</html>"), "a complete gzip file"),
        (Reply(gzip.compress(CONTENT[::-1])), FILE.sha256),
        (Reply(gzip.compress(CONTENT[:-1])), f"{len(CONTENT)} unpacked bytes"),
    ],
)
def test_a_failed_download_leaves_nothing(folders, server, reply, message):
    _, cache = folders
    server.replies[f"/{FILE.name}"] = reply
    with pytest.raises(InputError, match=message) as caught:
        get(cache, [server.address])
    assert f"{server.address}/{FILE.name}" in str(caught.value)
    assert "set VPNG_DATA_DIR" in str(caught.value)
    assert list((cache / "set").iterdir()) == []


def test_no_server_at_all(folders, server):
    _, cache = folders
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match="mirrors"):
        get(cache, [server.address])
    assert list((cache / "set").iterdir()) == []


CORRUPT = {
    "not gzip": (b"hello", "a complete gzip file"),
    "truncated": (PACKED[:-9], "a complete gzip file"),
    "damaged": (PACKED[:40] + b"\xff" * 20 + PACKED[60:], "expected"),
    "empty": (b"", f"expected {len(CONTENT)} unpacked bytes, got 0"),
    "too short": (gzip.compress(CONTENT[:-1]), f"got {len(CONTENT) - 1}"),
    "too long": (gzip.compress(CONTENT + b"x"), "got more"),
    "other content": (gzip.compress(CONTENT[::-1]), FILE.sha256),
}


@pytest.mark.parametrize(("content", "message"), CORRUPT.values(), ids=CORRUPT)
@pytest.mark.parametrize("place", [0, 1])
def test_corrupt_files_are_refused(folders, server, place, content, message):
    path = folders[place] / "set" / FILE.name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        get(folders[1], [server.address])
    assert str(path) in str(caught.value)
    assert ("unset VPNG_DATA_DIR", "Delete the file")[place] in str(caught.value)
    assert server.requested == []


def test_a_gzip_bomb_is_not_unpacked(folders):
    data, cache = folders
    bomb = gzip.compress(bytes(50_000_000))
    (data / "set" / FILE.name).write_bytes(bomb)
    with pytest.raises(InputError, match="got more"):
        get(cache)


def test_a_data_folder_that_does_not_exist(folders, monkeypatch):
    monkeypatch.setenv("VPNG_DATA_DIR", str(folders[0] / "misspelt"))
    with pytest.raises(InputError, match="VPNG_DATA_DIR: expected a folder that exists"):
        get(folders[1])


def test_a_cache_that_cannot_be_made(folders, server):
    data, _ = folders
    blocked = data / "file"
    blocked.write_bytes(b"")
    with pytest.raises(InputError, match="can be written to"):
        get(blocked, [server.address])
