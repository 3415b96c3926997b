"""What disks, networks and editors do to the bytes of a file."""

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st

Damage = Callable[[bytes], bytes]


def flip(data: bytes, bits: list[int]) -> bytes:
    """Turn some bits over."""
    changed = bytearray(data)
    for bit in bits:
        if changed:
            changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    return bytes(changed)


def cut(data: bytes, share: float) -> bytes:
    """Keep the beginning only."""
    return data[: int(share * len(data))]


def behead(data: bytes, share: float) -> bytes:
    """Keep the end only."""
    return data[int(share * len(data)) :]


def insert(data: bytes, share: float, extra: bytes) -> bytes:
    """Put bytes in between."""
    at = int(share * len(data))
    return data[:at] + extra + data[at:]


def overwrite(data: bytes, share: float, extra: bytes) -> bytes:
    """Put bytes over others: a sector of zeros, a piece of another file."""
    at = int(share * len(data))
    return data[:at] + extra[: len(data) - at] + data[at + len(extra) :]


def repeat(data: bytes, start: float, end: float) -> bytes:
    """Write a piece twice."""
    a, b = sorted((int(start * len(data)), int(end * len(data))))
    return data[:b] + data[a:b] + data[b:]


_shares = st.floats(0, 1)
_pieces = st.one_of(st.binary(max_size=40), st.integers(1, 4096).map(bytes), st.just(b"\xff" * 16), st.just(b"PAR1"))
damages: st.SearchStrategy[Damage] = st.one_of(
    st.lists(st.integers(0, 2**24), min_size=1, max_size=8).map(lambda bits: partial(flip, bits=bits)),
    _shares.map(lambda share: partial(cut, share=share)),
    _shares.map(lambda share: partial(behead, share=share)),
    st.builds(lambda share, extra: partial(insert, share=share, extra=extra), _shares, _pieces),
    st.builds(lambda share, extra: partial(overwrite, share=share, extra=extra), _shares, _pieces),
    st.builds(lambda start, end: partial(repeat, start=start, end=end), _shares, _shares),
)
"""Functions from a file's bytes to damaged ones."""
