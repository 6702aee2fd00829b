"""A router as strangers write it: follows a publisher over ZeroMQ in a process of its own, with nothing of the library.

    python event_subscriber.py ENDPOINT REPLAY_ENDPOINT TOPIC [SNAPSHOT_ENDPOINT]

Commands on standard input, one answer each on standard output:

    expect JSON     go on until the state is that, or fail after 60 s; the state: {"group/medium": [hashes in order]}
    restarted       go on until the publisher was seen to begin anew, for 1 s at most: yes or no
    miss N          lose the next N messages, or those of 1 s
    facts           what was seen so far

Counts one removal for each store. A number that is missing is asked for at the replay socket, as is what was published before this
process was there; a number that was there before with another batch means that the publisher has begun anew, and everything is
asked for. An answer that does not come in time, as the publisher is gone or the machine is busy, is asked for again.

With a snapshot endpoint, nothing is asked for at the replay socket: a gap, a number that goes back, and the first batch of all are
answered by a snapshot, after which the stream goes on with the number that it names.
"""

import json
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import zmq


class Router:
    def __init__(self, endpoint: str, replay_endpoint: str, topic: str, snapshot_endpoint: str = "") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.set_hwm(0)
        self.socket.connect(endpoint)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self.replay_endpoint = replay_endpoint
        self.snapshot_endpoint = snapshot_endpoint
        self.publisher_id = ""
        self.topic = topic.encode()
        self.next_sequence = 0
        self.seen: dict[int, bytes] = {}
        self.stored: dict[str, Counter[int]] = {}
        self.facts = {"live": 0, "replays": 0, "snapshots": 0, "restarts": 0, "heartbeats": 0, "first": "", "errors": []}

    def state(self) -> dict[str, list[int]]:
        return {place: sorted(hashes) for place, hashes in self.stored.items() if +hashes}

    def take(self, sequence: int, payload: bytes) -> None:
        batch: Any = msgspec.msgpack.decode(payload)
        self.facts["heartbeats"] += not batch[1]
        for event in batch[1]:
            if not self.facts["first"]:
                self.facts["first"] = event["type"]
            self.take_event(event)
        self.next_sequence = sequence + 1
        self.seen[sequence] = payload

    def take_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self.stored.clear()
            return
        place = f"{event.get('group_idx')}/{event['medium']}"
        hashes = self.stored.setdefault(place, Counter())
        if event["type"] == "BlockStored":
            parent = event["parent_block_hash"]
            full = event.get("kv_cache_spec_kind", "full_attention") == "full_attention"
            if full and parent is not None and not any(other[parent] for other in self.stored.values()):
                self.facts["errors"].append(f"parent {parent} is unknown")
            if len(event["token_ids"]) != event["block_size"] * len(event["block_hashes"]):
                self.facts["errors"].append("tokens do not fill the blocks")
            hashes.update(event["block_hashes"])
        else:
            hashes.subtract(event["block_hashes"])
        if any(count not in (0, 1) for count in hashes.values()):
            self.facts["errors"].append(f"not one removal for each store: {event}")
        self.stored[place] = +hashes

    def replay(self, first: int) -> bool:
        """Whether all of the answer has come."""
        self.facts["replays"] += 1
        socket = self.context.socket(zmq.DEALER)
        socket.set_hwm(0)
        socket.connect(self.replay_endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        is_whole = False
        while not is_whole and socket.poll(500):
            frames = socket.recv_multipart()
            if frames[2] == (-1).to_bytes(8, "big", signed=True):
                is_whole = True
                continue
            sequence = int.from_bytes(frames[2], "big")
            if sequence >= self.next_sequence and frames[1] == self.topic:
                self.take(sequence, frames[3])
        socket.close(linger=0)
        return is_whole

    def take_snapshot(self) -> bool:
        """Whether all of it has come: then the state is that of the batches before the number that it names."""
        self.facts["snapshots"] += 1
        socket = self.context.socket(zmq.DEALER)
        socket.set_hwm(0)
        socket.connect(self.snapshot_endpoint)
        socket.send_multipart([b"", b"snapshot"])
        answer: list[list[bytes]] = []
        while socket.poll(500):
            answer.append(socket.recv_multipart())
            if answer[-1][2] == (-1).to_bytes(8, "big", signed=True):
                break
        socket.close(linger=0)
        if not answer or answer[-1][1:] != [b"", (-1).to_bytes(8, "big", signed=True), b""]:
            return False
        header = msgspec.msgpack.decode(answer[0][3])
        batches = answer[1:-1]
        if len(batches) != header["num_batches"] or any(frames[:3] != answer[0][:3] for frames in batches):
            self.facts["errors"].append(f"a snapshot that is not as its header says: {header}")
        if self.publisher_id not in ("", header["publisher_id"]):
            self.facts["restarts"] += 1
        self.publisher_id = header["publisher_id"]
        self.stored.clear()
        self.seen.clear()
        for frames in batches:
            self.take(header["resume_sequence"] - 1, frames[3])
        self.next_sequence = header["resume_sequence"]
        return True

    def step_with_snapshots(self) -> None:
        if self.publisher_id == "" and not self.take_snapshot():
            return
        if not self.socket.poll(50):
            return
        _topic, number, payload = self.socket.recv_multipart()
        sequence = int.from_bytes(number, "big")
        if sequence > self.next_sequence or self.seen.get(sequence, payload) != payload:
            self.take_snapshot()
        elif sequence == self.next_sequence:
            self.facts["live"] += 1
            self.take(sequence, payload)

    def step(self) -> None:
        if self.snapshot_endpoint:
            self.step_with_snapshots()
            return
        if not self.socket.poll(50):
            self.replay(self.next_sequence)
            return
        topic, number, payload = self.socket.recv_multipart()
        sequence = int.from_bytes(number, "big")
        if sequence < self.next_sequence and self.seen.get(sequence) != payload:
            self.facts["restarts"] += 1
            self.stored.clear()
            self.seen.clear()
            self.next_sequence = 0
        if sequence > self.next_sequence and not self.replay(self.next_sequence):
            return
        if sequence >= self.next_sequence:
            self.facts["live"] += 1
            self.take(sequence, payload)

    def expect(self, state: dict[str, list[int]]) -> str:
        deadline = time.monotonic() + 60
        while self.state() != state and time.monotonic() < deadline:
            self.step()
        return "ok" if self.state() == state else f"expected {state}, found {self.state()}"

    def has_restarted(self) -> str:
        deadline = time.monotonic() + 1
        while self.facts["restarts"] == 0 and time.monotonic() < deadline:
            self.step()
        return "yes" if self.facts["restarts"] > 0 else "no"

    def miss(self, count: int) -> str:
        deadline = time.monotonic() + 1
        while count > 0 and time.monotonic() < deadline:
            if self.socket.poll(50):
                self.socket.recv_multipart()
                count -= 1
        return "ok"


def main() -> None:
    router = Router(*sys.argv[1:5])
    for line in sys.stdin:
        command, _space, argument = line.strip().partition(" ")
        if command == "expect":
            print(router.expect(json.loads(argument)), flush=True)
        elif command == "miss":
            print(router.miss(int(argument)), flush=True)
        else:
            print(router.has_restarted() if command == "restarted" else json.dumps(router.facts), flush=True)


if __name__ == "__main__":
    main()
