"""`PageLists` beside a dict of Python lists, one for each list and priority: what is in them, in which order, and the notes."""

from random import Random

import pytest

from kv_cache_manager_v2.replay.policies.page_lists import NO_LIST, NO_PAGE, PageLists
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, add_priority, pack_place

MOST_PRIORITY = 100


@pytest.mark.parametrize("seed", range(6))
def test_against_lists(seed: int) -> None:
    """Priorities of pages change while they are queued: the line that they are in stays the one that they were put in."""
    choices = Random(seed)
    num_lists = choices.choice((1, 2, 4))
    rows = PageRows(choices.choice((1, 3)), choices.choice((1, 7)))
    rows.grow(3)
    lists = PageLists(rows, num_lists)
    assert (lists.num_lists, lists.num_sentinels) == (num_lists, num_lists * (MOST_PRIORITY + 1))
    assert (lists.lowest, list(lists.counts), lists.collect()) == (MOST_PRIORITY, [0] * num_lists, [])
    lines: dict[tuple[int, int], list[int]] = {(priority, at): [] for priority in range(MOST_PRIORITY + 1) for at in range(num_lists)}
    places: dict[int, tuple[int, int]] = {}
    notes: dict[int, int] = {}
    priorities: dict[int, int] = {}

    def set_priority(page: int, priority: int) -> None:
        at = page * ROW_WORDS + PLACE
        rows.words[at] = add_priority(rows.words[at], priority - priorities[page]) if page in priorities else pack_place(4, 1, priority)
        priorities[page] = priority

    def enter(page: int, to_list: int, position: int | None) -> None:
        line = lines[priorities[page], to_list]
        line.insert(len(line) if position is None else position, page)
        places[page] = priorities[page], to_list

    lowest = MOST_PRIORITY
    for step in range(900):
        if step % 30 == 0:
            rows.add_block()
        page = choices.randrange(int(rows.first_page_of_blocks), int(rows.num_rows))
        if page not in priorities or choices.random() < 0.1:
            set_priority(page, choices.choice((0, 1, 35, 35, 35, 36, 99, MOST_PRIORITY)))
        to_list = choices.randrange(num_lists)
        kind = choices.random()
        if page not in places:
            if kind < 0.5:
                lists.push_last(page, to_list)
                enter(page, to_list, None)
                lowest = min(lowest, priorities[page])
            elif kind < 0.8:
                lists.push_first(page, to_list)
                enter(page, to_list, 0)
                lowest = min(lowest, priorities[page])
            else:
                notes[page] = choices.choice((0, 1, 255, (1 << 40) - 1))
                lists.set_note(page, notes[page])
        elif kind < 0.25:
            assert lists.unlink(page) == places[page][1]
            lines[places.pop(page)].remove(page)
        elif kind < 0.6 and (others := [other for other in priorities if other != page]):
            other = choices.choice(others)
            lists.put_behind(page, other)
            from_list = places[page][1]
            lines[places[page]].remove(page)
            if other in places and places[other][0] == priorities[page]:
                enter(page, places[other][1], lines[places[other]].index(other) + 1)
            else:
                enter(page, from_list, None)
            lowest = min(lowest, priorities[page])
        elif kind < 0.9:
            notes[page] = choices.choice((0, 1, 255, (1 << 40) - 1))
            lists.set_note(page, notes[page])
        else:
            lowest = min(priority for priority, _at in places.values())
            assert lists.lowest_priority() == lowest
        assert lists.lowest == lowest
        for each in range(int(rows.num_rows)):
            assert lists.note(each) == notes.get(each, 0)
            assert lists.list_of(each) == (places[each][1] if each in places else NO_LIST)
            assert each not in places or lists.priority_of(each) == places[each][0]
        assert list(lists.counts) == [sum(place[1] == at for place in places.values()) for at in range(num_lists)]
        for (priority, at), line in lines.items():
            assert lists.first(at, priority) == (line[0] if line else NO_PAGE)
        assert lists.collect() == [each for key in sorted(lines) for each in lines[key]]
