from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.client import Client
from tests.http.house import House


@pytest.fixture
async def plot(tmp_path: Path) -> AsyncIterator[House]:
    """Where the test itself opens a house."""
    house = House(f"sqlite:///{tmp_path}/liveness.db")
    yield house
    await house.close()


@pytest.fixture
async def house(plot: House) -> House:
    return await plot.open()


@pytest.fixture
def client(house: House) -> Client:
    return house.client
