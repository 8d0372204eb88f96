"""gRPC for processes of a world, over its network: what walkit uses of it, in the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from walkit.replication.transport.grpc_common import grpc as real
from walkit.simulate.runner import Killed, Life
from walkit.simulate.world_locks import Queue
from walkit.simulate.world_network import Network


class LinkError(real.RpcError):  # type: ignore[misc]
    """A call that has ended badly."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> Any:
        """See grpc.Call."""
        return self._code

    def details(self) -> str:
        """See grpc.Call."""
        return self._details


class Abort(Exception):  # noqa: N818 - as gRPC raises one in a handler
    """Ends a handler that has aborted its call."""


@dataclass(frozen=True)
class Packet:
    """One step of a call on the network. `data` is a message, or the reason for the end."""

    call: int
    kind: str
    """"open", "data", "half" (no more requests) or "end"."""
    data: Any = None


def _until_end(messages: Queue) -> Iterator[bytes]:
    """Yield messages up to the end of a call; raise how it ended if it ended badly."""
    while isinstance(data := messages.get(), bytes):
        yield data
    if data is not None:
        raise data


class WorldGrpc:
    """The module `grpc` of a world."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def insecure_channel(self, address: str, options: object = ()) -> Channel:
        """See grpc."""
        return Channel(self._network, address)

    def server(self, executor: object, options: object = (), maximum_concurrent_rpcs: int = 0) -> Server:
        """See grpc."""
        return Server(self._network)

    @staticmethod
    def stream_stream_rpc_method_handler(serve: Any) -> Any:
        """See grpc."""
        return serve

    @staticmethod
    def method_handlers_generic_handler(service: str, handlers: dict[str, Any]) -> dict[str, Any]:
        """See grpc."""
        return {f"/{service}/{name}": serve for name, serve in handlers.items()}


class Channel:
    """A client's channel; each call finds the server for itself."""

    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address
        self._calls: list[ClientCall] = []

    def _call(self, method: str, metadata: Any) -> ClientCall:
        call = ClientCall(self._network, self._address)
        self._calls = [each for each in self._calls if not each.is_over] + [call]
        call.send("open", (method, tuple(metadata or ())))
        return call

    def stream_stream(self, method: str) -> Callable[..., ClientCall]:
        """See grpc.Channel."""

        def begin(requests: Iterator[bytes], metadata: Any = ()) -> ClientCall:
            call = self._call(method, metadata)

            def pump() -> None:
                for data in requests:
                    call.send("data", data)
                call.send("half")

            call.life.process.runner.spawn(call.life, pump, "link")
            return call

        return begin

    def unary_unary(self, method: str) -> UnaryCall:
        """See grpc.Channel."""
        return UnaryCall(lambda metadata: self._call(method, metadata))

    def close(self) -> None:
        """See grpc.Channel."""
        for call in self._calls:
            call.cancel()


class ClientCall:
    """A call as its client sees it: the answers, in order, and how it ends."""

    def __init__(self, network: Network, address: str) -> None:
        life = network.runner.life
        assert life is not None
        self.network, self.life, self.address, self.is_over = network, life, address, False
        self.number = network.new_call(life, self._take)
        self._answers = Queue(network.runner)
        self.on_end: Callable[[], object] = lambda: None

    def send(self, kind: str, data: Any = None) -> None:
        """Send something to the server."""
        if not self.is_over:
            self.network.to_server(self.life, self.address, Packet(self.number, kind, data))

    def _take(self, packet: Packet) -> None:
        if self.is_over:
            return
        if packet.kind == "data":
            self._answers.put(packet.data)
        else:
            self._end(None if packet.data is None else LinkError(*packet.data))

    def _end(self, error: LinkError | None) -> None:
        self.is_over = True
        self.network.forget(self.number)
        self._answers.put(error)
        self.on_end()

    def cancel(self, code: Any = real.StatusCode.CANCELLED, details: str = "cancelled") -> None:
        """See grpc.Call."""
        if not self.is_over:
            self.send("end")
            self._end(LinkError(code, details))

    def __iter__(self) -> Iterator[bytes]:
        return _until_end(self._answers)

    def add_done_callback(self, act: Callable[[ClientCall], object]) -> None:
        """See grpc.Future."""
        self.on_end = lambda: act(self)
        if self.is_over:
            act(self)

    def result(self) -> bytes:
        """See grpc.Future; once."""
        found = list(self)
        if not found:
            raise LinkError(real.StatusCode.UNKNOWN, "the call ended without an answer")
        return found[0]


