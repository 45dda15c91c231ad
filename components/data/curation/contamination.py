"""Training text that would give away what a model is measured on: held-out documents and evaluation sets.

Runs of 13 words, of which a training document shares enough with one protected text, set it aside: as many
as a copied passage of `held_out_passage` or `evaluation_passage` words holds. Runs that occur in more than
`boilerplate_documents` documents (licences, idioms) prove nothing and are ignored.

Why a passage of 50 words for held-out documents and of 13 for evaluation sets: documents of one corpus share
idioms by right. Of the demo's 664 training modules 72 share some run of 13 words with a held-out one, 23 a
passage of 50 words: tables of character sets, drivers of one compiler, licences. An evaluation set comes
from elsewhere, so one run is proof enough.

A protected text of fewer than 13 words is looked for as a whole; one of fewer than `min_words` is too common
to be told from chance, is not looked for, and is counted as unscreened in the report. The rule about
boilerplate also forgives an evaluation set that leaked into many documents: set `boilerplate_documents` to
null where that is feared. In memory stay 64-bit hashes of the protected texts, never text.

References: GPT-3, arXiv 2005.14165 appendix C (runs of 13 words, more than 10 documents); Lee et al. 2022,
arXiv 2107.06499 (copies of 50 tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from components import plugins
from components.data.curation.words import run_hashes, word_hashes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from components.data.curation.words import Hashes


class Config(plugins.Config):
    """How much of a protected text a training document may hold."""

    words_per_run: int = Field(default=13, ge=5, le=50)
    """Words in a run that two texts share."""

    held_out_passage: int = Field(default=50, ge=5)
    """Words of a held-out document that a training document must copy to be set aside; 13 is strictest."""

    evaluation_passage: int = Field(default=13, ge=5)
    """The same for a text of an evaluation set."""

    boilerplate_documents: int | None = Field(default=10, ge=1)
    """Runs in more documents than this are ignored; null ignores none."""

    min_words: int = Field(default=8, ge=3)
    """Protected texts of fewer words are not looked for."""

    evaluation_sets: dict[str, Annotated[plugins.Config, plugins.OneOf("components.data.sources")]] = Field(
        default={}
    )
    """Sources, by name, of texts that a model is evaluated on."""


class Screen:
    """Protected texts as hashes of their runs, and what documents share with them.

    First `protect` every text, then `look` at every document once, then ask for the `leaks`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.unscreened = 0
        self._names: list[str] = []
        self._needed: list[int] = []
        self._protected: list[Hashes] = []
        self._lengths = {config.words_per_run}
        self._shared: dict[int, NDArray[np.intp]] = {}
        self._runs: Hashes | None = None

    @property
    def protected(self) -> int:
        """Texts that are looked for."""
        return len(self._names)

    def protect(self, text: str, name: str, passage: int) -> None:
        """Look for copies of `passage` words of this text; `name` is what a leak is reported with."""
        import numpy as np

        words = word_hashes(text)
        if len(words) < self.config.min_words:
            self.unscreened += 1
            return
        length = min(self.config.words_per_run, len(words))
        runs = np.unique(run_hashes(words, length))
        self._lengths.add(length)
        self._names.append(name)
        self._needed.append(max(1, min(passage - length + 1, len(runs))))
        self._protected.append(runs)

    def look(self, number: int, text: str, *, may_leak: bool) -> None:
        """Count a document's runs, and remember those it shares with a protected text if it may leak one."""
        import numpy as np

        if not self._names:
            return
        known = self._sorted()
        words = word_hashes(text)
        asked = np.unique(np.concatenate([run_hashes(words, length) for length in sorted(self._lengths)]))
        places = np.searchsorted(known, asked)
        places = places[known[np.minimum(places, len(known) - 1)] == asked]
        self._seen[places] += 1
        if may_leak and len(places := self._telling(places)):
            self._shared[number] = places

    def leaks(self) -> dict[int, str]:
        """Numbers of the documents to set aside, each with the name of what it would leak most of."""
        import numpy as np

        needed, found = np.array(self._needed), {}
        for number, places in self._shared.items():
            held = [self._owners[self._starts[i] : self._starts[i + 1]] for i in self._telling(places)]
            shared = np.bincount(np.concatenate(held), minlength=len(needed)) if held else np.zeros(1)
            over = shared / needed if held else shared
            if over.max() >= 1:
                found[number] = self._names[int(over.argmax())]
        return found

    def _telling(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        limit = self.config.boilerplate_documents
        return places if limit is None else places[self._seen[places] <= limit]

    def _sorted(self) -> Hashes:
        """Every protected run once, in order; texts `_owners[_starts[i]:_starts[i + 1]]` hold run i."""
        import numpy as np

        if self._runs is None:
            runs = np.concatenate(self._protected)
            owners = np.repeat(np.arange(len(self._protected)), [len(one) for one in self._protected])
            order = np.argsort(runs, kind="stable")
            self._runs, starts = np.unique(runs[order], return_index=True)
            self._owners = owners[order].astype(np.int32)
            self._starts = np.append(starts, len(runs))
            self._seen = np.zeros(len(self._runs), dtype=np.int32)
            self._protected = []
        return self._runs
