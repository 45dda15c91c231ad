"""Pages of case studies: one self-contained page each, and a gallery of all that were run.

No script, no outside host; legible in the light, in the dark and on paper.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from components import storage
from components.observability import canvas
from components.observability.timeline import timeline
from components.records import RunFolder
from components.study import ANCHORS, FORMULA, Range, Result, interval, number

logger = logging.getLogger(__name__)

PAGE = Path(__file__).with_name("study.html.j2")
GALLERY = Path(__file__).with_name("gallery.html.j2")
STYLE = Path(__file__).with_name("study.css")


def publish(folder: RunFolder, result: Result) -> dict[str, str]:
    """Write result, page and gallery; their URLs by name."""
    name = result.case.name
    urls = {
        "study": folder.path("studies", f"{name}.json"),
        "page": folder.path("report", f"{name}.html"),
        "gallery": folder.path("report", "gallery.html"),
    }
    storage.write_text(urls["study"], result.model_dump_json(indent=1) + "\n")
    storage.write_text(urls["page"], page(result))
    storage.write_text(urls["gallery"], gallery(results(folder)))
    logger.info("case study %s: %s", name, urls["page"])
    return urls


def keep(folder: Path, result: Result) -> None:
    """Keep figures and picture where they go with the code."""
    name, picture = result.case.name, timeline(result.study, result.case.pattern, alone=True)
    storage.write_text(str(folder / f"{name}.json"), result.model_dump_json(indent=1) + "\n")
    storage.write_text(str(folder / f"{name}.svg"), picture + "\n")


def results(folder: RunFolder) -> list[Result]:
    """Every study that was run, as it last came out."""
    found = [name for name in storage.listing(folder.path("studies")) if name.endswith(".json")]
    return [Result.model_validate_json(storage.read_bytes(folder.path("studies", name))) for name in found]


def page(result: Result) -> str:
    """The page of one study."""
    without, with_pattern = result.cost.overall
    return _rendered(
        PAGE,
        result=result,
        case=result.case,
        picture=timeline(result.study, result.case.pattern),
        numbers=_numbers(result),
        anchors=ANCHORS,
        formula=FORMULA,
        overall={"without": without, "with": with_pattern},
    )


def gallery(found: list[Result]) -> str:
    """The list of studies."""
    cards = [(result, timeline(result.study, result.case.pattern)) for result in found]
    return _rendered(GALLERY, cards=cards, passed=sum(result.passed for result in found))


def as_markdown(result: Result) -> str:
    """The verdict for a Prefect artifact."""
    lines = [f"# {result.case.title}", "", result.study.verdict, ""]
    lines += ["| number | measured | expected | |", "|---|---|---|---|"]
    lines += [
        f"| {row['name']} | {row['value']} | {row['expected']} | {'✓' if row['passed'] else '✗'} |"
        for row in _numbers(result)
    ]
    return "\n".join(lines)


def money_range(amounts: Range, currency: str) -> str:
    """A range of money, rounded to two digits that mean something."""
    return f"{amount_range(amounts)} {currency}"


def amount_range(amounts: Range) -> str:
    """A range of hours, incidents or money, each to two digits."""
    low, high = (_rounded(amount) for amount in amounts)
    return low if low == high else f"{low} to {high}"


def _rounded(amount: float) -> str:
    if amount < 100:
        return f"{amount:.2g}"
    digits = len(str(int(amount)))
    return f"{round(amount, 2 - digits):,.0f}"


def _numbers(result: Result) -> list[dict[str, Any]]:
    measured, expect = result.study.numbers, result.case.expect
    return [
        {
            "name": verdict.gate,
            "value": number(measured[verdict.gate]) if verdict.gate in measured else "not measured",
            "expected": interval(expect[verdict.gate]) if verdict.gate in expect else "no range",
            "passed": verdict.passed,
        }
        for verdict in result.verdicts
    ]


def _rendered(template: Path, **context: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"money": money_range, "amount": amount_range, "lead": _lead, "prose": _prose}
    colours = {"light": canvas.css(dark=False), "dark": canvas.css(dark=True)}
    return engine.from_string(template.read_text()).render(**context, **colours, style=STYLE.read_text())


def _lead(paragraph: str) -> tuple[str, str]:
    """`Symptom: it stood` as its label and its words; a paragraph without a label has an empty one."""
    label, colon, words = paragraph.partition(": ")
    if not colon or len(label.split()) > 2:
        return "", paragraph
    is_name = "/" in words.split()[0]
    return label, words if is_name else words[:1].upper() + words[1:]


def _prose(text: str) -> Any:
    """Text with `code` set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
