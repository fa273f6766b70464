"""The only place that reads and writes YAML: YAML 1.2 scalars, no duplicate keys, a line for every key."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from slurm_llm.errors import InputError, Problem

Scalar: TypeAlias = str | int | float | bool | None
Tree: TypeAlias = Scalar | list["Tree"] | dict[str, "Tree"]
Key: TypeAlias = tuple[str | int, ...]

MAX_BYTES = 1024 * 1024
MAX_NODES = 100_000
MAX_DIGITS = 400
FROM_FLAG = 0

_TEXT = "tag:yaml.org,2002:str"
_LINES = "it must hold `key: value` lines"


@dataclass(frozen=True)
class Document:
    """A mapping read from a file, or merged from several.

    `lines` has each key path's 1-based line, FROM_FLAG where it is from no file: from a `--set`, or from what
    `sources` says. `sources` has the origin of each key path that is not from `source`.
    """

    source: str
    value: dict[str, Tree]
    lines: dict[Key, int] = field(default_factory=dict)
    sources: dict[Key, str] = field(default_factory=dict)

    def where(self, path: Key) -> str:
        """Return `file:line` of `path`, or of its nearest parent that stands in the file."""
        for length in range(len(path), 0, -1):
            origin = self.origin(path[:length])
            if origin is not None:
                return origin
        return self.source

    def origin(self, path: Key) -> str | None:
        """Return `file:line` of `path` itself, or the flag that set it; None where nothing did."""
        line, source = self.lines.get(path), self.sources.get(path)
        if line is None:
            return None
        if line == FROM_FLAG:
            return source or f"--set {dotted(path)}"
        return f"{source or self.source}:{line}"


def dotted(path: Key) -> str:
    """Return `path` as `a.b[0].c`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's core schema: `04:00:00`, `no` and dates stay text, unlike in YAML 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_CORE = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
        r"|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
)
for _tag, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), [*_first, ""])


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    # PyYAML reads `010` as octal and `1_000` as a thousand, YAML 1.2 does neither.
    if len(node.value) > MAX_DIGITS:
        raise _fault(f"a number of more than {MAX_DIGITS} digits", node)
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)


