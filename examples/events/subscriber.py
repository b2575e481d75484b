"""Subscribes to a paged cache's events, checks them, and asks for what it missed.

    pip install msgspec pyzmq
    python subscriber.py --endpoint tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558

Ends when nothing arrives any more; if nothing arrives at all, with what the publisher has kept. It has to be running
still: both ways the end is compared with a replay of everything. One line and exit code 1 say what was wrong.
"""

import argparse
import hashlib
import sys
from typing import Any

import msgspec
import zmq

Hash = bytes | int


def structs(positional: bool) -> type:
    """The type of a batch, as msgspec reads it: by position or by name."""

    class Event(msgspec.Struct, tag=True, array_like=positional):
        pass

    class BlockStored(Event):
        block_hashes: list[Hash]
        parent_block_hash: Hash | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class BlockRemoved(Event):
        block_hashes: list[Hash]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return Batch


class Wrong(Exception):
    """What was wrong, in one line."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def cbor(value: Any) -> bytes:
    """Canonical CBOR of what a block's identity is made of."""

    def head(major: int, number: int) -> bytes:
        for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
            if number < 24:
                return bytes([major << 5 | number])
            if number < 1 << 8 * width:
                return bytes([major << 5 | info]) + number.to_bytes(width, "big")
        raise OverflowError(number)

    match value:
        case None:
            return b"\xf6"
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case str():
            return head(3, len(value.encode())) + value.encode()
        case bytes():
            return head(2, len(value)) + value
        case _:
            return head(4, len(value)) + b"".join(map(cbor, value))


class Index:
    """What can be found, as far as the events tell."""

    def __init__(self, seed: str | None) -> None:
        self.root = None if seed is None else hashlib.sha256(cbor(seed)).digest()
        self.known: set[Hash] = set()
        self.stored = self.removed = self.recomputed = 0

    def apply(self, event: Any) -> None:
        match type(event).__name__:
            case "BlockStored":
                self.apply_stored(event)
            case "BlockRemoved":
                for name in event.block_hashes:
                    check(name in self.known, f"{name!r} is removed and was not there")
                    self.known.remove(name)
                    self.removed += 1
            case _:
                self.known.clear()

    def apply_stored(self, event: Any) -> None:
        names, size = event.block_hashes, event.block_size
        check(len(event.token_ids) == len(names) * size, "as many tokens as blocks have")
        check(event.medium == "CPU", f"the medium is {event.medium}")
        keys = event.extra_keys or [None] * len(names)
        check(len(keys) == len(names), "one entry of extra keys per block")
        parent = event.parent_block_hash
        for at, name in enumerate(names):
            check(parent is None or parent in self.known, f"the parent of {name!r} was not announced")
            check(name not in self.known, f"{name!r} is stored twice")
            # A version of an adapter's content is in the identity and not in the event.
            if self.root is not None and event.lora_name is None:
                extras = [
                    ("mm", *key) if isinstance(key, list | tuple) else ("cache_salt", key) for key in keys[at] or ()
                ]
                tokens = event.token_ids[at * size : (at + 1) * size]
                content = (self.root if parent is None else parent, tokens, extras or None)
                check(hashlib.sha256(cbor(content)).digest() == name, f"{name!r} is not sha256(cbor({content}))")
                self.recomputed += 1
            self.known.add(name)
            self.stored += 1
            parent = name


def replayed(context: zmq.Context, options: argparse.Namespace, start: int) -> list[tuple[int, bytes]]:
    """All batches from this number on that the publisher has."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(options.replay)
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        try:
            empty, topic, number, payload = socket.recv_multipart()
        except zmq.Again:
            raise Wrong(f"no answer from {options.replay}: is the publisher still running?") from None
        check(empty == b"" and len(number) == 8, "frames of an answer")
        if int.from_bytes(number, "big", signed=True) == -1:
            check(topic == payload == b"", "the end of an answer is empty")
            socket.close()
            return batches
        check(topic == options.topic.encode(), "the topic of an answer")
        batches.append((int.from_bytes(number, "big"), payload))


def run(options: argparse.Namespace) -> str:
    decoder = msgspec.msgpack.Decoder(structs(options.positional))
    index = Index(options.seed)
    context = zmq.Context()
    live = context.socket(zmq.SUB)
    live.connect(options.endpoint)
    live.setsockopt_string(zmq.SUBSCRIBE, options.topic)

    seen: list[bytes] = []
    heard = asked = 0

    def take(number: int, payload: bytes) -> None:
        check(number == len(seen), f"batch {number} where {len(seen)} was next")
        for event in decoder.decode(payload).events:
            index.apply(event)
        seen.append(payload)

    while live.poll(options.wait_ms if heard else 10_000):
        topic, number_bytes, payload = live.recv_multipart()
        check(topic == options.topic.encode() and len(number_bytes) == 8, "the frames of a batch")
        number = int.from_bytes(number_bytes, "big")
        heard += 1
        if number > len(seen):  # Missed some, those before we came among them.
            for missed, old in replayed(context, options, len(seen)):
                if missed < number:
                    take(missed, old)
                    asked += 1
        take(number, payload)

    if heard == 0:  # All was over before we came.
        for number, payload in replayed(context, options, 0):
            take(number, payload)
            asked += 1
    check(len(seen) > 0, "nothing arrived, and nothing is kept for a replay")
    everything = replayed(context, options, 0)
    check([payload for _, payload in everything] == seen, "a replay of all is not what was heard")
    check(replayed(context, options, len(seen)) == [], "a replay of nothing is not empty")
    context.destroy(linger=0)
    return (
        f"{len(seen)} batches, {asked} of them asked for; {index.stored} blocks stored, {index.removed} removed, "
        f"{index.recomputed} names computed again"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:5557")
    parser.add_argument("--replay", default="tcp://127.0.0.1:5558")
    parser.add_argument("--topic", default="kv-events")
    parser.add_argument("--positional", action="store_true", help="events are arrays, as before vLLM had maps")
    parser.add_argument("--seed", help="compute names again: the seed of the publisher's sha256-cbor")
    parser.add_argument("--wait-ms", type=int, default=2_000, help="end when nothing arrives for so long")
    try:
        print("ok:", run(parser.parse_args()))
        return 0
    except (Wrong, msgspec.DecodeError, zmq.ZMQError) as error:
        print(f"subscriber: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
