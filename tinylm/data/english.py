"""The little English grammar that made-up sentences need."""

from __future__ import annotations

import re

_HARD_VOWEL = ("uni", "use", "usu", "uk", "ut", "eu", "ewe", "one", "once")
_QUESTIONS = "what which who whom whose where when why how"
_SMALL_WORDS = """
a an the this that these those some any no each every all both many much few more most other another such
i you he she it we they me him her us them my your his its our their one ones
and or but if so than as because while after before until then not
of in on at by for from to with without into onto out up down over under near between about through along
is are was were be been am has have had do does did can could will would must should may might
there here very too also only just
"""
QUESTION_WORDS = frozenset(_QUESTIONS.split())
FUNCTION_WORDS = frozenset(_SMALL_WORDS.split())
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
