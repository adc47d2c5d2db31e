"""
A callback as one number: stored with its request, and computed anew from the record that came.

Pure. The number is Spark's `xxhash64(head, key, value)`, so that Spark can compute it from received records. XXH64
hashes each part with the hash of the parts before it as its seed. The seed of the first part is 42, and a part that is
null is skipped. The head lists the parts, and has the headers in their order, with their sizes:

    kv;12:2:timer-expiry1713:0:timer-request4:-:more

So no key differs from an empty key, and no header can begin inside another. The value of `timer-request` counts as
empty if it names the request that the number is kept with. All else of a callback follows from the request's record
alone.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat, starmap
from operator import attrgetter

from xxhash import xxh64_intdigest

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.sums import SEED
from kafka_timers.core.wire import EXPIRY_HEADER, ID_HEADER, REQUEST_HEADER, TOKEN_HEADER, Future, callback_headers

_UNNAMED = b""
_TOKEN, _ID = TOKEN_HEADER.encode(), ID_HEADER.encode()
_TOKEN_SIZE, _ID_SIZE = len(_TOKEN), len(_ID)
# Many requests are due in the same seconds: those of some hours are kept.
_SECONDS_MAX = 50_000


def callback_hash(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the number of a record, signed, with 64 bits. For *headers* that name the request, see above."""
    head = _present(key, value) + b"".join(starmap(_header, headers))
    hashed = xxh64_intdigest(head, SEED)
    for part in (key, value):
        if part is not None:
            hashed = xxh64_intdigest(part, hashed)
    return signed(hashed)


def callback_hash_of(future: Future, second: int) -> int:
    """Return the number of the callback of *future*, which is due in the UNIX *second*."""
    shown = Shown.of(future)
    # Ids and tokens are text in a Future, but workers handle them as bytes.
    headers: Iterable[tuple[str, bytes | str | None]] = callback_headers(future, second, _UNNAMED)  # type: ignore[arg-type]
    as_bytes = ((name, value.encode() if isinstance(value, str) else value) for name, value in headers)
    return callback_hash(shown.key, shown.value, as_bytes)


def tombstone_hash(key: bytes) -> int:
    """Return the number of the tombstone with this *key*."""
    return callback_hash(key, None, [(REQUEST_HEADER, _UNNAMED)])


def plain_hashes(
    futures: Sequence[Future], seconds: Sequence[int], ids: Sequence[bytes], *, have_tokens: bool
) -> Iterable[int]:
    """
    Return the numbers of `callback_hash_of` for *futures* that only have topic, key, value, timer id and token.

    The numbers have 64 bits and no sign. This is ten times faster, since nearly all of it runs in C.

    Args:
        ids: their timer ids; empty if none has one.
    """
    keys = list(map(str.encode, map(attrgetter("callBackKey"), futures)))
    values = map(attrgetter("callBack"), futures)
    all_keyed = all(keys)
    heads: Iterable[int]
    if all_keyed and not ids and not have_tokens:
        heads = _plain_heads(seconds)
    else:
        ends = _ends_of(seconds)
        names = [b"%d:%d:%b%b" % (_ID_SIZE, len(each), _ID, each) if each else b"" for each in ids] or repeat(b"")
        if have_tokens:
            tokens = (future.token.encode() for future in futures)
            names = [
                b"%d:%d:%b%b%b" % (_TOKEN_SIZE, len(token), _TOKEN, token, name) if token else name
                for token, name in zip(tokens, names, strict=False)
            ]
        texts = [
            b"%b;%b%b" % (b"kv" if key else b"v", name, end) for key, name, end in zip(keys, names, ends, strict=False)
        ]
        heads = map(xxh64_intdigest, texts, repeat(SEED))
    if all_keyed:
        return map(xxh64_intdigest, values, map(xxh64_intdigest, keys, heads))
    hashed = (xxh64_intdigest(key, head) if key else head for key, head in zip(keys, heads, strict=True))
    return map(xxh64_intdigest, values, hashed)


def signed(digest: int) -> int:
    """Return *digest*, a number of 64 bits, with a sign, since Spark has no unsigned numbers."""
    return digest - ((digest >> 63) << 64)


# The hash of the head for each second.
_heads: dict[int, int] = {}


def _plain_heads(seconds: Sequence[int]) -> Iterable[int]:
    """Return the hashes of the heads of callbacks with a key and no other headers, due in *seconds*."""
    fresh = set(seconds).difference(_heads)
    if len(_heads) + len(fresh) > _SECONDS_MAX:
        _heads.clear()
        fresh = set(seconds)
    texts = map(b"kv;".__add__, _ends_of(fresh))
    _heads.update(zip(fresh, map(xxh64_intdigest, texts, repeat(SEED)), strict=True))
    return map(_heads.__getitem__, seconds)


def _ends_of(seconds: Collection[int]) -> Iterable[bytes]:
    """Return the last of the service's own headers for each second, the same for every callback of it."""
    if seconds and min(seconds) >= _TEN_DIGITS[0] and max(seconds) <= _TEN_DIGITS[1]:
        return map(_END_OF_TEN.__mod__, seconds)
    digits = (b"%d" % second for second in seconds)
    return [_END % (len(each), each) for each in digits]


def _present(key: bytes | None, value: bytes | None) -> bytes:
    return (b"" if key is None else b"k") + (b"" if value is None else b"v") + b";"


def _header(name: str, value: bytes | None) -> bytes:
    raw = name.encode()
    if value is None:
        return b"%d:-:%b" % (len(raw), raw)
    return b"%d:%d:%b%b" % (len(raw), len(value), raw, value)


# To be completed with length and digits of the second.
_END = b"%d:%%d:%b%%b%b" % (len(EXPIRY_HEADER), EXPIRY_HEADER.encode(), _header(REQUEST_HEADER, _UNNAMED))
# To be completed with the second only, if that lies from 2001 to 2286, where all have ten digits.
_TEN_DIGITS = (10**9, 10**10 - 1)
_END_OF_TEN = _END % (10, b"%d")
