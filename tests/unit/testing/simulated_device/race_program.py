"""Small random programs for a device, and a brute-force answer to the question whether they race.

A program is a list of `Action`s on a few streams and a few dozen bytes. The oracle knows nothing of clocks: it draws an
edge for every order that a device promises, and looks for two accesses to one byte with no path between them.
"""

from random import Random

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch, HostKernel, MemoryAccess
from kv_cache_manager_v2.testing.race_error import RaceError
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice

GPU = CacheTier.GPU_MEM
NUM_BYTES = 24  # what programs touch
CHUNK_BYTES = 8  # what is mapped at a time
HOST = -1


class Action:
    """``kind`` and up to four numbers; see `Oracle.apply` for their meaning."""

    def __init__(self, kind, *numbers):
        self.kind = kind
        self.numbers = numbers

    def __repr__(self):
        return f"{self.kind}{self.numbers}"


class Oracle:
    """Applies actions; `apply` returns the set of reasons for which the action must be refused, and stops there."""

    def __init__(self, num_streams):
        self.nodes_before = []  # node -> set of nodes on a path to it
        self.touched = []  # node -> (bytes read, bytes written)
        self.last_of_stream = [set() for _ in range(num_streams)]
        self.host_knows = set()
        self.event_nodes = []
        self.written = set()
        self.mapped = set()

    def preview(self, action):
        """(reads, uses, writes): bytes whose content is moved or used, used, overwritten."""
        kind, n = action.kind, action.numbers
        if kind in ("read", "write"):
            span = set(range(n[1], n[2]))
            return (span, span, set()) if kind == "read" else (set(), set(), span)
        if kind == "copy":
            return set(range(n[2], n[2] + n[3])), set(), set(range(n[1], n[1] + n[3]))
        if kind == "unmap":
            return set(), set(), set(range(n[0] * CHUNK_BYTES, (n[0] + 1) * CHUNK_BYTES))
        return set(), set(), set()

    def before(self, action):
        """The nodes that are ordered before this action."""
        stream = action.numbers[0] if action.kind in ("read", "write", "copy") else HOST
        known = set(self.host_knows)
        if stream != HOST:
            known |= self.last_of_stream[stream]
        return known

    def unordered(self, action):
        """Nodes that conflict with the action and are not ordered before it."""
        reads, _uses, writes = self.preview(action)
        before = self.before(action)
        return [
            node
            for node, (node_reads, node_writes) in enumerate(self.touched)
            if node not in before and (node_writes & (reads | writes) or node_reads & writes)
        ]

    def apply(self, action):
        kind, n = action.kind, action.numbers
        if kind == "map":  # chunk
            self.mapped |= set(range(n[0] * CHUNK_BYTES, (n[0] + 1) * CHUNK_BYTES))
        elif kind == "record":  # stream
            self.event_nodes.append(set(self.last_of_stream[n[0]]))
        elif kind == "wait":  # stream, event
            self.last_of_stream[n[0]] |= self.event_nodes[n[1]]
        elif kind == "sync_event":  # event
            self.host_knows |= self.event_nodes[n[0]]
        elif kind == "sync_stream":  # stream
            self.host_knows |= self.last_of_stream[n[0]]
        else:  # read / write (stream, beg, end), copy (stream, dst, src, num_bytes), unmap (chunk)
            return self.apply_access(action)
        return set()

    def apply_access(self, action):
        reads, uses, writes = self.preview(action)
        reasons = set()
        if not (reads | writes) <= self.mapped:
            reasons.add("unmapped")
        if self.unordered(action):
            reasons.add("race")
        if not uses <= self.written:
            reasons.add("unwritten")
        if action.kind == "copy" and reads & writes:
            reasons.add("overlap")
        if reasons:
            return reasons
        node = len(self.touched)
        before = self.before(action)
        self.touched.append((reads, writes))
        stream = action.numbers[0] if action.kind != "unmap" else HOST
        if stream == HOST:
            self.host_knows = before | {node}
        else:
            self.last_of_stream[stream] = before | {node}
        if action.kind == "unmap":
            self.mapped -= writes
            self.written -= writes
        elif action.kind == "copy":
            _stream, dst, src, num_bytes = action.numbers
            for offset in range(num_bytes):
                if src + offset in self.written:
                    self.written.add(dst + offset)
                else:
                    self.written.discard(dst + offset)
        else:
            self.written |= writes
        return reasons


class ByteKernel(HostKernel):
    """Reads or writes a run of bytes; what it saw is kept in ``seen``."""

    def __init__(self, device, address, num_bytes, value):
        self.address = address
        self.num_bytes = num_bytes
        self.value = value
        self.device = device
        self.seen = None

    def accesses(self):
        return [MemoryAccess(self.address, self.num_bytes, self.value is not None)]

    def run(self):
        import ctypes

        if self.value is None:
            self.seen = ctypes.string_at(self.address, self.num_bytes)
        else:
            ctypes.memset(self.address, self.value, self.num_bytes)


