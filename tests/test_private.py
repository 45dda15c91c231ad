"""Secrets and personal data are found by form and checksum, and the policy decides what becomes of them."""

from __future__ import annotations

import random
import string
import time

import pytest

from components.data.curation import curate, private
from components.data.document import Document, document_of
from components.data.sources import python_stdlib

REAL = list(python_stdlib.read(python_stdlib.Config(max_documents=60)))
QUIET = [one for one in REAL if not any(private.private_in(one.text).values()) and len(one.text) > 500]


def drawn(draw: random.Random, letters: str, count: int) -> str:
    return "".join(draw.choices(letters, k=count))


def secret(draw: random.Random) -> str:
    """Put together here, so that this file holds none."""
    capitals, letters = string.ascii_uppercase + string.digits, string.ascii_letters + string.digits
    return draw.choice(
        [
            "AKIA" + drawn(draw, capitals, 16),
            "gh" + "p_" + drawn(draw, letters, 36),
            "sk_" + "live_" + drawn(draw, letters, 24),
            "SG." + drawn(draw, letters, 22) + "." + drawn(draw, letters, 43),
            "-----BEGIN " + "RSA PRIVATE KEY-----",
            f"postgres://admin:{drawn(draw, letters, 12)}@db.internal/main",
        ]
    )


def card(draw: random.Random) -> str:
    digits = [4, *(draw.randrange(10) for _ in range(14))]
    total = sum(sum(divmod(d * 2, 10)) if place % 2 == 0 else d for place, d in enumerate(digits))
    whole = "".join(map(str, digits)) + str(-total % 10)
    return draw.choice(["", " ", "-"]).join(whole[i : i + 4] for i in range(0, 16, 4))


def iban(draw: random.Random) -> str:
    account = drawn(draw, string.digits, 18)
    check = 98 - int(f"{account}131400") % 97
    whole = f"DE{check:02d}{account}"
    return draw.choice([whole, " ".join(whole[i : i + 4] for i in range(0, 22, 4))])


def email(draw: random.Random) -> str:
    return f"{drawn(draw, string.ascii_lowercase, 5)}.x+y@mail.{drawn(draw, string.ascii_lowercase, 7)}.org"


def phone(draw: random.Random) -> str:
    end = f"{draw.randrange(10_000):04d}"
    return draw.choice([f"+49 30 90182{end}", f"(212) 555-{end}", f"+1-650-253-{end}"])


def social_security(draw: random.Random) -> str:
    return f"{draw.randrange(100, 600)}-{draw.randrange(10, 99)}-{draw.randrange(1000, 9999)}"


MADE = {
    "secret": secret,
    "card": card,
    "iban": iban,
    "email": email,
    "phone": phone,
    "social_security": social_security,
}


def planted(text: str, value: str, draw: random.Random) -> str:
    lines = text.splitlines()
    lines.insert(draw.randrange(len(lines)), f"value = '{value}'")
    return "\n".join(lines)


@pytest.mark.parametrize("kind", MADE)
def test_what_is_planted_in_real_text_is_found_as_what_it_is(kind: str) -> None:
    draw = random.Random(kind)
    for number in range(60):
        value = MADE[kind](draw)
        found = private.private_in(planted(QUIET[number % len(QUIET)].text, value, draw))
        assert {name for name, count in found.items() if count} == {kind}, value


@pytest.mark.parametrize("kind", ["card", "iban"])
def test_a_number_with_one_wrong_digit_is_no_account(kind: str) -> None:
    draw = random.Random(7)
    for _ in range(60):
        value = MADE[kind](draw)
        place = draw.choice([i for i, character in enumerate(value) if i > 3 and character.isdigit()])
        wrong = value[:place] + str((int(value[place]) + draw.randrange(1, 10)) % 10) + value[place + 1 :]
        assert private.private_in(f"number {wrong}.")[kind] == 0, wrong


@pytest.mark.parametrize(
    "text",
    [
        "@decorator\ndef f(self): ...",
        "a@b",
        "version 3.11.2-1234-5678",
        "sha = 4111111111111111a",
        "0000000000000000",
        "000-12-3456 666-12-3456 912-34-5678 123-00-4567 123-45-0000",
        "2024-01-02 10:11:12",
        "x = 1+234 567",
        "+35236450.6",
        "total = +123 + 4567",
    ],
)
def test_what_only_looks_alike_is_not_taken(text: str) -> None:
    assert not any(private.private_in(text).values())


def with_private() -> list[Document]:
    draw = random.Random(8)
    kinds = ["secret", "email", "card"]
    dirty = [planted(QUIET[i].text, MADE[kind](draw), draw) for i, kind in enumerate(kinds)]
    return [*(document_of(text.encode(), kinds[i]) for i, text in enumerate(dirty)), *QUIET[3:]]


def test_secrets_are_set_aside_and_personal_data_counted() -> None:
    checked = curate.curate(with_private(), curate.Config())
    assert [(one.path, one.reason) for one in checked.set_aside] == [("secret", "secret")]
    found = {kind: one["documents"] for kind, one in checked.report["private"].items() if one["found"]}
    assert found == {"secret": 1, "email": 1, "card": 1}
    assert checked.report["success"]


def test_a_policy_sets_a_kind_aside_or_keeps_it() -> None:
    policy = {"secrets": "count", "personal": {"email": "set_aside", "card": "set_aside"}}
    config = curate.Config.model_validate({"private": policy})
    checked = curate.curate(with_private(), config)
    assert [(one.path, one.reason) for one in checked.set_aside] == [("email", "email"), ("card", "card")]
    kept = curate.curate(with_private(), curate.Config(private=None))
    assert kept.set_aside == []
    assert kept.report["private"] == {}


@pytest.mark.parametrize("piece", ["://a:b", "a@", "+1", "4 ", "AA11 ", "eyJ", "sk-", "aws secret ", "//"])
def test_a_hostile_text_costs_seconds_at_most(piece: str) -> None:
    started = time.process_time()
    private.private_in((piece * 300_000)[:300_000])
    assert time.process_time() - started < 10


def test_a_secret_on_a_very_long_line_is_found() -> None:
    draw = random.Random(9)
    line = "x = 1; " * 20_000
    assert private.private_in(f"{line}k = '{secret(draw)}'; {line}")["secret"] == 1


def test_the_standard_library_holds_no_secret() -> None:
    assert not any(private.private_in(one.text)["secret"] for one in REAL)
