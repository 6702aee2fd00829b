"""One peer in a process of its own: reads names of work from its input, one a line, and answers each with a line of JSON.

python -P peer_process.py ours|tuned|vllm|sglang
"""

import gc
import json
import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from peer import Peer  # noqa: E402
from peer_workloads import WORK, Size  # noqa: E402


def make_peer(name: str) -> Peer:
    if name == "vllm":
        from vllm_peer import VLLM

        return VLLM()
    if name == "sglang":
        from sglang_peer import SGLang

        return SGLang()
    from ours import Ours, OursTuned

    return OursTuned() if name == "tuned" else Ours()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a package prints is no answer
    peer = make_peer(sys.argv[1])
    gc.collect()
    gc.freeze()  # as engines do when they are loaded
    peer.open(64)
    print(json.dumps({"name": peer.name, "version": peer.version(), "windowed": peer.windowed}), file=answers, flush=True)
    peer.close()
    for line in sys.stdin:
        work = line.strip()
        figures = WORK[work](peer, Size())
        gc.collect()
        print(json.dumps(figures), file=answers, flush=True)


if __name__ == "__main__":
    main()
