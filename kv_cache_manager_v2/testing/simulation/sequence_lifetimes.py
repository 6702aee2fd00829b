"""Lifetime actions: sequences are created, resumed, forked, closed, forgotten; and the cache is cleared."""

import warnings
from random import Random
from typing import Any, Final

from ...base.ids import TokenIdExt
from ...reuse.reuse_scope import ReuseScope
from ..reference_pages import ModelDisagreement
from . import failures
from .forks import fork_sequence
from .hints import draw_scope
from .residency import change_residency
from .run_state import RunState
from .simulated_sequence import SimulatedSequence
from .snapshot_judge import draw_positions
from .state_checks import check_prompt, note_indices, require_indices_stay
from .text_source import draw_token_container


_SHARE_OF_PAIRS: Final = 0.7
"""Of the prompts where indices stay, those that two sequences compute side by side."""
_EXACT_EVERY: Final = 3


def create(run: RunState, random: Random) -> list[SimulatedSequence]:
    """The sequences that were created: none, one, or two with the same prompt."""
    if len(run.sequences) >= run.scenario.max_sequences:
        return []
    run.num_performed += 1
    scope = draw_scope(random)
    text = run.texts.draw_text(random, run.scenario.max_tokens)
    created = [_create_one(run, scope, text, random)]
    if run.model.indices_stay and random.random() < _SHARE_OF_PAIRS and len(run.sequences) < run.scenario.max_sequences:
        if created[0].model.is_active:
            # The model must know where its pages are by now: the second may share its last block.
            run.check()
        created.append(_create_one(run, scope, text, random))
    return created


def _create_one(run: RunState, scope: ReuseScope, text: tuple[TokenIdExt, ...], random: Random) -> SimulatedSequence:
    tokens = draw_token_container(random, text)
    probed = run.manager.probe_reuse(scope, tokens)
    name = run.next_name
    run.next_name += 1
    positions = draw_positions(random, run.model.state.group >= 0, run.scenario.max_tokens)
    is_exact = run.model.packs_with_loss and name % _EXACT_EVERY == 0
    handle = run.manager.create_kv_cache(scope, tokens, name, snapshot_positions=positions, exact=is_exact)
    num_matched = handle.num_committed_tokens
    state_tokens = handle.match_info.state_tokens
    if run.scenario.config.enable_stats:
        check_prompt(handle, len(text))
    # A probe changes nothing: pages that are lost, and that no sequence holds, are there still, and end its match.
    may_differ = is_exact or (len(run.model.lost) > 0 and run.model.expect_match((scope.lora_id, scope.salt), text).allows(probed))
    if probed != num_matched and not may_differ:
        raise ModelDisagreement(f"probe_reuse said {probed} tokens, create_kv_cache matched {num_matched}")
    model = run.model.create(name, (scope.lora_id, scope.salt), text, num_matched, run.manager.describe(), state_tokens, is_exact=is_exact)
    num_lossy = run.model.count_lossy(model, num_matched, state_tokens)
    if handle.match_info.planned_tokens == 0 and handle.match_info.lossy_tokens != num_lossy:
        raise ModelDisagreement(f"{handle.match_info.lossy_tokens} matched tokens are said to be packed with loss, must be {num_lossy}")
    to_compute = list(text[num_matched:])
    max_committed = len(text) if random.random() < 0.4 else run.scenario.max_tokens * 1000
    sequence = SimulatedSequence(name, handle, model, list(text[:num_matched]), to_compute, max_committed)
    sequence.state_tokens = state_tokens
    sequence.prompt_length = len(text)
    sequence.given = tuple(text)
    sequence.given_end = num_matched
    sequence.snapshot_positions = positions
    run.sequences.append(sequence)
    if run.scenario.has_residency:
        change_residency(run, sequence, random)
    if random.random() < 0.6:
        resume(run, sequence, random)
    return sequence


def resume(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    is_overused = run.judge.is_overused()
    need = run.model.slots_of_beams_to_resume(sequence.model)
    stream = random.choice(run.streams) if random.random() < 0.9 else None
    waits = random.random() < 0.6
    passed = sequence.handle.resume(stream, waits)
    if is_overused and passed:
        raise ModelDisagreement(f"sequence {sequence.name} was resumed beyond max_util_for_resume")
    if not is_overused:
        run.judge.judge(f"resume of sequence {sequence.name}", need, passed)
    if passed:
        had_state = sequence.model.has_state
        run.model.resume(sequence.model, run.manager.describe())
        for _poll in range(0 if waits else int(random.random() * 4)):
            if failures.is_ready(sequence.handle):
                break
        if sequence.model.has_state and not had_state and sequence.state_tokens < len(sequence.text):
            # Only attention was matched for these tokens: the recurrent layers run them again.
            if waits or failures.await_ready(sequence.handle):
                run.engine.replay_states(sequence.handle, list(sequence.text), sequence.state_tokens)
    else:
        run.num_refused += 1


def find_hint(sequence: SimulatedSequence) -> bool | None:
    """What the caller says of a sequence: it is said, or not, by its tokens, and right or wrong by chance."""
    return (None, True, False)[len(sequence.text) % 3]


def stop_committing(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    before = note_indices(run.model, sequence)
    sequence.handle.stop_committing(find_hint(sequence))
    require_indices_stay("stop_committing", sequence, before)
    run.model.stop_committing(sequence.model, run.manager.describe())
    run.record_early_copies()
    run.drops.plan(sequence, run.manager, run.model, random)


def close(run: RunState, sequence: SimulatedSequence) -> None:
    sequence.handle.close(find_hint(sequence))
    run.model.close(sequence.model)
    run.record_early_copies()
    run.sequences.remove(sequence)


def fork(run: RunState, sequence: SimulatedSequence) -> None:
    if len(run.sequences) >= run.scenario.max_sequences:
        return
    child, is_refused = fork_sequence(run.model, run.judge, sequence, run.next_name)
    run.num_refused += is_refused
    if child is not None:
        run.next_name += 1
        run.sequences.append(child)


def abandon(run: RunState, sequence: SimulatedSequence) -> None:
    """The user drops the handle; the next call on the manager closes the sequence."""
    run.model.abandon(sequence.model)
    run.record_early_copies()
    run.sequences.remove(sequence)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        sequence.forget_handle()
    failures.look_around(run.manager)


def clear(run: RunState, random: Random) -> None:
    """End an epoch, often after closing everything: slots that many streams have read are then soon written again."""
    run.num_performed += 1
    if random.random() < 0.4:
        run.lost.close_all()
        while run.sequences:
            close(run, run.sequences[-1])
            run.check()
    end_epoch(run, draw_scope(random) if random.random() < 0.4 else None)


def end_epoch(run: RunState, scope: ReuseScope | None) -> None:
    if scope is None:
        run.manager.clear_reusable_blocks()
        run.model.end_epoch(None)
        return
    name = (scope.lora_id, scope.salt)
    before = _list_others(run, name)
    run.manager.invalidate_reuse_scope(scope)
    run.model.end_epoch(name)
    if _list_others(run, name) != before:
        raise ModelDisagreement(f"{scope} was invalidated, and blocks of other scopes have changed")


def _list_others(run: RunState, name: tuple[object, object]) -> list[Any]:
    trees: list[Any] = run.manager.describe()["tree"]
    return [tree for tree in trees if (tree["lora_id"], tree["salt"]) != name]
