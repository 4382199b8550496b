from typing import Any


def resolving_view(server_args: Any) -> Any:
    return server_args
