/* References that do not own their target, for classes that cannot be weakly referenced (mypyc's native classes).
 *
 *      target ---owns---> guard ---owns---> ref <---owns--- observers
 *        ^                  ^                |
 *        +------------------+----------------+   plain pointers: neither counted nor traversed
 *
 * The target keeps the guard in its attribute `__rawref__`, and nothing else holds the guard. Whatever destroys the
 * target (its last reference, the garbage collector, the end of the interpreter) therefore destroys the guard before
 * the target's memory goes, and the guard cuts the ref's pointers. So `ref->target` is either NULL or an object whose
 * memory is valid. What could break this, and what is done about it:
 *
 *   the target is being torn down   its reference count is 0 and the guard still there: the ref counts as dead.
 *   `__del__` resurrects it         the guard is untouched, the ref too, unless `__del__` has cut it with invalidate().
 *   a second holder of the guard    it would survive the target. Reading the attribute yields the ref, because a
 *                                   HiddenSlot takes the place of the attribute's own descriptor; and following a ref
 *                                   whose guard does not have exactly one holder cuts it and raises ReferenceError, the
 *                                   target untouched. What is left: compiled code of the target's own class that stores
 *                                   its guard where it outlives the target before anybody has followed the ref.
 *   the target forgot invalidate()  the guard reports it to sys.unraisablehook, after cutting the pointers.
 *
 * A plain Python class (with `__dict__` and `__weakref__`) needs no guard: its ref rides on a weakref, and `__rawref__`
 * holds the ref itself.
 *
 * All state is per module, all types are heap types. Written for builds with a GIL: a free-threaded interpreter
 * switches its GIL on when it imports this module.
 */

#ifndef RAWREF_H
#define RAWREF_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* What the files of this module share stays inside it: the library exports nothing but its PyInit function. */
#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

#define ATTRIBUTE "__rawref__"

typedef struct ref RefObject;
typedef struct guard GuardObject;

struct ref {
    PyObject_HEAD
    PyObject *target;       /* not owned; NULL once dead */
    GuardObject *guard;     /* not owned; NULL when dead or when `weak` does the work */
    PyObject *weak;         /* owned; the weakref of a plain Python object, or NULL */
    vectorcallfunc vectorcall;
};

struct guard {
    PyObject_HEAD
    PyObject *target;       /* not owned and never followed: tells whose guard this is */
    RefObject *ref;         /* owned; the target's one ref, dead or alive */
    PyObject *target_name;  /* owned; for the report */
};

typedef struct {
    PyObject_HEAD
    PyObject *inner;        /* owned; the member or getset descriptor whose place this one took */
    RefObject *null_ref;    /* owned */
} HiddenSlotObject;

typedef struct {
    PyTypeObject *ref_type;
    PyTypeObject *guard_type;
    PyTypeObject *hidden_slot_type;
    RefObject *null_ref;
    PyObject *attribute_name;
    destructor python_class_dealloc;
} ModuleState;

/* -- _ref.c: refs, guards, and what cuts the first when the second dies ------------------------------------------ */

extern PyType_Spec ref_spec;
extern PyType_Spec guard_spec;
RefObject *new_dead_ref(ModuleState *state);
GuardObject *new_guard(ModuleState *state, PyObject *target);
void cut(RefObject *ref);
void cut_and_raise_shared_guard(GuardObject *guard);

/* -- _hidden_slot.c: the attribute in which a target keeps its guard --------------------------------------------- */

extern PyType_Spec hidden_slot_spec;
int find_attribute(PyTypeObject *type, PyObject *name, PyObject **found, PyTypeObject **owner);
GuardObject *load_guard(ModuleState *state, PyObject *inner, PyObject *target);
HiddenSlotObject *hide_slot(ModuleState *state, PyTypeObject *owner, PyObject *inner);

/* -- _seal.c: what mypyc leaves open in its classes --------------------------------------------------------------- */

PyObject *module_seal(PyObject *module, PyObject *type);

/* -- _pack.c: integers of a list, as int32 ----------------------------------------------------------------------- */

PyObject *module_pack_int32(PyObject *module, PyObject *const *args, Py_ssize_t num_args);

/* -- _rawref.c: the module, and how a target gets its ref -------------------------------------------------------- */

ModuleState *state_of(PyTypeObject *type);
PyObject *ref_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
