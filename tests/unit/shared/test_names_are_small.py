"""A key costs a server memory for as long as it has the page: half of the 206 bytes that a name in hexadecimal digits took, or less."""

import re
import socket

from shared_models import Server

from kv_cache_manager_v2.durable.record_format import PACKED
from kv_cache_manager_v2.shared.block_names import BlockName
from kv_cache_manager_v2.shared.page_record import RecordLayout

NUM_NAMES = 20_000
MOST_BYTES = 103


def make_keys(count: int) -> list[bytes]:
    layout = RecordLayout(bytes(range(32)), 1, 4096, 4)
    return [layout.key(BlockName(bytes(32), PACKED, number.to_bytes(16, "little"))) for number in range(count)]


def test_keys_are_short_text_that_a_path_may_have() -> None:
    keys = make_keys(1000)
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(rb"kvcm2/[\w-]{12}/g1/[\w-]{22}", key) for key in keys), keys[0]
    assert RecordLayout(bytes(32), 1, 4096, 4).key(BlockName(bytes(32), PACKED, bytes(16))) != keys[0], "another model"


def test_a_server_keeps_them_in_half_of_the_memory() -> None:
    with Server() as server:
        line = socket.create_connection(("127.0.0.1", server.port))
        answers = line.makefile("rb")

        def used_bytes() -> int:
            line.sendall(b"INFO memory\r\n")
            text = answers.read(int(answers.readline()[1:]) + 2)
            found = re.search(rb"used_memory:(\d+)", text)
            assert found is not None
            return int(found[1])

        before = used_bytes()
        keys = make_keys(NUM_NAMES)
        for begin in range(0, NUM_NAMES, 1000):
            line.sendall(b"".join(b"SET %b x\r\n" % key for key in keys[begin : begin + 1000]))
            for _key in range(1000):
                assert answers.readline() == b"+OK\r\n"
        assert used_bytes() - before < NUM_NAMES * MOST_BYTES
        line.close()
        answers.close()
