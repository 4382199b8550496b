from typing import Any


def declare_resolution(server_args: Any, source: str, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(server_args, name, value)
