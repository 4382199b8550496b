"""Stands in for SGLang's module of this name where it is not installed: the
names and signatures that the fork's embedding transfer uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class KVPoll:
    """Numbers, so that MIN over ranks is what all of them have reached."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class BaseKVManager(ABC):
    @abstractmethod
    def __init__(self, args: Any, disaggregation_mode: Any,
                 server_args: Any) -> None:
        ...


class BaseKVSender(ABC):
    @abstractmethod
    def send(self, kv_indices: Any) -> None:
        ...

    @abstractmethod
    def poll(self) -> Any:
        ...

    @abstractmethod
    def failure_exception(self) -> None:
        ...


class BaseKVReceiver(ABC):
    @abstractmethod
    def init(self, *args: Any, **kwargs: Any) -> None:
        ...

    @abstractmethod
    def poll(self) -> Any:
        ...

    @abstractmethod
    def failure_exception(self) -> None:
        ...
