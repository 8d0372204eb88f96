"""A model of one file: all that its bytes may be after a power cut, by the contract of the storage alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from walkit.storage import Storage


@dataclass
class ModelFile:
    """The bytes that a power cut may leave in a file: a set for each position.

    -1 means "beyond the end". One possibility is a promise.
    """

    content: bytearray = field(default_factory=bytearray)
    possible: list[set[int]] = field(default_factory=list)

    def reach(self, size: int) -> None:
        """Know positions up to `size`; nothing was promised there."""
        self.possible += [{-1} for _ in range(size - len(self.possible))]

    def change(self, size: int) -> None:
        """Set the size of the content, unsynced: what goes may stay, what comes may be missing or zero."""
        self.reach(size)
        for position in range(min(size, len(self.content)), len(self.possible)):
            self.possible[position] |= {0, -1}
        self.content = self.content[:size].ljust(size, b"\0")

    def write(self, offset: int, data: bytes, sync: bool) -> None:
        """Write; with sync these bytes are promised, and that all before them is within the file."""
        end = offset + len(data)
        if not data:
            return
        if end > len(self.content):
            self.change(end)
        self.content[offset:end] = data
        for position in range(offset, end):
            byte = self.content[position]
            self.possible[position] = {byte} if sync else self.possible[position] | {byte}
        if sync:
            for position in range(offset):
                self.possible[position] = (self.possible[position] - {-1}) | (
                    {0} if -1 in self.possible[position] else set()
                )

    def sync(self) -> None:
        """Promise everything."""
        self.possible = [{byte} for byte in self.content]

    def allows(self, image: bytes) -> bool:
        """Say whether a power cut may leave these bytes."""
        padded: list[int] = [*image, *[-1] * (len(self.possible) - len(image))]
        if len(padded) > len(self.possible):
            return False
        return all(byte in allowed for byte, allowed in zip(padded, self.possible, strict=True))


def whole(storage: Storage, name: str) -> bytes:
    """Return all bytes of a file."""
    file = storage.open(name, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()
