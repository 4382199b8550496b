"""Stands in for grpcio where it is not installed: servers of this process, by
their address, and blocking calls of their methods."""

import asyncio
import enum

SERVERS = {}  # address: Server


class StatusCode(enum.Enum):
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(Exception):
    """An error of a call, whose text has several lines."""

    def __init__(self, code, details):
        super().__init__(f"<call\n\tstatus = {code}\n\tdetails = {details}>")
        self.code, self.details = lambda: code, lambda: details


class Context:
    async def abort(self, code, details):
        raise RpcError(code, details)


class Server:
    """A server whose methods run on an event loop."""

    def __init__(self, loop):
        self.loop, self.methods = loop, {}

    def add_generic_rpc_handlers(self, handlers):
        for made in handlers:
            self.methods.update(made)


def method_handlers_generic_handler(service, methods):
    return {f"/{service}/{name}": call for name, call in methods.items()}


def unary_unary_rpc_method_handler(behavior):
    return behavior


class Channel:
    def __init__(self, target):
        self.target = target

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def unary_unary(self, method):
        def call(request, timeout=None):
            server = SERVERS.get(self.target)
            if server is None:
                raise RpcError(StatusCode.UNAVAILABLE, "no connection")
            if method not in server.methods:
                raise RpcError(StatusCode.UNIMPLEMENTED, "no such method")
            return asyncio.run_coroutine_threadsafe(
                server.methods[method](request, Context()),
                server.loop).result(60)
        return call


def insecure_channel(target):
    return Channel(target)
