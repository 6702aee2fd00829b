"""Every wrong option, and every two that do not go together, of every command: exit code 2, and a line that names them."""

import shlex

import pytest

from kv_cache_manager_v2.replay.cli import main

WRONG = {
    # The program.
    "nonsense": "no command 'nonsense'", "--nonsense": "--nonsense", "relay": "did you mean replay?",
    "compare": "did you mean compare-policies?", "--verison": "did you mean --version?",
    # One replay.
    "replay --tokens-per-block 5000000": "tokens_per_block is 5000000", "replay --preempt 3": "--preempt",
    "replay --preempt nan": "--preempt",
    "replay --limit -3": "--limit", "replay --limit 0": "--limit: 0 is too few", "replay --json /": "that is a folder",
    "replay --memory 1k": "--memory: '1k' is 1024 bytes; 1g?", "replay --memory lots": "--memory: 'lots' is no size",
    "replay --model nonsense": "--model nonsense: neither a file nor a preset",
    "replay --verify --device none": "verify needs a device with memory",
    "replay --max-running 64 --token-budget 8": "token_budget is 8, under max_running 64",
    "replay trace --workload chat": "give a TRACE or --workload, not both", "replay --tokenizer x": "--tokenizer is about a TRACE",
    "replay --write-policy through": "--tiers gpu=", "replay --tiers gpu=8GiB --write-policy back": "--tiers gpu=",
    "replay --codec int4": "--tiers gpu=", "replay --codec int4 --tiers gpu=1MiB,host=1MiB --verify": "leave out --verify",
    "replay --codec zstd --tiers gpu=1MiB,host=1MiB": "'zstd'",
    "replay --skip-bad": "--skip-bad", "replay --trace-block 16": "and none is given",
    "replay --report one.html --json one.html": "--json one.html and --report one.html are one file",
    "replay --report /no/where/out.html": "--report /no/where/out.html: there is no such folder",
    "replay --wirte-policy through": "--wirte-policy; did you mean --write-policy?",
    "replay --rate 2": "--rate is about --arrivals recorded",
    "replay --rate 0 --arrivals recorded": "--rate: '0'", "replay --step-time soon": "'soon' is no step time",
    "replay --arrivals now": "'now'",
    "replay --pool-ratio 0.4": "--pool-ratio", "replay --pool-ratio 1,2,3": "--pool-ratio", "replay --pool-ratio ''": "--pool-ratio",
    "replay --pool-ratio 0.4,x": "--pool-ratio: 'x'", "replay --pool-ratio 0.4,0": "--pool-ratio: '0'",
    "replay --pool-ratio 0.4,-1": "--pool-ratio: '-1'",
    # Its levels.
    "replay --memory 1g --tiers gpu=1g": "--tiers: not allowed with argument --memory",
    "replay --device host --tiers gpu=64MiB,disk=1g:/no/such/folder": "no folder '/no/such/folder'",
    "replay --device host --tiers gpu=64MiB,disk=1g:/tmp:/var": "--tiers: a disk with 2 folders",
    "replay --device host --durable --tiers gpu=64MiB,disk=1g:/tmp:/var,disk=1g": "--tiers: a disk with 2 folders",
    "replay --device host --durable --tiers gpu=64MiB,disk=1g:/tmp:/tmp/": "'/tmp', '/tmp/'",
    "replay --durable": "disk as the last", "replay --durable --tiers gpu=1MiB,host=1MiB": "disk as the last",
    "replay --durable --tiers gpu=2MiB,disk=32MiB --disaggregate": "one folder",
    "replay --kill-at 3 --tiers gpu=2MiB,disk=32MiB": "--durable",
    "replay --kill-at 3 --durable --tiers gpu=2MiB,disk=32MiB --arrivals recorded": "report of its own",
    "replay --kill-at 0 --durable --tiers gpu=2MiB,disk=32MiB": "at least 1",
    "replay --kill-at 3 --limit 3 --durable --tiers gpu=2MiB,disk=32MiB --device host": "none would come after",
    "replay --kill-at 3 --limit 9 --durable --tiers gpu=2MiB,disk=32MiB --shrink max --device none": "no files that outlive",
    # Policies beside each other.
    "compare-policies": "give at least one TRACE or --workload", "compare-policies --workload nonsense": "'nonsense'",
    "compare-policies t.jsonl --xyz": "--xyz; kvcm compare-policies --help lists what there is",
    "compare-policies t --policies lru,best": "no policy 'best'", "compare-policies t --limit -1": "--limit: '-1'",
    "compare-policies --workload chat --json /no/such/folder/x": "there is no such folder",
    "compare-policies --workload chat --trace-block 16": "and none is given",
    "compare-policies --workload chat --skip-bad": "and none is given",
    "compare-policies trace.jsonl --workload-block 16": "and none is given", "compare-policies t --sessions 0": "argument --sessions: ",
    "compare-policies --workload chat --sessions 3": "--skip-bad, --trace-block and --sessions are about a TRACE, and none is given",
    "compare-policies t --blocks 0": "'0' is no number", "compare-policies t --blocks many": "'many' is no number of blocks",
    "compare-policies t --blocks 5,,6": "'' is no number of blocks", "compare-policies t --blocks 1000000000000": "at most 999999999",
    f"compare-policies t --blocks {'9' * 400}": "at most 999999999", "compare-policies t --blocks 1e12%": "at most 100%",
    "compare-policies t --blocks 10%,200%": "'200%' is too much; at most 100%, where all blocks have room",
    "learn t -o x --blocks 100.5%": "'100.5%' is too much; at most 100%", "learn t -o ''": "--output: its name is empty; name a file",
    "replay --json ''": "--json: its name is empty; name a file", "convert t ''": "OUT: its name is empty; name a file",
    "compare-policies t --blocks nan%": "no number of blocks",
    "compare-policies t --levels 3,5 --blocks 3": "--levels and --blocks both say how large the cache is; give one of them",
    "compare-policies t --min-reuse-probability 0.5": "--min-reuse-probability is about --levels, and they are not given",
    "compare-policies t --levels 3,0": "'0' is no number of slots", "compare-policies t --levels 3,x": "'x' is no number of slots",
    "compare-policies t --levels ''": "'' is no number of slots",
    f"compare-policies t --levels {','.join(['3'] * 33)}": "33 levels; there can be 32",
    "compare-policies t --levels 3,5 --min-reuse-probability 1.5": "'1.5' is no probability from 0 to 1",
    "compare-policies t --levels 3,5 --min-reuse-probability nan": "'nan' is no probability from 0 to 1",
    "compare-policies t --hints 1.1": "no accuracy from 0 to 1", "compare-policies t --hints nan": "no accuracy from 0 to 1",
    "compare-policies t --hints often": "say 0.8, or recorded", "compare-policies t --hints 0.8 --policies lru,arc": "not among --policies",
    "learn": "the following arguments are required", "learn t": "-o/--output", "learn t -o /no/such/folder/x": "there is no such folder",
    "learn t -o x --blocks 0": "'0' is no number of blocks", "learn t -o x --tokens-per-block 0": "argument --tokens-per-block: ",
    "compare-policies t --hints recorded --workload chat": "has no stop reasons",
    # The others.
    "plan": "give --gpu-memory BYTES", "plan --gpu-memory 40": "--gpu-memory: '40' is 40 bytes; 40g?",
    "plan --gpu-memory much": "--gpu-memory: 'much'", "plan --gpu-memory 0": "--gpu-memory: '0'",
    "plan --gpu-memory 1k": "--gpu-memory: '1k' is 1024 bytes", "plan --gpu-memory 40g --batch 100000000": "--batch 100000000",
    "plan --gpu-memory 1g --batch -1": "--batch: '-1'", "plan --gpu-memory 40g --host-memory 0": "--host-memory",
    "plan --gpu-memory 1g --length 0": "--length: 0 is too few", "plan --gpu-memory 1g --length 8 --history 9": "--history 9",
    "plan --gpu-memory 1g --model nonsense": "presets are llama-3-8b",
    "plan --gpu-memory 1g --model llama-3-8b --tp 2": "--tp is about a config.json; llama-3-8b is a preset",
    "plan --gpu-memory 1g --model . --stage 1": "--stage 1 is one of the stages that --pp divides",
    "plan --gpu-memory 1g --model llama-3-8b gpt-oss-20b": "not both",
    "plan --gpu-memory 40g --save one --json ./one": "--json ./one and --save one are one file",
    "plan llama-3-8b --gpumem 40g more": "unrecognized arguments: --gpumem 40g more; did you mean --gpu-memory?",
    "convert in.jsonl one --json one": "OUT one and --json one are one file",
    "convert - - --json -": "OUT and --json are both the output", "convert a /nowhere/b": "OUT /nowhere/b: there is no such folder",
}  # fmt: skip


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line[:80])
def test_what_is_wrong_is_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 2
    error = capsys.readouterr().err
    assert WRONG[line] in error
    assert len(error.splitlines()) <= 2, "a line of usage, and the error"
