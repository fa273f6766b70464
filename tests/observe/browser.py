"""Debian's headless Chromium, to look at a page as people do: what is visible, what does not fit, what it asks for."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("chromium-headless-shell", "chromium")
DARK = "--blink-settings=preferredColorScheme=0"
SCRIPT = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Look:
    """What a browser sees: texts that are visible, faults of the page, elements and words that do not fit."""

    text: str
    problems: list[str]
    requests: list[str]
    wide: list[str]
    cut: list[str]
    pale: list[str]
    scripts: int
    images: int


def look(page: Path, width: int, *options: str) -> Look:
    """Open a copy of `page` in a window of `width` pixels, with a script in front of it that measures."""
    copy = page.with_suffix(f".{width}.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("<head>", f"<head><script>{SCRIPT}</script>", 1))
    shown = _run(copy, f"--window-size={width},900", *options, "--dump-dom")
    found = re.search(r'<output id="measured">(.*?)</output>', shown, re.DOTALL)
    assert found is not None, shown[-2000:]
    return Look(**json.loads(html.unescape(found[1])))


def printed(page: Path) -> list[str]:
    """Return the texts of the pages that printing makes, without spaces."""
    target = page.with_suffix(".pdf")
    _run(page, "--no-pdf-header-footer", f"--print-to-pdf={target}")
    return [re.sub(r"\s", "", text) for text in _pdf_texts(target.read_bytes())]


def _run(page: Path, *options: str) -> str:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    assert program is not None, f"none of {PROGRAMS}: `apt-get install {PROGRAMS[0]}`"
    profile = page.parent / "profile"
    common = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}")
    argv = (program, *common, *options, page.resolve().as_uri())
    done = subprocess.run(argv, capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8", "replace")


def _pdf_texts(data: bytes) -> list[str]:
    """Return the text of each page of a PDF as Skia writes it: plain objects, deflated streams, glyphs by number."""
    objects = {int(found[1]): found[2] for found in re.finditer(rb"(?s)(\d+) 0 obj\n(.*?)\nendobj", data)}
    pages = [body for body in objects.values() if re.search(rb"/Type\s*/Page\b", body)]
    return [_page_text(body, objects) for body in pages]


def _page_text(page: bytes, objects: dict[int, bytes]) -> str:
    fonts = {}
    for name, number in re.findall(rb"/(F\d+) (\d+) 0 R", page):
        unicode = re.search(rb"/ToUnicode (\d+) 0 R", objects[int(number)])
        fonts[name] = _glyphs(_stream(objects[int(unicode[1])])) if unicode else {}
    content = re.search(rb"/Contents (\d+) 0 R", page)
    assert content is not None
    known: dict[int, str] = {}
    text = []
    for token in re.finditer(rb"/(F\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)>", _stream(objects[int(content[1])])):
        if token[1]:
            known = fonts.get(token[1], {})
        else:
            text += [known.get(int(token[2][at : at + 4], 16), "") for at in range(0, len(token[2]), 4)]
    return "".join(text)


def _stream(body: bytes) -> bytes:
    return zlib.decompressobj().decompress(body.partition(b"stream\n")[2])


def _glyphs(table: bytes) -> dict[int, str]:
    """Return glyph number → text of a ToUnicode table."""
    found = {}
    for block in re.findall(rb"(?s)beginbfchar(.*?)endbfchar", table):
        for glyph, text in re.findall(rb"<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>", block):
            found[int(glyph, 16)] = bytes.fromhex(text.decode()).decode("utf-16-be", "replace")
    for block in re.findall(rb"(?s)beginbfrange(.*?)endbfrange", table):
        for first, last, text in re.findall(rb"<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>", block):
            for glyph in range(int(first, 16), int(last, 16) + 1):
                found[glyph] = chr(int(text, 16) + glyph - int(first, 16))
    return found
