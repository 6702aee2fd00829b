"""Transfers over NIXL between processes: the example, refusals, and a short drill. `make transfers` runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nixl", reason="make transfers installs NIXL into an environment of its own")

from . import drill

from kv_cache_manager_v2.integrations.nixl import NixlEngine
from kv_cache_manager_v2.integrations.transfer_agent import TransferAgent
from kv_cache_manager_v2.integrations.transfer_engine import PeerGone

ROOT = Path(__file__).resolve().parents[2]


def test_example_moves_every_byte() -> None:
    command = [sys.executable, "-P", str(ROOT / "examples" / "prefill_decode.py")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    # 200 tokens of the full layer; of the window of 64 at token 200 positions 137 to 199, whole blocks: 128 to 199. Keys and values.
    num_bytes = (200 + 72) * 2 * 256
    assert f"{num_bytes} of {num_bytes} bytes of 200 tokens" in found.stdout and "reuses 200 tokens" in found.stdout


def test_refusals_name_what_there_is() -> None:
    with pytest.raises(ValueError, match="backend is 'XYZ'; this NIXL has .*UCX"):
        NixlEngine("a", backend="XYZ")
    with pytest.raises(ValueError, match="needs one"):
        NixlEngine("")
    engine = NixlEngine("a")
    with pytest.raises(PeerGone, match="3 bytes of a peer's metadata"):
        engine.add_peer(b"abc")
    with pytest.raises(PeerGone, match="'unknown' cannot be reached"):
        engine.send("unknown", b"{}")
    engine.close()


MAKE_AN_ENGINE = """
import os
from kv_cache_manager_v2.integrations.nixl import NixlEngine
NixlEngine("a").close()
libraries = {line.split()[-1].rpartition("/")[2] for line in open("/proc/self/maps") if "/libibverbs" in line}
print("found", os.environ.get("UCX_MODULES"), len(libraries))
"""


@pytest.mark.parametrize("given", [None, "^efa,xpmem"])
def test_a_process_has_one_libibverbs_and_ends_well(given: str | None) -> None:
    """Needs the system's libibverbs1 and libefa1 (apt-get install libibverbs1) to be able to fail."""
    environment = {name: value for name, value in os.environ.items() if name != "UCX_MODULES"}
    if given is not None:
        environment["UCX_MODULES"] = given
    command = [sys.executable, "-P", "-c", MAKE_AN_ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"found {given or '^efa'} 1" in done.stdout


def test_two_agents_of_one_process_hear_of_each_other() -> None:
    with drill.make_manager() as first, drill.make_manager() as second:
        with TransferAgent(first, NixlEngine("p")) as sender, TransferAgent(second, NixlEngine("d")) as receiver:
            tokens = list(range(100))
            with first.create_kv_cache(None, tokens) as computed, second.create_kv_cache(None, tokens) as waiting:
                assert computed.resume() and computed.resize(100, 100) and waiting.resume() and waiting.resize(100, 100)
                invited = receiver.invite(waiting, tokens)
                written = sender.write([invited.offer.to_bytes()], computed, tokens)
                sender.withdraw(written, "the prompt is too long")
                while invited.is_quarantined or "too long" not in invited.reason:
                    sender.progress()
                    receiver.progress()
                assert not second.open_leases


def test_a_short_drill_believes_no_wrong_byte() -> None:
    counts = drill.run(12.0, 5)
    assert counts["wrong"] == 0 and counts["leases"] == 0 and counts["done"] > 0, counts
