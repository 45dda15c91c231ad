"""Signing manifests, so that nobody who can write to the store can hand us a checkpoint of his own.

A checkpoint holds pickles, which run code when they are loaded. Digests prove that files fit their manifest,
not who wrote it. With a key, `manifest.json.sig` beside the manifest is its HMAC-SHA256; the manifest holds
the digest of every file, its stage, step, data and configuration, so the signature fits no other checkpoint,
and a whole checkpoint copied under another step's name is found out by the step it says.

    (umask 077; openssl rand -hex 32 > ~/.stanchion-checkpoint-key)
    stanchion run pretrain --set profile.secrets.checkpoint_key_file=~/.stanchion-checkpoint-key
    export STANCHION_CHECKPOINT_KEY_FILE=~/.stanchion-checkpoint-key     # the same, for every command

The path travels in the environment, the key never does: each process that signs or verifies reads the file.
Without a key signed checkpoints are read like any other. What a signature does not say is that gates have
passed: the state beside a checkpoint is not signed, so who can write to the store can still take a signed
checkpoint out of quarantine, or bring an older one back.

Pattern: Signed Manifest
Problem: a checkpoint is a program; who can write to the bucket runs code on every machine that resumes.
Answer: one signature over the manifest, by a key the store never sees, verified before anything is unpickled.
Trade-off: a secret to hand to every machine that saves or loads; who loses it signs all checkpoints anew.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from components import plugins
from components.errors import CheckpointCorrupt, ConfigError, NotSigned

VARIABLE = "STANCHION_CHECKPOINT_KEY_FILE"
FORMAT = "hmac-sha256"
CONTEXT = b"stanchion checkpoint manifest 1\n"
"""In front of what is signed: the key signs nothing else, so no other signature passes for one."""
LEAST_BYTES = 32


class Secrets(plugins.Config):
    """Files that hold secrets; never the secrets themselves, since records keep the settings of a run."""

    checkpoint_key_file: str | None = None
    """Key that checkpoints are signed with, on every machine of the job; then unsigned ones are refused."""


def use(secrets: Secrets) -> None:
    """From now on, here and in every process started from here, this key signs; None leaves it as it is."""
    if secrets.checkpoint_key_file:
        os.environ[VARIABLE] = str(Path(secrets.checkpoint_key_file).expanduser().absolute())
        _key()


def inherited() -> dict[str, str]:
    """What a process elsewhere needs in its environment: the path, which must be there as well."""
    return {VARIABLE: os.environ[VARIABLE]} if os.environ.get(VARIABLE) else {}


def is_on() -> bool:
    """Whether a key is configured."""
    return bool(os.environ.get(VARIABLE))


def signature(content: bytes) -> bytes:
    """Of a manifest's bytes: one line that names the method, the key it was made with, and the code."""
    return _line(_key(), content)


def refuse_unless_signed(content: bytes, signed: bytes | None, what: str) -> None:
    """NotSigned unless our key made the signature, CheckpointCorrupt when it is of other bytes.

    Without a key all may pass.
    """
    if not is_on():
        return
    key = _key()
    if hmac.compare_digest(signed or b"", _line(key, content)):
        return
    if signed is None:
        raise NotSigned(
            f"{what} is not signed: there is no {what}.sig, and {VARIABLE} asks for signatures; use a signed "
            "checkpoint, or sign this one if you know where it comes from: stanchion sign CHECKPOINT"
        )
    if signed.split()[1:2] != [_name(key).encode()]:
        raise NotSigned(
            f"{what} is signed by another key than ours, {_name(key)}, as {what}.sig says; nothing of it was "
            f"loaded: use another checkpoint, or name the right key in {VARIABLE}"
        )
    raise CheckpointCorrupt(
        f"{what} is not what our key signed in {what}.sig; nothing of it was loaded: use another checkpoint"
    )


def _line(key: bytes, content: bytes) -> bytes:
    return f"{FORMAT} {_name(key)} {_code(key, content)}\n".encode()


def _code(key: bytes, content: bytes) -> str:
    return hmac.new(key, CONTEXT + content, hashlib.sha256).hexdigest()


def _name(key: bytes) -> str:
    """Tells keys apart without telling them."""
    return hmac.new(key, b"stanchion key name 1\n", hashlib.sha256).hexdigest()[:12]


def _is_private(found: os.stat_result) -> bool:
    """Ours alone; or root's, as secrets are mounted in a container, where our group may read."""
    if found.st_uid == os.getuid():
        return not found.st_mode & 0o077
    return found.st_uid == 0 and not found.st_mode & 0o037


def _key() -> bytes:
    """The key, from a file that only its owner can read."""
    path = Path(os.environ[VARIABLE]).expanduser()
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{VARIABLE}={path} is no file; name a file that holds the key")
            if not _is_private(found):
                raise ConfigError(
                    f"{path} has mode {stat.S_IMODE(found.st_mode):04o} and belongs to user {found.st_uid}: "
                    f"others can read or change the key; run `chmod 600 {path}` as its owner, and change the "
                    "key if others have had it"
                )
            key = file.read().strip()
    except OSError as error:
        raise ConfigError(
            f"{VARIABLE}={path} cannot be read: {error.strerror}; make a key there with "
            f"`(umask 077; openssl rand -hex 32 > {path})`, or unset {VARIABLE}"
        ) from None
    if len(key) < LEAST_BYTES:
        raise ConfigError(
            f"the key in {path} has {len(key)} bytes, at least {LEAST_BYTES} are needed; make one with "
            f"`(umask 077; openssl rand -hex 32 > {path})`"
        )
    return key
