"""One seeded bug: what its file says, and how it is planted in a tree of sources.

A file `NN-name.bug` has header lines `Bug:`, `Seen in:`, `Caught by:` (one or more), and one or more edits:

    In: Draw.release (src/apportion/curator/curator.py)
    Old:
        self._released = True
    New:
        pass

`In` names a function, a method or a class with its qualified name, or is the word `module` for what stands outside all of them. The file
is a hint: if the name with the old text is not there, it may be in one other file of the package. The old text must occur exactly once
in that place, as a sequence of Python tokens: comments, indentation, line breaks and what the formatter puts around a line that it
breaks (a comma before a closing bracket, brackets around all of a right-hand side) do not count. The new text takes the place of these
tokens; its indentation is relative to that of the old text. A bug that cannot be planted so is an error.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADERS = ("Bug", "Seen in", "Caught by")
PACKAGE = "src/apportion"
_EDIT = re.compile(
    r"^In: (?P<place>\S+) \((?P<file>\S+)\)\nOld:\n(?P<old>(?:(?: {4}.*)?\n)+)New:\n(?P<new>(?:(?: {4}.*)?\n)*)",
    re.MULTILINE,
)
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
_BEFORE_A_SIDE = {"=", "return", "in", "if", "elif", "while", "assert", "yield", "+=", "-=", "*=", "/=", "|=", ":="}
_CLOSING = {")": "(", "]": "[", "}": "{"}


class CannotBePlanted(ValueError):
    """The bug is not one of these sources any more: it has to be written anew, or to go."""


@dataclass(frozen=True)
class Token:
    """A token that counts, and its place in the text."""

    text: str
    start: int
    end: int
    silent: tuple[int, ...] = ()  # where brackets end that were opened after this token and do not count


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new` in the function, method or class `place`, which is probably in `file`."""

    place: str
    file: str
    old: str
    new: str

    def found(self, sources: Mapping[str, str]) -> tuple[str, int, int]:
        """The file that has the old text, its start and its end. `sources` maps files to their texts."""
        # what ends the old text need not end a line of the source: its brackets may count there
        wanted = {tuple(token.text for token in tokens(self.old, brackets=brackets)) for brackets in (False, True)}
        if not all(wanted):
            raise CannotBePlanted(f"an edit of {self.place} has no old text")
        spans = {self.file: self._matches(sources.get(self.file, ""), wanted)}
        if not spans[self.file]:  # moved?
            spans = {file: self._matches(text, wanted) for file, text in sources.items()}
        every = [(file, *span) for file, some in spans.items() for span in some]
        if len(every) != 1:
            where = ", ".join(file for file, _, _ in every) or "nowhere"
            raise CannotBePlanted(
                f"the old text occurs {len(every)} times in {self.place} ({where}), not once:\n{self.old}"
            )
        return every[0]

    def replaced(self, text: str, start: int, end: int) -> str:
        """`text` with the new text from `start` to `end`."""
        line = text.rfind("\n", 0, start) + 1
        shift = _indentation(text[line:start] + "x") - _indentation(self.old)
        lines = [_shifted(one, shift) for one in self.new.splitlines()]
        if not text[line:start].strip():
            return text[:line] + "\n".join(lines) + text[end:]
        return text[:start] + "\n".join(lines).lstrip() + text[end:]

    def _matches(self, text: str, wanted: set[tuple[str, ...]]) -> set[tuple[int, int]]:
        """Start and end of every occurrence of wanted tokens in the place."""
        found = set()
        for start, end in places(text).get(self.place, []):
            inside = tokens(text[start:end])
            words = tuple(one.text for one in inside)
            for some in wanted:
                for index in range(len(words) - len(some) + 1):
                    if words[index : index + len(some)] == some:
                        part = inside[index : index + len(some)]
                        closed = (end for one in part[:-1] for end in one.silent)
                        last = max([part[-1].end, *_adjacent(closed, part[-1], inside)])
                        found.add((start + part[0].start, start + last))
        return found


@dataclass(frozen=True)
class Bug:
    """One file. `tests` are the node ids that are claimed to fail."""

    path: Path
    what: str
    seen: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def read(cls, path: Path) -> Bug:
        text = path.read_text(encoding="utf-8").rstrip("\n") + "\n"
        headers, _, rest = text.partition("\n\n")
        found = {key: re.findall(rf"^{key}: *(\S.*)$", headers, re.MULTILINE) for key in HEADERS}
        for key, values in found.items():
            if not values or (key != "Caught by" and len(values) > 1):
                raise ValueError(f"{path.name} needs one line '{key}: …' (of 'Caught by' one or more) before its edits")
        edits = tuple(
            Edit(one["place"], one["file"], *_without_comma(_block(one["old"]), _block(one["new"])))
            for one in _EDIT.finditer(rest)
        )
        if not edits or _EDIT.sub("", rest).strip():
            raise ValueError(
                f"{path.name} has something else than edits ('In: place (file)', 'Old:', 'New:') after its headers"
            )
        return cls(path, found["Bug"][0], found["Seen in"][0], tuple(found["Caught by"]), edits)

    def planted(self, sources: Mapping[str, str]) -> dict[str, str]:
        """The files that the bug changes, with their new texts. Every old text is one of the sources as they are."""
        changed: dict[str, str] = {}
        later: dict[str, int] = {}
        for (file, start, end), edit in sorted(
            ((edit.found(sources), edit) for edit in self.edits), key=lambda one: one[0], reverse=True
        ):
            if end > later.get(file, end):
                raise CannotBePlanted(f"two edits overlap in {edit.place}:\n{edit.old}")
            changed[file], later[file] = edit.replaced(changed.get(file, sources[file]), start, end), start
        for file, text in changed.items():
            try:
                compile(text, file, "exec", dont_inherit=True)  # quicker than a tree of Python objects
            except SyntaxError as error:
                raise CannotBePlanted(f"{file} cannot be parsed any more: {error}") from error
        return changed


