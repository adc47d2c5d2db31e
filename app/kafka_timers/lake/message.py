"""
Make fields of protobuf messages in SQL, as hexadecimal digits to concatenate. Python would have to handle every row.

Numbers and lengths are varints of a fixed size. Their upper bytes may be empty, and every parser accepts that.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

_VARINT, _BYTES = 0, 2
_LENGTH_BYTES = 4


def number(field: int, value: Column, size: int) -> Column:
    """Return field *field* with a bigint *value* of at most 7 * *size* bits, 8 bytes at most."""
    return F.concat(_tag(field, _VARINT), _varint(value, size))


def flag(field: int) -> Column:
    """Return field *field* with the value true."""
    return F.concat(_tag(field, _VARINT), F.lit("01"))


def text(field: int, value: Column) -> Column:
    """Return field *field* with a string *value*."""
    return nested(field, F.hex(F.encode(value, "UTF-8")))


def nested(field: int, *content: Column) -> Column:
    """Return field *field* with a message made of *content*."""
    digits = F.concat(*content)
    return F.concat(_tag(field, _BYTES), _varint(F.length(digits) / 2, _LENGTH_BYTES), digits)


def bytes_of(*content: Column) -> Column:
    """Return *content* as binary."""
    return F.unhex(F.concat(*content))


def _tag(field: int, kind: int) -> Column:
    # One byte, enough for numbers up to 15. Later fields are never written here: a copy has its original's bytes.
    return F.lit(f"{field << 3 | kind:02X}")


def _varint(value: Column, size: int) -> Column:
    # Seven bits in each byte, the lowest first; a set eighth bit says that another byte follows.
    value, digits = value.cast("bigint"), F.lit(0).cast("bigint")
    for at in range(size):
        seven = F.shiftright(value, 7 * at).bitwiseAND(F.lit(0x7F))
        more = 0x80 if at < size - 1 else 0
        digits = digits.bitwiseOR(F.shiftleft(seven.bitwiseOR(F.lit(more)), 8 * (size - 1 - at)))
    # The first byte has its eighth bit set, so no leading digit is missing.
    return F.hex(digits)
