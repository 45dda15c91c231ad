"""Secrets and personal data in a text: found, counted, and kept out of training where the policy says so.

Secrets (keys and tokens of services, private keys) are found by detect-secrets' detectors that know a form;
those that guess by entropy or by the name of a variable call half of all code secret and are left out.
Personal data are found by form, and where the form has a checksum (cards: Luhn, IBAN: ISO 7064) by that too.

Secrets are set aside by default: one in a model can be asked out of it. Personal data are counted only,
since code and documentation are full of example addresses; `personal: {email: set_aside}` is a line away.
About 10 MB of text a second.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from components import plugins
from components.data.curation.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

Policy = Literal["set_aside", "count"]
Kind = Literal["email", "phone", "card", "iban", "social_security"]

DETECTORS = (
    "aws.AWSKeyDetector",
    "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector",
    "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector",
    "jwt.JwtTokenDetector",
    "mailchimp.MailchimpDetector",
    "npm.NpmDetector",
    "openai.OpenAIDetector",
    "private_key.PrivateKeyDetector",
    "pypi_token.PypiTokenDetector",
    "sendgrid.SendGridDetector",
    "slack.SlackDetector",
    "square_oauth.SquareOAuthDetector",
    "stripe.StripeDetector",
    "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)
"""Those of detect-secrets that know a secret by its form and are fast on a whole text."""

LONG_LINE = re.compile(r"[^\n]{1024}")
"""Broken there: some detectors take a time quadratic in the length of a line, minutes for a megabyte."""
LOCAL_PART = re.compile(r"[A-Za-z0-9._%+-]{1,64}\Z")
URL = re.compile(r"://[^\s/@]*\Z")
"""Before an at sign: what follows is the host of a URL with a password, not of an address."""
DOMAIN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![\w-])")
# What may not stand before is asked after the first character: `re` skips to that, three times as fast.
PHONES = (
    re.compile(r"\+(?<![\w.+-].)[1-9](?:[ ()-]{0,2}\d){8,14}(?![\w-]|\.\d)"),
    re.compile(r"\((?<![\w.+-].)[2-9]\d\d\) ?[2-9]\d\d-\d{4}(?![\w-])"),
    re.compile(r"[2-9](?<![\w.+-].)\d\d-[2-9]\d\d-\d{4}(?![\w-])"),
)
CARDS = (
    re.compile(r"[2-6](?<![\w.-].)\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}(?![\w.-])"),
    re.compile(r"3(?<![\w.-].)[47]\d{2}[ -]?\d{6}[ -]?\d{5}(?![\w.-])"),
)
IBAN = re.compile(r"[A-Z](?<!\w.)[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")
SOCIAL_SECURITY = re.compile(r"[0-8](?<![\w.-].)\d\d(?<!000|666)-(?!00)\d\d-(?!0000)\d{4}(?![\w.-])")


class Config(plugins.Config):
    """What becomes of a document that holds secrets or personal data."""

    secrets: Policy = "set_aside"
    """Keys and tokens."""

    personal: dict[Kind, Policy] = Field(default={})
    """By kind of personal data; kinds not named are counted."""


def private_in(text: str) -> dict[str, int]:
    """How many of each kind a text holds: `secret` and the kinds of personal data."""
    broken = LONG_LINE.sub(r"\g<0>\n", text)
    counts = {"secret": sum(1 for detector in _detectors() for _ in detector.analyze_string(broken))}
    return counts | {kind: sum(1 for _ in find(text)) for kind, find in FINDERS.items()}


def with_private(facts: Facts, found: dict[str, int], config: Config | None) -> tuple[Facts, str]:
    """The facts with what was found, and the first kind that the policy keeps out, if any."""
    if config is None:
        return facts, ""
    policies: dict[str, Policy] = {"secret": config.secrets}
    policies.update((kind, policy) for kind, policy in config.personal.items())
    kept_out = [kind for kind, count in found.items() if count and policies.get(kind) == "set_aside"]
    filled = replace(
        facts,
        secrets=found["secret"],
        personal=sum(count for kind, count in found.items() if kind != "secret"),
        forbidden=sum(found[kind] for kind in kept_out),
    )
    return filled, next(iter(kept_out), "")


def _emails(text: str) -> Iterator[str]:
    """Around each at sign, which is far faster than a search for what may stand before one."""
    at = text.find("@")
    while at >= 0:
        local, domain = LOCAL_PART.search(text[max(0, at - 64) : at]), DOMAIN.match(text, at + 1)
        if local and domain and not URL.search(text[max(0, at - 300) : at]):
            yield f"{local.group()}@{domain.group()}"
        at = text.find("@", at + 1)


def _phones(text: str) -> Iterator[str]:
    return (found.group() for pattern in PHONES for found in pattern.finditer(text))


def _cards(text: str) -> Iterator[str]:
    text = IBAN.sub(lambda found: "" if _is_iban(found.group()) else found.group(), text)
    for found in (found for pattern in CARDS for found in pattern.finditer(text)):
        digits = re.sub(r"\D", "", found.group())
        if 13 <= len(digits) <= 19 and len(set(digits)) > 2 and _luhn(digits):
            yield found.group()


def _ibans(text: str) -> Iterator[str]:
    return (found.group() for found in IBAN.finditer(text) if _is_iban(found.group()))


def _social_security(text: str) -> Iterator[str]:
    return (found.group() for found in SOCIAL_SECURITY.finditer(text))


FINDERS: dict[Kind, Callable[[str], Iterator[str]]] = {
    "email": _emails,
    "phone": _phones,
    "card": _cards,
    "iban": _ibans,
    "social_security": _social_security,
}


def _is_iban(written: str) -> bool:
    code = written.replace(" ", "")
    number = "".join(str(int(character, 36)) for character in code[4:] + code[:4])
    return 15 <= len(code) <= 34 and int(number) % 97 == 1


def _luhn(digits: str) -> bool:
    doubled = (int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits)))
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


@cache
def _detectors() -> list[Any]:
    parts = (name.split(".") for name in DETECTORS)
    return [
        getattr(importlib.import_module(f"detect_secrets.plugins.{file}"), kind)() for file, kind in parts
    ]