class UnaryCall:
    """A method of one message and one answer."""

    def __init__(self, begin: Callable[[Any], ClientCall]) -> None:
        self._begin = begin

    def future(self, data: bytes, timeout: float, metadata: Any = ()) -> ClientCall:
        """See grpc.UnaryUnaryMultiCallable."""
        call = self._begin(metadata)
        call.send("data", data)
        call.send("half")
        late = real.StatusCode.DEADLINE_EXCEEDED
        runner = call.network.runner
        runner.after(timeout * 1000, lambda: call.life.process.deliver(lambda: call.cancel(late, "too late")))
        return call

    def __call__(self, data: bytes, timeout: float, metadata: Any = ()) -> bytes:
        """See grpc.UnaryUnaryMultiCallable."""
        return self.future(data, timeout, metadata).result()


class Server:
    """A server of one life of a process."""

    def __init__(self, network: Network) -> None:
        life = network.runner.life
        assert life is not None
        self.network, self.life, self._methods = network, life, dict[str, Any]()
        self._port = 0
        self.calls: dict[int, ServerCall] = {}

    def add_generic_rpc_handlers(self, handlers: tuple[dict[str, Any], ...]) -> None:
        """See grpc.Server."""
        for each in handlers:
            self._methods |= each

    def add_insecure_port(self, place: str) -> int:
        """See grpc.Server."""
        self._port = int(place.rpartition(":")[2])
        return self._port

    def start(self) -> None:
        """See grpc.Server."""
        self.network.servers[self._port] = self

    def take(self, client: Life, packet: Packet) -> None:
        """Take what a client has sent."""
        call = self.calls.get(packet.call)
        if call is None and packet.kind == "open":
            method, metadata = packet.data
            call = self.calls[packet.call] = ServerCall(self, client, packet.call, metadata)
            serve = self._methods[method]
            self.network.runner.spawn(self.life, lambda call=call: self._serve(call, serve), "call")  # type: ignore[misc]
        elif call is None:
            if packet.kind != "end":
                gone = (real.StatusCode.UNAVAILABLE, "the call is not known here")
                self.network.to_client(self.life, client, Packet(packet.call, "end", gone))
        elif packet.kind == "end":
            call.on_disconnect()
        elif packet.kind != "open":  # it may come twice
            call.requests.put(packet.data)

    def _serve(self, call: ServerCall, serve: Any) -> None:
        answers, end = serve(iter(call), call), None
        try:
            for data in answers:
                if call.is_over:
                    break
                self.network.to_client(self.life, call.client, Packet(call.number, "data", data))
        except Abort:
            end = call.aborted
        except Killed:
            raise
        except Exception as error:  # noqa: BLE001 - as gRPC answers it
            end = (real.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            answers.close()
            if self.calls.pop(call.number, None) is not None and not call.is_over:
                call.is_over = True
                self.network.to_client(self.life, call.client, Packet(call.number, "end", end))


class ServerCall:
    """A call as its server sees it: gRPC's context, and the requests."""

    def __init__(self, server: Server, client: Life, number: int, metadata: Any) -> None:
        self._server, self.client, self.number, self._metadata = server, client, number, metadata
        self.requests = Queue(server.network.runner)
        self.is_over = False
        self.aborted: Any = None
        self._callbacks: list[Callable[[], object]] = []

    def __iter__(self) -> Iterator[bytes]:
        return _until_end(self.requests)

    def on_disconnect(self) -> None:
        """The client has ended the call."""
        if not self.is_over:
            self.is_over = True
            self.requests.put(LinkError(real.StatusCode.CANCELLED, "the client is gone"))
            for act in self._callbacks:
                act()

    def cancel(self) -> None:
        """See grpc.ServicerContext."""
        if not self.is_over:
            end = (real.StatusCode.CANCELLED, "the server has ended the call")
            self._server.network.to_client(self._server.life, self.client, Packet(self.number, "end", end))
            self.on_disconnect()

    def abort(self, code: Any, details: str) -> None:
        """See grpc.ServicerContext."""
        self.aborted = (code, details)
        raise Abort(details)

    def add_callback(self, act: Callable[[], object]) -> bool:
        """See grpc.ServicerContext."""
        self._callbacks.append(act)
        return not self.is_over

    def peer(self) -> str:
        """See grpc.ServicerContext."""
        return self.client.process.name

    def invocation_metadata(self) -> Any:
        """See grpc.ServicerContext."""
        return self._metadata
