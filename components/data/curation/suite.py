"""Great Expectations over a frame, and the guards that keep it from passing on nothing.

It passes an empty frame, a column of nulls and an empty suite, and reports a check that broke as one that
failed. Here each of these is a DataError.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.errors import DataError


@dataclass(frozen=True)
class Expectation:
    """One expectation by its Great Expectations class, without importing it."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What one expectation found."""

    expectation: str
    column: str
    success: bool
    observed: str


def validate(
    name: str, columns: Mapping[str, Sequence[Any]], expectations: Sequence[Expectation]
) -> list[Finding]:
    """Findings in the order asked; the guards raise, what the data fails is a finding."""
    _refuse_nothing(name, columns, expectations)
    results = _ask(name, columns, expectations)
    if len(results) != len(expectations):
        raise DataError(f"{len(results)} of {len(expectations)} expectations on {name} were evaluated")
    for result in results:
        if (broke := _exception(result)) is not None:
            raise DataError(f"{result.expectation_config.type} on {name} broke instead of answering: {broke}")
    return [_finding(result) for result in results]


def _refuse_nothing(
    name: str, columns: Mapping[str, Sequence[Any]], expectations: Sequence[Expectation]
) -> None:
    if not expectations:
        raise DataError(f"no expectation was asked of {name}: an empty suite passes anything")
    if not columns or not all(columns.values()):
        raise DataError(f"no row in {name}: an empty frame passes any suite")
    for column, values in columns.items():
        if all(value is None for value in values):
            raise DataError(f"column '{column}' of {name} is all null: most expectations skip nulls")


def _ask(name: str, columns: Mapping[str, Sequence[Any]], expectations: Sequence[Expectation]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports sre_constants
        import great_expectations as gx
        import great_expectations.expectations as kinds
    import pandas as pd

    # It sets its own level to INFO, only to say where its temporary folder is.
    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = _no_progress_bars()
    asset = context.data_sources.add_pandas("memory").add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch(
        {"dataframe": pd.DataFrame(columns)}
    )
    asked = [
        getattr(kinds, one.kind)(**one.settings, meta={"place": place})
        for place, one in enumerate(expectations)
    ]
    suite = gx.ExpectationSuite(name=name, expectations=asked)
    results = batch.validate(suite, result_format="SUMMARY").results
    # It answers grouped by column, not in the order asked.
    return sorted(results, key=lambda result: int(result.expectation_config.meta["place"]))


def _no_progress_bars() -> Any:
    from great_expectations.data_context.types.base import ProgressBarsConfig

    return ProgressBarsConfig(globally=False, metric_calculations=False)


def _exception(result: Any) -> str | None:
    """A broken metric hides one level deeper than a broken expectation."""
    info = result.exception_info or {}
    for one in (info, *(value for value in info.values() if isinstance(value, dict))):
        if one.get("raised_exception"):
            return str(one.get("exception_message"))
    return None


def _finding(result: Any) -> Finding:
    settings, figures = result.expectation_config.kwargs, result.result
    if "unexpected_count" in figures:
        observed = f"{figures['unexpected_count']} of {figures['element_count']} do not"
    else:
        observed = str(figures.get("observed_value"))
    return Finding(
        expectation=result.expectation_config.type.removeprefix("expect_"),
        column=str(settings.get("column", "")),
        success=bool(result.success),
        observed=observed,
    )
