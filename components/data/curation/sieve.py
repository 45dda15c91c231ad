"""The first pass over a source: each document is kept or set aside before the next one is read.

First its flaw and the rules, then the exact copy, what is private in it, and last the almost exact copy,
because only what is kept may stand for its copies. What grows with the corpus is hashes: 32 bytes of each
content, and the minima of `near_duplicates`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Protocol

from components.data.curation import near_duplicates, private
from components.data.curation.checked import SetAside, set_aside
from components.data.curation.facts import Facts, facts_of
from components.data.curation.near_duplicates import NearDuplicates
from components.data.curation.rules import Rule
from components.data.curation.statistics import Statistics
from components.data.document import Document


class Store(Protocol):
    """Where kept documents go: a spool, or a list."""

    def append(self, document: Document, /) -> None: ...

    def __getitem__(self, index: int, /) -> Document: ...


class Sieve:
    """What is known after the documents that have gone by."""

    def __init__(
        self,
        asked: list[Rule],
        store: Store,
        statistics: Statistics,
        *,
        alike: near_duplicates.Config | None,
        policy: private.Config | None,
    ) -> None:
        self.statistics = statistics
        self.left_out: list[SetAside] = []
        self.characters = 0
        self.digest = hashlib.sha256()
        self.private_found: Counter[str] = Counter()
        self.private_documents: Counter[str] = Counter()
        self._asked, self._store, self._policy = asked, store, policy
        self._seen: set[bytes] = set()
        self._alike = NearDuplicates(alike, lambda number: store[number].text) if alike else None

    def keep(self, document: Document) -> bool:
        """Store a document, or set it aside with its reason."""
        facts = facts_of(document)
        self.digest.update(facts.sha256.encode())
        self.characters += facts.characters
        if left_out := self._left_out(document, facts):
            self.left_out.append(left_out)
            return False
        self._store.append(document)
        return True

    def _left_out(self, document: Document, facts: Facts) -> SetAside | None:
        if reason := document.flaw or self._broken(facts):
            return set_aside(document, reason)
        content = bytes.fromhex(document.sha256)
        if content in self._seen:
            return set_aside(document, "duplicate", of=document.key)
        self._seen.add(content)
        found = private.private_in(document.text) if self._policy else {}
        self._count(found)
        facts, kind = private.with_private(facts, found, self._policy)
        if self._broken(facts):
            return set_aside(document, kind)
        if self._alike and (first := self._alike.first_like(document.text)) is not None:
            return set_aside(document, "near_duplicate", of=self._store[first].key)
        self.statistics.add(facts)
        return None

    def _broken(self, facts: Facts) -> str | None:
        return next((reason for rule in self._asked if (reason := rule.reason(facts))), None)

    def _count(self, found: dict[str, int]) -> None:
        self.private_found.update(found)
        self.private_documents.update(kind for kind, count in found.items() if count)
