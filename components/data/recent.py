"""What was used last, within a limit of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key; the least recently used go when their bytes together exceed the limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """The value, if it is still there."""
        if (found := self._kept.get(key)) is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: Value, size: int) -> Value:
        """Keep a value of so many bytes, alone if need be."""
        self.size += size - self._kept.pop(key, (None, 0))[1]
        self._kept[key] = (value, size)
        while self.size > self.limit and len(self._kept) > 1:
            self.size -= self._kept.popitem(last=False)[1][1]
        return value

    def __len__(self) -> int:
        return len(self._kept)
