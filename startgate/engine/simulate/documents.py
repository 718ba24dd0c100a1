"""From the text of a file to plain values: maps, lists, texts, numbers, true, false, null.

Files come from anywhere, so nothing that a text says can make more of it than there is: no tags, no values out of
aliases without end, no nesting without end. What always holds: a text is read the way kubectl reads it (times stay
texts, a key twice is an error), and what can't be read is an InputError that names file, document and line.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import yaml

Plain: TypeAlias = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None

DEEPEST: Final = 100
"""Levels of nesting; no Kubernetes object comes near."""

REPEATED: Final = 100_000
"""Values that aliases may repeat, in one file."""

INTEGER: Final = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
LONGEST_NUMBER: Final = 100
TRUE: Final = frozenset({"true", "yes", "on"})


class InputError(ValueError):
    """What was given can't be simulated; a sentence that says where and why, in one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


class Source(NamedTuple):
    """One file: its name, for sentences, and what is in it."""

    name: str
    text: str


class Document(NamedTuple):
    """One object, wherever it stood."""

    where: str
    """For sentences: the file, and the place in it."""
    value: Plain


def documents(source: Source) -> Iterator[Document]:
    """All documents of a file; empty ones are left out. Raises InputError."""
    text = source.text.removeprefix("\ufeff")
    whole = _json(text)
    found = enumerate(_yaml(source.name, text), 1) if whole is None else [(1, whole[0])]
    for number, value in found:
        if value is not None:
            yield Document(f"{source.name}, document {number}", value)


def _json(text: str) -> tuple[Any] | None:
    """What a text in JSON says, which kubectl's dumps are; None for others, and YAML has its say about them."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return (msgspec.json.decode(text),)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _yaml(name: str, text: str) -> Iterator[Plain]:
    number = 0
    try:
        aliases = False
        for seen in _scan(text):
            number, aliases = seen
        number, builder = 1, _Builder(count=aliases)
        loader = yaml.CSafeLoader(text)
        try:
            while loader.check_node():
                if (node := loader.get_node()) is not None:
                    yield builder.build(node)
                number += 1
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise InputError(f"{name}, document {number}: {_said(error)}") from None
    except (_NodeError, RecursionError, UnicodeError) as error:
        raise InputError(f"{name}, document {number}: {error}") from None


def _scan(text: str) -> Iterator[tuple[int, bool]]:
    """Looks through the text before anything is made of it: each document's number, and whether it has aliases.

    The composer goes down in C, where too deep is a crash: so the depth is measured first. Raises _NodeError.
    """
    depth, number, aliases = 0, 1, False
    yield number, aliases
    loader = yaml.CSafeLoader(text)
    try:
        while (event := loader.get_event()) is not None:
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST:
                    raise _NodeError("it is nested too deeply", event)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                aliases = True
            elif isinstance(event, yaml.DocumentEndEvent):
                yield number, aliases
                number += 1
                yield number, aliases
    finally:
        loader.dispose()


class _NodeError(ValueError):
    def __init__(self, problem: str, node: Any) -> None:
        mark = node.start_mark
        super().__init__(f"line {mark.line + 1}: {problem}" if mark else problem)


class _Builder:
    """Values from nodes. Each alias makes a copy of its own, and so many copies only."""

    def __init__(self, *, count: bool) -> None:
        self._count = count
        self._seen: set[int] = set()
        self._kept: list[yaml.Node] = []
        """So that no later node gets the identity of one that was seen."""
        self._repeated = 0
        self._depth = 0

    def build(self, node: yaml.Node) -> Plain:
        if self._count:
            self._note(node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        self._depth += 1
        if self._depth > DEEPEST:
            raise _NodeError("its aliases make it nested too deeply, or without end", node)
        try:
            if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
                return [self.build(each) for each in node.value]
            if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
                return self._mapping(node)
        finally:
            self._depth -= 1
        raise _NodeError(f"the tag {node.tag} is not for Kubernetes objects", node)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Plain]:
        made: dict[str, Plain] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            key = self._key(key_node)
            if key in made:
                raise _NodeError(f"the key {key[:80]!r} is there twice", key_node)
            made[key] = self.build(value_node)
        for other in merged:
            value = self.build(other)
            if not isinstance(value, dict):
                raise _NodeError("what is merged by << has to be a map", other)
            made = {**value, **made}
        return made

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _NodeError("a key has to be a text", node)
        return str(node.value)

    def _note(self, node: yaml.Node) -> None:
        if id(node) in self._seen:
            self._repeated += 1
            if self._repeated > REPEATED:
                raise _NodeError(f"its aliases repeat more than {REPEATED} values", node)
        else:
            self._seen.add(id(node))
            self._kept.append(node)


def _scalar(node: yaml.ScalarNode) -> Plain:
    """As kubectl takes it: a time is a text, as are numbers to the base of 60."""
    text = str(node.value)
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "str" | "timestamp" | "value":
            return text
        case "null":
            return None
        case "bool":
            return text.lower() in TRUE
        case "int":
            return _integer(text) if INTEGER.fullmatch(text) else text
        case "float" if ":" not in text:
            return _float(text, node)
        case "float":
            return text
    raise _NodeError(f"the tag {node.tag} is not for Kubernetes objects", node)


def _integer(text: str) -> int | str:
    if len(text) > LONGEST_NUMBER:
        return text
    digits = text.replace("_", "")
    unsigned = digits.lstrip("+-")
    if len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit():
        return int(digits, 8)
    return int(digits, 0)


def _float(text: str, node: yaml.Node) -> float:
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _NodeError(f"{text[:80]} is not a number that JSON has", node)
    return number


def _said(error: yaml.YAMLError) -> str:
    """What the parser found, in one line."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        said = " ".join(filter(None, (error.context, error.problem)))
        return f"line {mark.line + 1}: {said}" if mark else said
    if isinstance(error, yaml.reader.ReaderError):
        return f"a character that YAML doesn't have, at position {error.position}"
    return " ".join(str(error).split())