def _fault(what: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


def _plain(node: yaml.Node, loader: _Loader, path: Key, lines: dict[Key, int]) -> Tree:
    if len(lines) > MAX_NODES:
        # Aliases of aliases grow a small file without bound.
        raise _fault(f"more than {MAX_NODES} values: shorten the file or its aliases", node)
    if isinstance(node, yaml.MappingNode):
        _refuse_tag(node, "tag:yaml.org,2002:map")
        return _mapping(node, loader, path, lines)
    if isinstance(node, yaml.SequenceNode):
        _refuse_tag(node, "tag:yaml.org,2002:seq")
        items: list[Tree] = []
        for index, item in enumerate(node.value):
            here = (*path, index)
            lines[here] = item.start_mark.line + 1
            items.append(_plain(item, loader, here, lines))
        return items
    if node.tag != _TEXT:
        fitting = loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        _refuse_tag(node, fitting)
    value: Scalar = loader.construct_object(node)
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise _fault("half a character (a surrogate), which no file can hold", node)
    return value


def _refuse_tag(node: yaml.Node, plain: str) -> None:
    # A tag could make any Python type of a value, and ones that do not fit their text crash PyYAML.
    if node.tag != plain:
        name = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise _fault(f"the tag {name} is not supported here: remove it", node)


def _mapping(node: yaml.MappingNode, loader: _Loader, path: Key, lines: dict[Key, int]) -> dict[str, Tree]:
    result: dict[str, Tree] = {}
    for key_node, value_node in node.value:
        name = _key(key_node, loader)
        here = (*path, name)
        if name in result:
            raise _fault(f"key '{name}' stands twice (first on line {lines[here]}): remove one", key_node)
        lines[here] = key_node.start_mark.line + 1
        result[name] = _plain(value_node, loader, here, lines)
    return result


def _key(node: yaml.Node, loader: _Loader) -> str:
    if not isinstance(node, yaml.ScalarNode) or isinstance(_plain(node, loader, (), {}), float | None):
        raise _fault("a key must be text", node)
    if node.value == "<<":
        raise _fault("merge keys (<<) are not supported: write the keys out", node)
    return str(node.value)


_UNEVEN = "indented differently from the lines around it"
_NO_KEY = "the line above is no `key: value`: a colon and a blank are missing"
_SECOND = "a second `: ` in one line: put the value in quotes"
_MIXED = "a list and keys at the same depth: each item of a list begins with `- `, and no key stands among them"
_OPEN = "a bracket that was opened above is not closed"
_WORDS = (
    ("found character '\\t'", "a tab: indent with spaces"),
    ("but found another document", "a second document begins here: only one is read"),
    ("special characters are not allowed", "a control character: is this the right file?"),
    ("found unknown escape character", "a backslash in double quotes: use single quotes, as '\\d+'"),
    ("expected <block end>, but found '-'", _MIXED),
    ("<block mapping start>", _UNEVEN),
    ("<block sequence start>", _UNEVEN),
    ("expected <block end>", "text after the end of a value: put the whole value in quotes"),
    ("could not find expected ':'", _NO_KEY),
    ("that cannot start any token", "a value that begins with a special character: put it in quotes"),
    ("found undefined alias", "a value that begins with *: put it in quotes"),
    ("expected ',' or", _OPEN),
    ("found unexpected end of stream", "a quote that was opened above is not closed"),
)
"""What PyYAML says → what we say; the first that fits counts."""


def _words(error: yaml.YAMLError, lines: list[str]) -> str:
    """Return what is wrong, in words of people who indent and quote rather than parse."""
    said, mark = str(getattr(error, "problem", None) or error), getattr(error, "problem_mark", None)
    if "block collection" in str(getattr(error, "context", None)) and "<block end>" in said:
        return _MIXED
    if "mapping values are not allowed" in said and mark is not None and mark.line < len(lines):
        return _of_colon(lines, mark.line, mark.column)
    return next((ours for theirs, ours in _WORDS if theirs in said), said.splitlines()[0])


def _of_colon(lines: list[str], number: int, column: int) -> str:
    """Say why there can be no key before the colon at `column`."""
    own = lines[number]
    if ": " in own[:column]:
        return _SECOND
    above = next((line for line in reversed(lines[:number]) if line.strip()), "")
    return _NO_KEY if _depth(above) == _depth(own) else _UNEVEN


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _error(source: str, error: yaml.YAMLError, failure: type[InputError], text: str) -> InputError:
    mark = getattr(error, "problem_mark", None)
    where = source if mark is None else f"{source}:{mark.line + 1}"
    what = _words(error, text.splitlines())
    todo = "" if mark is None else "correct it there" if " above " in what else "correct this line"
    return failure(Problem(where, f"not readable as YAML: {what}", todo=todo))


def _read(text: str, lines: dict[Key, int]) -> Tree:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _plain(node, loader, (), lines)
    finally:
        loader.dispose()


def parse_document(text: str, source: str, failure: type[InputError] = InputError) -> Document:
    """Parse one YAML mapping.

    Raises:
        InputError: (as `failure`) not YAML, several documents, empty, or not a mapping.
    """
    lines: dict[Key, int] = {}
    try:
        value = _read(text, lines)
    except yaml.YAMLError as error:
        raise _error(source, error, failure, text) from None
    except RecursionError:
        what = "lists or mappings nested too deeply, or an alias inside itself"
        raise failure(Problem(source, f"not readable as YAML: {what}", todo="is this the right file?")) from None
    if value is None:
        raise failure(Problem(source, "the file is empty, or holds comments only", _LINES, "is this the right file?"))
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a single value"
        raise failure(Problem(source, f"the file holds {kind}", _LINES))
    return Document(source, value, lines)


def read_text(path: Path, failure: type[InputError] = InputError) -> str:
    """Return the text of the file at `path`, at most 1 MiB of UTF-8.

    Raises:
        InputError: (as `failure`) unreadable, too large, or not text.
    """
    source = str(path)
    try:
        # Not by the file's size: a pipe or a device has none.
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            what = f"the file has more than {MAX_BYTES} bytes"
            raise failure(Problem(source, what, "at most 1 MiB", "is this the right file?"))
        return content.decode("utf-8-sig")
    except OSError as error:
        raise failure(Problem(source, f"cannot be read: {error.strerror}", todo="check the path")) from None
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text (byte {error.start})"
        raise failure(Problem(source, what, todo="is this the right file?")) from None


def load_document(path: Path, failure: type[InputError] = InputError) -> Document:
    """Read and parse the file at `path`; see `read_text` and `parse_document`."""
    return parse_document(read_text(path, failure), str(path), failure)


def parse_scalar(text: str) -> Tree:
    """Parse the value of a `--set key=value` flag: a YAML value, or the text itself."""
    try:
        value = _read(text, {})
    except (yaml.YAMLError, RecursionError):
        return text
    # `#1` alone is a comment in YAML; on a command line it was meant.
    return text if value is None and text.strip().startswith("#") else value


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what a YAML 1.1 or 1.2 reader would turn into something other than text."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a value that occurs twice out twice: people read these files."""
        return True


for _tag, _pattern in (
    # Numbers of YAML 1.2 that YAML 1.1, and so PyYAML, takes for text.
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    ("tag:yaml.org,2002:float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
):
    _Dumper.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list("-+.0123456789"))


def _represent_text(dumper: _Dumper, value: str) -> yaml.Node:
    # PyYAML writes these line breaks of Unicode raw, and reads them back as blanks, except in double quotes.
    style = '"' if any(character in value for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TEXT, value, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(value: object) -> str:
    """Return `value` as block-style YAML that both YAML 1.1 and 1.2 readers read alike."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