class Runner:
    """Runs actions on a simulated device, and in order on a bytearray."""

    def __init__(self, seed, num_streams, eager=None):
        self.device = SimulatedDevice(seed, eager=eager, granularity_bytes=CHUNK_BYTES)
        self.base = self.device.reserve_range(GPU, NUM_BYTES)
        self.streams = [self.device.create_stream() for _ in range(num_streams)]
        self.events = []
        self.mapped = set()
        self.model = bytearray(NUM_BYTES)
        self.reads = []  # (kernel, what the model said)
        self.count = 0

    def apply(self, action):
        """Returns the `RaceError`, or None."""
        try:
            self.apply_or_raise(action)
        except RaceError as race:
            return race
        return None

    def apply_or_raise(self, action):
        kind, n = action.kind, action.numbers
        device, base = self.device, self.base
        self.count += 1
        value = self.count % 251
        if kind == "map":
            device.map_memory(GPU, base + n[0] * CHUNK_BYTES, CHUNK_BYTES)
            self.mapped.add(n[0])
        elif kind == "unmap":
            device.unmap_memory(GPU, base + n[0] * CHUNK_BYTES, CHUNK_BYTES)
            self.mapped.remove(n[0])
        elif kind == "record":
            self.events.append(device.record_event(self.streams[n[0]]))
        elif kind == "wait":
            device.wait_event(self.streams[n[0]], self.events[n[1]])
        elif kind == "sync_event":
            device.synchronize_event(self.events[n[0]])
        elif kind == "sync_stream":
            device.synchronize_stream(self.streams[n[0]])
        elif kind == "read" and n[0] == HOST:
            assert device.host_read(base + n[1], n[2] - n[1]) == self.model[n[1] : n[2]]
        elif kind == "write" and n[0] == HOST:
            device.host_write(base + n[1], bytes([value]) * (n[2] - n[1]))
            self.model[n[1] : n[2]] = bytes([value]) * (n[2] - n[1])
        elif kind == "read":
            kernel = ByteKernel(device, base + n[1], n[2] - n[1], None)
            device.launch(self.streams[n[0]], kernel)
            self.reads.append((kernel, bytes(self.model[n[1] : n[2]])))
        elif kind == "write":
            if self.count % 2:
                device.fill(self.streams[n[0]], base + n[1], n[2] - n[1], value)
            else:
                device.launch(self.streams[n[0]], ByteKernel(device, base + n[1], n[2] - n[1], value))
            self.model[n[1] : n[2]] = bytes([value]) * (n[2] - n[1])
        else:
            batch = CopyBatch(GPU, GPU, n[3])
            batch.add(base + n[1], base + n[2])
            device.copy_batch(self.streams[n[0]], batch)
            self.model[n[1] : n[1] + n[3]] = self.model[n[2] : n[2] + n[3]]

    def finish(self):
        """Everything is done; what the reading kernels saw is what the model says."""
        self.device.drain()
        for kernel, expected in self.reads:
            assert kernel.seen == expected
        self.close()

    def close(self):
        for stream in [*self.streams, self.device.default_stream()]:
            self.device.synchronize_stream(stream)
        for chunk in sorted(self.mapped):
            self.device.unmap_memory(GPU, self.base + chunk * CHUNK_BYTES, CHUNK_BYTES)
        self.device.release_range(GPU, self.base, NUM_BYTES)
        for event in self.events:
            self.device.release_event(event)
        self.device.close()


def draw_action(random, oracle, num_streams, mapped):
    """Any action whose arguments exist; it may race, or touch what is not mapped."""
    kind = random.choices(
        ["read", "write", "copy", "record", "wait", "sync_event", "sync_stream", "map", "unmap"],
        [6, 6, 5, 3, 3, 1, 1, 2, 1],
    )[0]
    stream = random.randrange(num_streams)
    if kind in ("wait", "sync_event") and not oracle.event_nodes:
        kind = "record"
    if kind == "map" and len(mapped) == NUM_BYTES // CHUNK_BYTES:
        kind = "write"
    if kind == "unmap" and not mapped:
        kind = "map"
    if kind in ("read", "write"):
        beg = random.randrange(NUM_BYTES - 1)
        who = HOST if random.random() < 0.15 else stream
        return Action(kind, who, beg, random.randint(beg + 1, min(NUM_BYTES, beg + 8)))
    if kind == "copy":
        size = random.randint(1, 8)
        dst, src = random.randrange(NUM_BYTES - size + 1), random.randrange(NUM_BYTES - size + 1)
        return Action(kind, stream, dst, src, size)
    if kind in ("record", "sync_stream"):
        return Action(kind, stream)
    if kind == "wait":
        return Action(kind, stream, random.randrange(len(oracle.event_nodes)))
    if kind == "sync_event":
        return Action(kind, random.randrange(len(oracle.event_nodes)))
    chunks = sorted(set(range(NUM_BYTES // CHUNK_BYTES)) - mapped) if kind == "map" else sorted(mapped)
    return Action(kind, random.choice(chunks))


def draw_legal_program(seed, num_actions, num_streams):
    """A program that never races: whatever an access needs is ordered before it, by events or by the host waiting."""
    random = Random(seed)
    oracle = Oracle(num_streams)
    program = []
    mapped = set()

    def add(action):
        assert not oracle.apply(action), "the generator made an illegal program"
        program.append(action)

    for chunk in range(NUM_BYTES // CHUNK_BYTES):
        add(Action("map", chunk))
        mapped.add(chunk)
    while len(program) < num_actions:
        action = draw_action(random, oracle, num_streams, mapped)
        reads, uses, writes = oracle.preview(action)
        if not (reads | writes) <= oracle.mapped or not uses <= oracle.written:
            continue
        if action.kind == "copy" and reads & writes:
            continue
        who = action.numbers[0] if action.kind in ("read", "write", "copy") else HOST
        for stream in range(num_streams):
            if any(node in oracle.last_of_stream[stream] for node in oracle.unordered(action)):
                if who == HOST and random.random() < 0.5:
                    add(Action("sync_stream", stream))
                else:
                    add(Action("record", stream))
                    event = len(oracle.event_nodes) - 1
                    add(Action("sync_event", event) if who == HOST else Action("wait", who, event))
        add(action)
        if action.kind == "map":
            mapped.add(action.numbers[0])
        elif action.kind == "unmap":
            mapped.remove(action.numbers[0])
    return program
