"""The key rule: at which dot of a member's name its sample's key ends and its extension begins. Pure.

WebDataset's convention is the first dot of the base name. Names such as ``v1.5_0001.jpg`` mean another one: by the
convention, ``v1.5_0001.jpg`` and ``v1.5_0002.jpg`` would be one sample. So the names of a whole data set decide:
`observe` collects what they show, and `decide` chooses the rule or refuses to guess.

Every rule cuts at a dot of the base name, so no rule joins what the first dot separates.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from wdsdist.errors import ArgumentError

AUTO, FIRST_DOT, LAST_DOT = "auto", "first-dot", "last-dot"

_PACKED = r"gz|bz2|xz|zst"
_LAST = re.compile(rf"\.(?:[A-Za-z][\w-]*\.(?:{_PACKED})|[^.]+)$")
_WORD = re.compile(r"(?!_*\d+(?:[^A-Za-z\d]|$))[\w+-]{1,40}")  # what fields are called: seg, mp4, left-cam, 512x512
_NUMBER = re.compile(r"\d{1,4}")
_KNOWN = re.compile(
    r"(?:jpe?g|jpe|png|p[bgnp]m|bmp|gif|tiff?|webp|jp2|avif|hei[cf]|jxl|svg|wav|mp3|flac|ogg|opus|m4a|aac|mp4|m4v|avi|"
    r"mov|mkv|webm|txt|text|transcript|caption|jsonl?|csv|tsv|xml|ya?ml|html?|md|pdf|srt|vtt|cls|npy|npz|pth?|mp|msg|"
    rf"cbor|parquet|bin|tar)(?:\.(?:{_PACKED}))?",
    re.IGNORECASE,
)
_FEW_WORDS, _MOST_WORDS = 16, 1000
"""Distinct compound extensions that any data set may have; and the most that are remembered."""

Pair = tuple[str, str]


def check_rule(rule: str) -> str:
    """Return a key rule. Raises `ArgumentError` for a regular expression that is none."""
    if not isinstance(rule, str):
        raise ArgumentError(f"key is {rule!r}: it must be {_rules()}")
    try:
        cutter(rule)
    except (re.error, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"key is {rule!r}, which is no regular expression ({error}): it must be {_rules()}"
        ) from None
    return rule


def _rules() -> str:
    return f"{AUTO!r}, {FIRST_DOT!r}, {LAST_DOT!r}, or a regular expression of the key in the file's name"


@functools.lru_cache(64)
def cutter(rule: str) -> Callable[[str], int]:
    """Return a function from a base name to the place of the dot that ends its key; 0 or less where there is none.

    ``last-dot`` takes ``json.gz`` and the like for one extension. A regular expression is that of the key: it matches
    from the start of the base name up to a dot.

    >>> [cutter(rule)("v1.5_01.json.gz") for rule in ("first-dot", "last-dot", r"v[\\d._]+")]
    [2, 7, 7]
    """
    if rule in (AUTO, FIRST_DOT):
        return lambda name: name.find(".")
    if rule == LAST_DOT:
        return _last_dot
    pattern = re.compile(rf"(?:{rule})(?=\..)", re.DOTALL)
    return lambda name: found.end() if (found := pattern.match(name)) else 0


def _last_dot(name: str) -> int:
    found = _LAST.search(name)
    return found.start() if found else 0


def is_cut_alike(extension: str) -> bool:
    """Return whether the last dot cuts off this extension too, which is all that follows the first dot.

    >>> is_cut_alike("jpg"), is_cut_alike("json.gz"), is_cut_alike("seg.png")
    (True, True, False)
    """
    return "." not in extension or _last_dot(f"x.{extension}") == 1


def escaped(key: str) -> str:
    """Return a key as it is packed under another rule than ``first-dot``, so that all readers cut names alike.

    ``urllib.parse.unquote`` gives the key back. Dots in folders stay.

    >>> escaped("v.2/IMG.2021.01 100%")
    'v.2/IMG%2E2021%2E01 100%25'
    """
    folder, slash, base = key.replace("%", "%25").rpartition("/")
    return folder + slash + base.replace(".", "%2E")


@dataclass(slots=True)
class Evidence:
    """What the names of some members show about the key rule; empty for names with one dot each.

    Of each kind of pair the first is kept.
    """

    apart: Pair | None = None
    """Two names which the first dot would put into one sample, or one twice with an odd extension."""
    together: Pair | None = None
    """Two names of one sample, which the last dot would tear apart."""
    torn: Pair | None = None
    """The same, of compound extensions such as ``seg.png`` that a sample may have."""
    unclear: Pair | None = None
    """Two names that may be either."""
    lone: set[str] = field(default_factory=set)
    """Numbers between the dots of names that share the first part with no other."""
    words: set[str] = field(default_factory=set)
    """Compound extensions, up to `_MOST_WORDS` of them."""
    num_words: int = 0
    """Members with compound extensions."""

    def __bool__(self) -> bool:
        return bool(self.apart or self.together or self.torn or self.unclear or self.lone or self.words)

    def add(self, other: Evidence) -> None:
        """Add the evidence of other members."""
        for kind in ("apart", "together", "torn", "unclear"):
            self._note(kind, getattr(other, kind))
        self.lone.update(other.lone)
        self._add_words(other.words, other.num_words)

    def _note(self, kind: str, pair: Pair | None) -> None:
        if getattr(self, kind) is None:
            setattr(self, kind, pair)

    def _add_words(self, words: Iterable[str], count: int) -> None:
        self.num_words += count
        for extension in words:
            if len(self.words) < _MOST_WORDS:
                self.words.add(extension)

    def look_at(self, group: Sequence[str]) -> None:
        """Look at the names that agree up to the first dot."""
        parts: dict[str, list[str]] = {}  # extensions by the key that the last dot gives
        prefix = group[0][: group[0].find(".", group[0].rfind("/") + 1)]
        for name in group:
            rest = name[len(prefix) :]
            cut = _last_dot(f"x{rest}") - 1
            if cut < 0:  # such as `a.b.`
                self._note("together", (name, name))
                continue
            parts.setdefault(rest[:cut], []).append(rest[cut + 1 :])
        for middle in parts:
            if middle:
                self._at_middle(prefix, middle, parts)

    def _at_middle(self, prefix: str, middle: str, parts: dict[str, list[str]]) -> None:
        """Look at the names with the same text between the first and the last dot."""
        extensions = parts[middle]
        name = f"{prefix}{middle}.{extensions[0]}"
        parent = middle.rpartition(".")[0]
        while parent and parent not in parts:
            parent = parent.rpartition(".")[0]
        nested = parent in parts
        above = f"{prefix}{parent}.{parts[parent][0]}" if nested else name
        other = next((one for one in parts if one not in (middle, parent)), parent if nested else None)
        beside = name if other is None else f"{prefix}{other}.{parts[other][0]}"
        if _is_words(middle[1:]):
            self._add_words([f"{middle[1:]}.{one}" for one in extensions], len(extensions))
            if len(parts) > 1:
                self._note("torn", (beside if other == parent or not nested else above, name))
            return
        is_known = any(map(_KNOWN.fullmatch, extensions))
        tail = middle[len(parent) + 1 :] if nested else middle[1:]
        is_number, alike = bool(_NUMBER.fullmatch(tail)), nested and bool(set(parts[parent]) & set(extensions))
        if nested and (_is_words(tail) or not alike):
            self._note("together", (above, name))
            if _is_words(tail) or (is_number and len(extensions) == 1):
                return
        if is_number and len(parts) == 1:
            if is_known:
                self.lone.add(tail)
        elif not is_known or (is_number and len(extensions) == 1):
            if len(parts) > 1:
                self._note("unclear", (beside, name))
        else:
            self._note("apart", (name, beside))


def skim(extensions: Iterable[str], count: int, pair: Pair | None) -> Evidence | None:
    """Return the evidence of names by their extensions alone; ``None`` where the names have to be looked at.

    Args:
        extensions: the distinct extensions, which begin at the first dot.
        count: members with compound extensions.
        pair: two of these in one sample.
    """
    compound = [extension for extension in extensions if not is_cut_alike(extension)]
    if len(compound) > _FEW_WORDS or not all(map(_is_words, map(_middle, compound))):
        return None
    return Evidence(torn=pair, words=set(compound), num_words=count)


def observe(groups: Iterable[Sequence[str]]) -> Evidence:
    """Return the evidence of names; each group has all those that agree up to the first dot of the base name.

    >>> observe([["v1.5_0001.jpg", "v1.5_0001.txt", "v1.5_0002.jpg"]]).apart
    ('v1.5_0001.jpg', 'v1.5_0002.jpg')
    >>> observe([["7.json", "7.1.jpg", "7.2.jpg"]]).together
    ('7.json', '7.1.jpg')
    """
    found = Evidence()
    for group in groups:
        found.look_at(group)
    return found


def merge(every: Iterable[Evidence]) -> Evidence:
    """Return the evidence of all parts of a data set."""
    found = Evidence()
    for one in every:
        found.add(one)
    return found


def decide(found: Evidence, what: str) -> str:
    """Return the key rule that names show: ``first-dot`` or ``last-dot``.

    Raises `ArgumentError` where they do not show it; ``what`` is the data set, for the message.
    """
    count, against = len(found.words), found.together or found.torn
    # As many as there are names: those of persons, say.
    are_no_fields = count >= _MOST_WORDS or (count > _FEW_WORDS and found.num_words < 2 * count)
    if found.apart or (are_no_fields and not found.together):
        if not against:
            return LAST_DOT
        # A name such as `a.b.` stands against the last dot by itself.
        shown = found.apart if found.apart and against[0] == against[1] else against
    elif found.together or not found.unclear:
        return LAST_DOT if len(found.lone) > 1 and not against else FIRST_DOT
    else:
        shown = found.unclear
    one, other = sorted(shown)
    raise ArgumentError(
        f"{what} holds {one} and {other}: whether they are one sample does not show from their names. Say where keys "
        f"end by --key (key=): first-dot makes them one sample, as the WebDataset convention says, last-dot two; or "
        f"give a regular expression of the key"
    )


def _middle(extension: str) -> str:
    return extension[: _last_dot(f"x.{extension}") - 2]


def _is_words(middle: str) -> bool:
    """Return whether what stands between the dots looks like names of fields.

    >>> _is_words("info"), _is_words("seg.left"), _is_words("5_0001"), _is_words("0 (Clean Version)")
    (True, True, False, False)
    """
    return all(map(_WORD.fullmatch, middle.split(".")))
