"""Train a tokenizer on what will be trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from components.data import tokenizer
from components.data.curation.checked import Checked
from components.data.shards import Config, split_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@task(cache_policy=NO_CACHE)
def train_tokenizer(checked: Checked, settings: tokenizer.Config, shards: Config) -> Tokenizer:
    """A vocabulary learnt from the train split alone: held-out text stays unseen."""
    texts = (document.text for document in split_documents(checked.kept, shards)["train"])
    return tokenizer.train(texts, settings)