def sources(root: Path) -> dict[str, str]:
    """Every module of the package in the tree at `root`."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / PACKAGE).rglob("*.py"))
    }


@functools.lru_cache(maxsize=4096)
def tokens(text: str, *, brackets: bool = False) -> tuple[Token, ...]:
    """The tokens of `text` that count; with those brackets that are there for the sake of a line break only if `brackets`."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = [
        (one.type, one.string, lines[one.start[0] - 1] + one.start[1], lines[one.end[0] - 1] + one.end[1])
        for one in _tokenized(text)
        if one.type not in _SILENT
    ]
    silent = {} if brackets else _silent_brackets(found)
    kept: list[Token] = []
    for index, (kind, string, start, end) in enumerate(found):
        if kind == tokenize.NEWLINE or index in silent.values():
            continue
        if index in silent:
            last = kept[-1]
            kept[-1] = Token(last.text, last.start, last.end, (*last.silent, found[silent[index]][3]))
        elif not (string == "," and index + 1 < len(found) and found[index + 1][1] in _CLOSING):
            kept.append(Token(string, start, end))
    return tuple(kept)


@functools.lru_cache(maxsize=4096)
def places(text: str) -> dict[str, list[tuple[int, int]]]:
    """Qualified name → the parts of the text that it stands for."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found: dict[str, list[tuple[int, int]]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[tuple[int, int]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                span = (lines[first - 1], lines[node.end_lineno or node.lineno])
                found.setdefault(prefix + node.name, []).append(span)
                yield span
                if isinstance(node, ast.ClassDef):
                    list(visit(node.body, f"{prefix}{node.name}."))

    taken = list(visit(ast.parse(text).body, ""))
    edges = [0, *(edge for span in taken for edge in span), len(text)]
    found["module"] = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
    return found


def _tokenized(text: str) -> list[tokenize.TokenInfo]:
    """Also of a part of a program, the first line of which is indented more than a later one."""
    depth = _indentation(text) // 4
    frame = "".join(f"{'    ' * level}if 1:\n" for level in range(depth))
    try:
        found = list(tokenize.generate_tokens(io.StringIO(frame + text + "\n").readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise CannotBePlanted(
            f"this is no sequence of Python tokens with closed brackets ({error}):\n{text}"
        ) from error
    return [
        one._replace(start=(one.start[0] - depth, one.start[1]), end=(one.end[0] - depth, one.end[1]))
        for one in found
        if one.start[0] > depth and one.start[0] - depth <= text.count("\n") + 1
    ]


def _silent_brackets(found: list[tuple[int, str, int, int]]) -> dict[int, int]:
    """Opening → closing, of brackets around all that follows on a logical line: they are there for the sake of a line break."""
    silent, opened = {}, []
    for index, (_, string, _, _) in enumerate(found):
        if string in _CLOSING.values():
            opened.append(index)
        elif string in _CLOSING and opened:
            begin = opened.pop()
            after = [one[1] if one[0] != tokenize.NEWLINE else "\n" for one in found[index + 1 : index + 3]]
            ends = not after or after[0] == "\n" or (after[0] == ":" and after[1:] in ([], ["\n"]))
            if string == ")" and begin and found[begin - 1][1] in _BEFORE_A_SIDE and ends and index > begin + 1:
                silent[begin] = index
    return silent


def _adjacent(closed: Iterator[int], last: Token, inside: Sequence[Token]) -> list[int]:
    """Those ends of uncounted brackets after which nothing else of the place comes in between."""
    following = min((one.start for one in inside if one.start >= last.end), default=None)
    return [end for end in closed if following is None or end <= following]


def _block(text: str) -> str:
    return "\n".join(line[4:] for line in text.splitlines()).rstrip()


def _without_comma(old: str, new: str) -> tuple[str, str]:
    """A comma at the end of both stays where it is: whether the last of several arguments has one is the formatter's choice."""
    return (old[:-1], new[:-1]) if old.endswith(",") and new.endswith(",") else (old, new)


def _indentation(text: str) -> int:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return len(line) - len(line.lstrip(" "))


def _shifted(line: str, shift: int) -> str:
    if not line.strip():
        return ""
    return " " * shift + line if shift >= 0 else line[min(-shift, len(line) - len(line.lstrip(" "))) :]
