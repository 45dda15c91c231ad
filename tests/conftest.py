"""What several test files share: a quiet environment and one temporary Prefect server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from components import quiet

quiet.apply()
os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "components,maturity")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One temporary Prefect server and database for all flow tests of a session."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
