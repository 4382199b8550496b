"""The dtypes of fields, one row each: what numpy, DLPack and torch call them.

A test holds the names and sizes against dtype.def, the C side's table.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Dtype(NamedTuple):
    typestr: str  # numpy's; unsigned bits of the same size where it has none
    code: int  # DLPack's DLDataTypeCode
    torch: str  # name in torch and ml_dtypes

    @property
    def bytes(self) -> int:
        return int(self.typestr[2:])

    @property
    def tagged(self) -> bool:
        """True if numpy lacks it, so that arrays hold its bits."""
        return self.typestr[1] == "u" and self.code != 1

    @property
    def plain(self) -> Tuple[str, int]:
        """(typestr, code) for readers of only integers, floats and bf16: its
        bits for anything else."""
        if self.code in (0, 1, 2, 4):
            return self.typestr, self.code
        return f"{self.typestr[0]}u{self.bytes}", 1


DTYPES: Dict[str, Dtype] = {
    "bf16": Dtype("<u2", 4, "bfloat16"),
    "f16": Dtype("<f2", 2, "float16"),
    "f32": Dtype("<f4", 2, "float32"),
    "f8e4m3": Dtype("|u1", 10, "float8_e4m3fn"),
    "f8e5m2": Dtype("|u1", 12, "float8_e5m2"),
    "i8": Dtype("|i1", 0, "int8"),
    "u8": Dtype("|u1", 1, "uint8"),
    "i16": Dtype("<i2", 0, "int16"),
    "i32": Dtype("<i4", 0, "int32"),
    "i64": Dtype("<i8", 0, "int64"),
    "bool": Dtype("|b1", 6, "bool"),
}
BY_TORCH = {d.torch: name for name, d in DTYPES.items()}
