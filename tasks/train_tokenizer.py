"""Train a tokenizer on what will be trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from components.config import Data
from components.data.curation.checked import Checked
from components.data.writing import vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@task(cache_policy=NO_CACHE)
def train_tokenizer(checked: Checked, data: Data) -> Tokenizer:
    """A vocabulary learnt from the train split alone: held-out text stays unseen."""
    return vocabulary.learn(checked.kept, data.tokenizer, data.shards)
