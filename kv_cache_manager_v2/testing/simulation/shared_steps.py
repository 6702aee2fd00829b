"""Shared steps: sequences that plan what they compute, read what others have planned, and commit in order; for some scenarios.

One action is one step of an engine, so that no planned block outlives it.
"""

from random import Random
from typing import Any, Final

from ...base.errors import LogicError, PlannedTokensLost
from ...base.ids import TokenIdExt
from ...reuse.reuse_scope import ReuseScope
from ..reference_pages import ModelDisagreement
from ..step_batch import Step
from .hints import draw_scope
from .run_state import RunState
from .sequence_lifetimes import close, end_epoch
from .simulated_sequence import SimulatedSequence
from .state_checks import check_prompt, note_indices, require_indices_stay

_SHARE_DISTURBED: Final = 0.35
_MOST_SEQUENCES: Final = 4


def share_step(run: RunState, random: Random) -> None:
    """Up to four prompts with a common beginning, planned and read in one step; sometimes a writer stops in between."""
    run.num_performed += 1
    scope = draw_scope(random)
    # Mostly with a new part, which is in no tree yet.
    num_new = int(random.random() * 4 * run.scenario.config.tokens_per_block)
    stem = run.texts.draw_text(random, run.scenario.max_tokens) + tuple([run.texts.draw_token(random) for _token in range(num_new)])
    stem = stem[: run.scenario.max_tokens]
    stream = random.choice(run.streams)
    members: list[SimulatedSequence] = []
    for _number in range(2 + int(random.random() * (_MOST_SEQUENCES - 1))):
        if len(run.sequences) >= run.scenario.max_sequences:
            break
        cut = len(stem) if random.random() < 0.6 else int(random.random() * (len(stem) + 1))
        tail = [run.texts.draw_token(random) for _token in range(int(random.random() * 4))]
        sequence = _create(run, scope, (stem[:cut] + tuple(tail))[: run.scenario.max_tokens])
        if _make_room(run, sequence, stream, random):
            _plan(run, sequence)
            members.append(sequence)
    if len(members) > 0 and random.random() < _SHARE_DISTURBED:
        _disturb(run, random.choice(members), random)
    members = [one for one in members if one in run.sequences and one.model.is_active]
    _launch(run, members, random)
    for sequence in members:
        _commit(run, sequence, members, random)
    if len(run.model.plans) > 0:
        raise ModelDisagreement("a step is over, and blocks are still planned")


def _create(run: RunState, scope: ReuseScope, text: tuple[TokenIdExt, ...]) -> SimulatedSequence:
    name = run.next_name
    run.next_name += 1
    probed = run.manager.probe_reuse(scope, list(text), True)
    handle = run.manager.create_kv_cache(scope, list(text), name)
    num_matched = handle.num_committed_tokens
    if run.scenario.config.enable_stats:
        check_prompt(handle, len(text))
    if probed != num_matched:
        raise ModelDisagreement(f"probe_reuse said {probed} tokens with planned ones, create_kv_cache matched {num_matched}")
    model = run.model.create(name, (scope.lora_id, scope.salt), text, num_matched, run.manager.describe(), num_matched)
    num_planned = len(run.model.plans.list_read(model)) * run.scenario.config.tokens_per_block
    if handle.match_info.planned_tokens != num_planned:
        found = handle.match_info.planned_tokens
        raise ModelDisagreement(f"sequence {name} was matched with {found} planned tokens, must be {num_planned}")
    run.num_planned_tokens += num_planned
    sequence = SimulatedSequence(name, handle, model, list(text[:num_matched]), list(text[num_matched:]), run.scenario.max_tokens * 1000)
    sequence.prompt_length = len(text)
    sequence.has_shared = True
    run.sequences.append(sequence)
    run.check()
    return sequence


def _make_room(run: RunState, sequence: SimulatedSequence, stream: int, random: Random) -> bool:
    """Resume on the step's stream, and resize; another stream is refused to a reader."""
    other = random.choice(run.streams)
    if other != stream and len(run.model.plans.list_read(sequence.model)) > 0:
        if sequence.handle.resume(other):
            raise ModelDisagreement(f"sequence {sequence.name} was resumed on another stream than the writer of its blocks")
        run.check()
    is_overused = run.judge.is_overused()
    need = run.model.slots_of_beams_to_resume(sequence.model)
    passed = sequence.handle.resume(stream)
    if is_overused and passed:
        raise ModelDisagreement(f"sequence {sequence.name} was resumed beyond max_util_for_resume")
    if not is_overused:
        run.judge.judge(f"resume of sequence {sequence.name}", need, passed)
    if not passed:
        run.num_refused += 1
        return False
    run.model.resume(sequence.model, run.manager.describe())
    run.check()
    return _resize(run, sequence, len(sequence.text) + len(sequence.to_compute))


