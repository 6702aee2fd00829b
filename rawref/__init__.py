"""References that do not keep their target alive, for classes that cannot be weakly referenced.

mypyc's native classes have no weakrefs. A `ref` does the same work: ``r = ref(target)``, then ``r()`` is the target, or
None once it is dead. Each target has one ref at a time, however often it is asked for, so that `invalidate` reaches all
who hold it.

What a class does to be a target:
- it declares the attribute ``__rawref__`` (in ``__slots__``, and as ``__rawref__: object`` where mypyc compiles it),
  sets it to None when it is made, and leaves it alone from then on;
- it calls ``rawref.invalidate(self)`` where it lets go: in ``close()`` and in ``__del__``.
A plain Python class with ``__dict__`` and ``__weakref__`` needs neither.

What a ref promises:
- it never dangles. A target that dies without `invalidate` takes its ref with it, and `sys.unraisablehook` gets a
  `ReferenceError`;
- while a target is torn down its ref is dead; during ``__del__`` it is alive until `invalidate`;
- after `invalidate` the ref stays dead; ``ref(target)`` makes a new one (for objects that are recycled).

What a compiled ``__del__`` needs besides, because mypyc's finalizers neither save nor report exceptions:
- it calls `invalidate` first, also where there is no ref: an exception that another object's finalizer left set goes to
  `sys.unraisablehook` then, instead of making the next call fail;
- it raises nothing: what it catches goes to `write_unraisable`.

`seal` closes what mypyc leaves open in a class that it made: ``del object.property`` is an `AttributeError` then instead of a
crash, and ``object.__init__(...)`` a second time a `TypeError` instead of nothing. ``__init_subclass__`` of a base is the place
to call it.

`untrack` hides objects from the garbage collector, for a class of which there are millions: a full collection would look at each. Who
untracks an object cuts the cycles through it before letting go. `untrack_class` hides all objects of a class as they are made. Then
they do not count as new objects either, after every 700 of which the collector looks at the young lists of the whole process.

`pack_int32` is here because this is C: the ints of a list side by side in memory, in a third of the time of a compiled loop.
"""

from ._rawref import NULL, invalidate, pack_int32, ref, seal, untrack, untrack_class, write_unraisable

__all__ = ["NULL", "invalidate", "pack_int32", "ref", "seal", "untrack", "untrack_class", "write_unraisable"]
