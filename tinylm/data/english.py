"""The little English grammar that made-up sentences need."""

from __future__ import annotations

import re

_HARD_VOWEL = ("uni", "use", "usu", "uk", "ut", "eu", "ewe", "one", "once")
_SILENT_H = ("hour", "honest", "heir", "honour")


def with_article(noun: str) -> str:
    """The noun with "a" or "an" in front, chosen by its sound ("an hour", "a uniform")."""
    first = noun.lower()
    vowel = first.startswith(_SILENT_H) or (first[:1] in "aeiou8" and not first.startswith(_HARD_VOWEL))
    return f"{'an' if vowel else 'a'} {noun}"


def plural_of(noun: str) -> str:
    """The regular plural of a noun ("cats", "boxes", "berries")."""
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return noun + "es"
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + "s"