def _resize(run: RunState, sequence: SimulatedSequence, capacity: int) -> bool:
    history = len(sequence.text)
    needs = run.model.slots_of_beams_to_resize(sequence.model, capacity, history)
    before = note_indices(run.model, sequence)
    passed = sequence.handle.resize(capacity, history)
    require_indices_stay("resize", sequence, before)
    run.judge.judge_turns(f"resize of sequence {sequence.name} to ({capacity}, {history})", needs, passed)
    if passed:
        run.model.resize(sequence.model, capacity, history, run.manager.describe())
    else:
        run.num_refused += 1
    run.check()
    return passed


def _plan(run: RunState, sequence: SimulatedSequence) -> None:
    tokens = [*sequence.text, *sequence.to_compute]
    offered = sequence.handle.publish_planned(tokens[len(sequence.model.committed) :])
    expected = run.model.plans.offer(sequence.model, tuple(tokens), run.model.in_tree)
    if offered != expected:
        raise ModelDisagreement(f"sequence {sequence.name} has planned {offered} tokens, must be {expected}")
    run.check()


def _disturb(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    """The sequence stops, or takes a part back; what others read of that is lost, and they end."""
    kind = random.choice(("suspend", "close", "shrink", "end epoch"))
    if sequence.model.uses_scratch and kind != "end epoch":
        # Its next step would have to begin where this one, which is not computed, ends.
        kind = "close"
    if kind == "shrink":
        _resize(run, sequence, len(sequence.text) + int(random.random() * (len(sequence.to_compute) + 1)))
    elif kind == "close":
        close(run, sequence)
        run.check()
    elif kind == "end epoch":
        end_epoch(run, None)
        run.check()
    else:
        sequence.handle.suspend()
        run.model.suspend(sequence.model)
        run.check()
    for reader in [one for one in run.sequences if one.model.is_void]:
        _require_lost(reader)
        run.check()
        close(run, reader)
        run.check()


def _require_lost(reader: SimulatedSequence) -> None:
    handle: Any = reader.handle
    try:
        if reader.model.is_active:
            handle.resize(reader.handle.capacity + 1)
        else:
            handle.resume()
    except PlannedTokensLost as error:
        if error.valid_tokens != len(reader.model.committed):
            raise ModelDisagreement(
                f"sequence {reader.name} is told that {error.valid_tokens} tokens are valid, {len(reader.model.committed)} are"
            ) from error
        return
    raise ModelDisagreement(f"sequence {reader.name} has lost planned blocks, and goes on")


def _launch(run: RunState, members: list[SimulatedSequence], random: Random) -> None:
    """In one launch, in any order, or in several, the writers first."""
    steps: list[Step] = []
    for sequence in members:
        count = min(len(sequence.to_compute), sequence.model.capacity - len(sequence.text))
        inputs = sequence.to_compute[:count]
        del sequence.to_compute[:count]
        steps.append(Step(sequence.handle, inputs, list(sequence.text)))
        sequence.text.extend(inputs)
        sequence.num_computed = max(sequence.num_computed, len(sequence.text))
    if random.random() < 0.5:
        random.shuffle(steps)
        run.engine.execute(steps)
    else:
        for step in steps:
            run.engine.execute([step])


def _commit(run: RunState, sequence: SimulatedSequence, members: list[SimulatedSequence], random: Random) -> None:
    for reader in members:
        if len(run.model.plans.list_read(reader.model)) > 0 and random.random() < 0.3:
            try:
                reader.handle.commit(reader.text[len(reader.model.committed) :])
            except LogicError:
                continue
            raise ModelDisagreement(f"sequence {reader.name} has committed behind a planned block")
    tokens = sequence.text[len(sequence.model.committed) :]
    before = note_indices(run.model, sequence)
    sequence.handle.commit(tokens)
    require_indices_stay("commit", sequence, before)
    run.model.commit(sequence.model, tokens)
    run.record_early_copies()
    run.texts.keep(random, tuple(sequence.model.committed))
    run.check()
