"""How expressions of ``where=`` are spelled: names in backquotes, and hints where the text cannot be parsed."""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rlds_cli.errors import InvalidExpression

METHODS = ("contains", "startswith", "endswith", "like")  # of texts
EXAMPLE = 'as in "total_reward > 3000 and length >= 500"'
QUOTE = "`"
_GRAMMAR = {"and", "or", "not", "in", "is", "True", "False", "None", "if", "else", "for", "lambda", "async", "await"}
_RESERVED = frozenset(keyword.kwlist) - _GRAMMAR  # no expression of columns needs them, so that they may name columns
_TOKEN = re.compile(
    r"""(?P<quoted>`[^`]*`?)
      | (?P<string>[rRbBuUfF]{0,2}(?:'{3}.*?'{3} | "{3}.*?"{3} | '(?:\\.|[^'\\])*'? | "(?:\\.|[^"\\])*"?))
      | (?P<word>[^\W\d]\w*)
      | (?P<blank>\s+)
      | \d\w* | .
    """,
    re.VERBOSE | re.DOTALL,
)
_NEEDS_TOKENS = re.compile(rf"[`#]|[^\x00-\x7f]|\b(?:{'|'.join(sorted(_RESERVED))})\b")
_METHOD_AS_WORD = re.compile(rf"(\w+)\s+(?:not\s+)?({'|'.join(METHODS)})\s+(['\"])", re.IGNORECASE)
_OTHER_SPELLINGS = (
    (re.compile(r"&&|\|\||\b(?:AND|OR|NOT)\b"), "conditions are joined by and, or and not"),
    (re.compile(r"<>"), "values that differ are compared with !="),
    (re.compile(r"(?<![=<>!])=(?!=)"), "equal values are compared with =="),
    (re.compile(r"^\s*[<>=!*/]|^\s*$"), "a shell runs what stands in backquotes, unless all of it is in '...'"),
)
_IN_BACKQUOTES = "the name of a column that is not a word stands in backquotes: `my column` > 3"


def quoted(name: str) -> str:
    """Return the name of a column as an expression has it: in backquotes unless it is a word."""
    return name if _is_word(name) else f"{QUOTE}{name}{QUOTE}"


def _is_word(name: str) -> bool:
    """Return whether Python's parser takes a name for a name, and returns it as it is."""
    return name.isidentifier() and name not in _GRAMMAR and unicodedata.normalize("NFKC", name) == name


def parse(text: str, columns: Iterable[str]) -> ast.expr:
    """Return the tree of an expression, in which each name stands as `quoted` spells it."""
    odd = [name for name in columns if not _is_word(name)]
    spelled, names = _with_words(text.strip(), odd) if odd or _NEEDS_TOKENS.search(text) else (text.strip(), {})
    try:
        tree = ast.parse(spelled, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        why = e.msg if isinstance(e, SyntaxError) else str(e) or "it is nested too deeply"
        raise InvalidExpression(f'"{text}" is not an expression: {why}', hint=_spelling(text)) from e
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.Name):
            node.id = quoted(names.get(node.id, node.id))
        elif isinstance(node, ast.Attribute):
            node.attr = names.get(node.attr, node.attr)
    return tree


def _with_words(text: str, odd: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Replace names that Python's parser would not return as they are, outside of strings, by words.

    Returns the text, and the names by these words. ``odd`` holds the columns whose names are not words.
    """
    tokens = [(str(m.lastgroup or ""), m[0]) for m in _TOKEN.finditer(text)]
    _check_tokens(text, tokens)
    _check_undivided(text, tokens, odd)
    prefix = "_name"
    while prefix in text:
        prefix += "_"
    names, spelled = dict[str, str](), list[str]()
    for kind, token in tokens:
        name = token[1:-1] if kind == "quoted" else token
        if kind == "quoted" or (kind == "word" and name not in _GRAMMAR and (name in _RESERVED or not _is_word(name))):
            word = f"{prefix}{len(names)}"
            names[word] = name
            spelled.append(f" {word} ")
        else:
            spelled.append(token)
    return "".join(spelled).strip(), names


def _check_tokens(text: str, tokens: Sequence[tuple[str, str]]) -> None:
    """Refuse backquotes without a name, and what the parser would leave out as a comment."""
    for kind, token in tokens:
        if kind == "quoted" and not (len(token) > 2 and token.endswith(QUOTE)):
            what = "there is no name between backquotes" if token == 2 * QUOTE else "a backquote is not closed"
            raise InvalidExpression(f'"{text}" is not an expression: {what}', hint=_IN_BACKQUOTES)
        if token == "#":
            raise InvalidExpression(f'"{text}" is not an expression: # begins nothing', hint=_IN_BACKQUOTES)


def _check_undivided(text: str, tokens: Sequence[tuple[str, str]], odd: Sequence[str]) -> None:
    """Refuse several tokens that are the name of a column if blanks are left out: they compute something else."""
    seen = [token for kind, token in tokens if kind != "blank"]
    begins = {at: k for k, at in enumerate(accumulate(map(len, seen), initial=0))}
    joined = "".join(seen)
    for name in odd:
        squeezed = "".join(name.split())
        if not any(c.isidentifier() for c in squeezed):
            continue  # a number, which is a constant
        at = joined.find(squeezed)
        while at >= 0:
            if begins.get(at + len(squeezed), 0) > begins.get(at, len(seen)) + 1:
                raise InvalidExpression(
                    f'"{text}": the name of the episode column {quoted(name)} needs backquotes.',
                    hint=f"{quoted(name)}, in a shell within '...'; parts in parentheses are computed with",
                )
            at = joined.find(squeezed, at + 1)


def _spelling(text: str) -> str:
    """Return a hint on the spelling of an expression that cannot be parsed."""
    found = _METHOD_AS_WORD.search(text)
    if found:
        return f"{found[1]}.{found[2].lower()}({found[3]}...{found[3]})"
    return next((hint for spelling, hint in _OTHER_SPELLINGS if spelling.search(text)), EXAMPLE)
