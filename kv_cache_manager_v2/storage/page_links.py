"""Runs of pages that come into a circular doubly linked list, or leave it: lists are threaded through the LINKS words of page rows.

A list has a sentinel row (`EvictionQueue`). In it segments of pages may stand one behind the other (`ValueLines`).
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from .page_rows import LINKS, LOW_MASK, NOT_QUEUED, PLACE, ROW_WORDS, priority_of_place

NO_ENDS: Final = -1


def link_run(words: vec[i64], before: i64, pages: vec[i64], begin: i64, end: i64, is_reversed: bool) -> i64:
    """``pages[begin:end]``, one or more, behind a row of the list, in their order, or the last one first; those in front of the first of
    another priority, whose position is returned, else ``end``. ``words``: of the page rows."""
    following = words[before * ROW_WORDS + LINKS] & LOW_MASK
    first = pages[begin]
    priority = priority_of_place(words[first * ROW_WORDS + PLACE])
    page = first
    previous: i64 = 0
    position = begin + 1
    while position < end:
        other = pages[position]
        if priority_of_place(words[other * ROW_WORDS + PLACE]) != priority:
            break
        words[page * ROW_WORDS + LINKS] = previous | (other << 32) if is_reversed else other | (previous << 32)
        previous = page
        page = other
        position += 1
    words[page * ROW_WORDS + LINKS] = previous if is_reversed else previous << 32
    join_rows(words, before, page if is_reversed else first)
    join_rows(words, first if is_reversed else page, following)
    return position


def unlink_run(words: vec[i64], pages: vec[i64], begin: i64, end: i64, ends: i64) -> i64:
    """``pages[begin:end]`` leave their list. ``ends``: a part of it, its first page (bits 0-31) and its last one (32-62), or NO_ENDS; they
    are returned as they are now: what has left stands for the row behind it, or in front of it, that stays.

    Victims stand one behind the other. A path that was evicted leaf by leaf, and is used again from its start on, stands in the opposite
    order. Either way what is left is joined once.
    """
    head = ends & LOW_MASK
    tail = ends >> 32
    position = begin
    while position < end:
        following = pages[position]
        previous = words[following * ROW_WORDS + LINKS] >> 32
        while position < end:
            page = pages[position]
            links = words[page * ROW_WORDS + LINKS]
            if page == following:
                following = links & LOW_MASK
            elif page == previous:
                previous = links >> 32
            else:
                break
            assert links != NOT_QUEUED, "a page left an eviction queue that it was not in"
            if page == head:
                head = following
            if page == tail:
                tail = previous
            words[page * ROW_WORDS + LINKS] = NOT_QUEUED
            position += 1
        join_rows(words, previous, following)
    return head | (tail << 32)


def join_rows(words: vec[i64], before: i64, behind: i64) -> None:
    """Two rows of a list stand one behind the other from now on."""
    words[before * ROW_WORDS + LINKS] = (words[before * ROW_WORDS + LINKS] >> 32 << 32) | behind
    words[behind * ROW_WORDS + LINKS] = (words[behind * ROW_WORDS + LINKS] & LOW_MASK) | (before << 32)
