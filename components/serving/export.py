"""From a validated checkpoint to a release: the served number format, read back and compared, published once.

Pattern: Immutable Release
Problem: weights that are edited in place cannot be rolled back to, and nobody knows which answered yesterday.
Answer: every export is a new folder named by its digest, complete before it appears, never written again.
Trade-off: each release is a full copy of the weights, so old ones must be retired.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from components import contents, storage
from components.checkpoints.names import folder_of
from components.checkpoints.restore import Checkpoint, open_checkpoint, why
from components.errors import CheckpointCorrupt, ServingError
from components.records import Artifact
from components.serving import release as releases
from components.serving.config import Serving
from components.serving.release import MANIFEST, Release

logger = logging.getLogger(__name__)

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
NEEDED = ("model.safetensors", "config.json", "tokenizer.json")
END_OF_TEXT = "<|endoftext|>"


def export(checkpoint: Artifact, weights: str, scratch: Path, settings: Serving, *, model: str) -> Artifact:
    """Publish `<weights>/<first 12 of the digest>/`; the same checkpoint and settings are exported once."""
    vouched_for = _vouched_for(checkpoint, scratch)
    source, step = vouched_for.path, vouched_for.manifest.step
    built = scratch / "release"
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir(parents=True)
    _write_weights(source / "model.safetensors", built / "model.safetensors", DTYPES[settings.precision])
    _write_model_files(source, built, DTYPES[settings.precision])
    _write_manifest(built, checkpoint, step, settings, model)
    digest = releases.digest(built)
    url = storage.join(weights, digest[:12])
    if storage.exists(storage.join(url, MANIFEST)):
        releases.verify(storage.fetch(url, scratch), digest)
        shutil.rmtree(built)
    else:
        storage.publish_folder(built, url, last=MANIFEST)
    logger.info("release %s of step %d: %s", digest[:12], step, url)
    return Artifact(name="weights", url=url, digest=digest)


def _vouched_for(artifact: Artifact, scratch: Path) -> Checkpoint:
    """The recorded checkpoint, if gates have passed it and its bytes are as they were written."""
    checkpoint = open_checkpoint(artifact.url, scratch=scratch)
    logger.info("exports %s", why(folder_of(artifact.url), artifact.url))
    if checkpoint.digest != artifact.digest:
        raise CheckpointCorrupt(
            f"{artifact.url} has digest {checkpoint.digest[:12]}, the record says {artifact.digest[:12]}; "
            "run `stanchion run align` again"
        )
    if missing := [name for name in NEEDED if not (checkpoint.path / name).is_file()]:
        raise CheckpointCorrupt(
            f"{artifact.url} has no {', '.join(missing)}, without which nothing is served"
        )
    return checkpoint


def _write_weights(source: Path, target: Path, dtype: str) -> None:
    """Cast, write, read back, compare: what is on the disk is what was meant."""
    import torch
    from safetensors.torch import load_file, save_file

    wanted = getattr(torch, dtype)
    tensors = {
        name: tensor.to(wanted) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(source).items()
    }
    save_file(tensors, target, metadata={"format": "pt"})
    written = load_file(target)
    differing = [name for name, tensor in tensors.items() if not torch.equal(tensor, written[name])]
    if differing:
        raise ServingError(f"{target} reads back other values for {', '.join(differing[:3])}; check the disk")


def _write_model_files(source: Path, built: Path, dtype: str) -> None:
    """Configuration and tokenizer; what the checkpoint lacks gets the plain default."""
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    _write(built / "config.json", config | {"dtype": dtype})
    for name in COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, built / name)
    if not (built / "generation_config.json").exists():
        ends = {f"{end}_token_id": config.get(f"{end}_token_id") for end in ("bos", "eos", "pad")}
        _write(built / "generation_config.json", ends)
    if not (built / "tokenizer_config.json").exists():
        ends = {f"{end}_token": END_OF_TEXT for end in ("bos", "eos", "pad")}
        fast = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        _write(built / "tokenizer_config.json", fast | ends)


def _write_manifest(built: Path, checkpoint: Artifact, step: int, settings: Serving, model: str) -> None:
    config = json.loads((built / "config.json").read_text())
    length = settings.max_model_len or int(config["max_position_embeddings"])
    flags = ["--dtype", DTYPES[settings.precision], "--max-model-len", str(length), "--seed", "0"]
    manifest = Release(
        source=checkpoint,
        step=step,
        precision=settings.precision,
        model=model,
        max_model_len=length,
        vocab_size=int(config["vocab_size"]),
        engine_flags=(*flags, "--generation-config", "vllm", *settings.engine_flags),
        files=contents.of(built, manifest=releases.MANIFEST),
    )
    _write(built / MANIFEST, manifest.model_dump(mode="json"))
    for path in built.iterdir():
        path.chmod(0o444)


def _write(path: Path, content: dict[str, Any]) -> None:
    storage.write_json(str(path), content)
