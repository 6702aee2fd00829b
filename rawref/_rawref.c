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

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

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

#define ATTRIBUTE "__rawref__"

/* -- the life of a ref ------------------------------------------------------------------------------------------ */

static void
cut(RefObject *ref)
{
    ref->target = NULL;
    ref->guard = NULL;
    Py_CLEAR(ref->weak);
}

/* For good: once the other holder has gone, nobody could tell which of the two was left. */
static void
cut_and_raise_shared_guard(GuardObject *guard)
{
    cut(guard->ref);
    PyErr_Format(PyExc_ReferenceError,
                 "the guard of a %U has a holder besides its target, so that nobody can say whether the target is "
                 "still there, and its ref is dead from now on; let only the target's own attribute " ATTRIBUTE " hold it",
                 guard->target_name);
}

/* The target as a new reference; None when dead; NULL with an exception when that cannot be known. */
static PyObject *
follow(RefObject *self)
{
    PyObject *target = self->target;
    if (target == NULL) {
        Py_RETURN_NONE;
    }
    if (self->guard != NULL) {
        if (Py_REFCNT(self->guard) != 1) {
            cut_and_raise_shared_guard(self->guard);
            return NULL;
        }
        if (Py_REFCNT(target) == 0) {
            Py_RETURN_NONE;  /* in the middle of its deallocation */
        }
        return Py_NewRef(target);
    }
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(self->weak, &target) < 0) {
        return NULL;
    }
    return target != NULL ? target : Py_NewRef(Py_None);
#else
    return Py_XNewRef(PyWeakref_GetObject(self->weak));
#endif
}

static PyObject *
ref_vectorcall(PyObject *callable, PyObject *const *Py_UNUSED(args), size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 0 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a ref is called without arguments");
        return NULL;
    }
    return follow((RefObject *)callable);
}

static RefObject *
new_dead_ref(ModuleState *state)
{
    RefObject *self = PyObject_GC_New(RefObject, state->ref_type);
    if (self == NULL) {
        return NULL;
    }
    self->target = NULL;
    self->guard = NULL;
    self->weak = NULL;
    self->vectorcall = ref_vectorcall;
    PyObject_GC_Track(self);
    return self;
}

static int
ref_traverse(RefObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->weak);
    return 0;
}

/* No tp_clear: a ref owns nothing that could lead back to it, except its type, which clears itself. */

static void
ref_dealloc(RefObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    assert(self->guard == NULL);  /* a guard owns its ref, and cuts it first */
    Py_CLEAR(self->weak);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* -- guards ----------------------------------------------------------------------------------------------------- */

/* A guard is left out of garbage collection: what it owns owns no containers, and gc.get_objects() cannot hand it out.
 */

static GuardObject *
new_guard(ModuleState *state, PyObject *target)
{
    GuardObject *self = PyObject_New(GuardObject, state->guard_type);
    if (self == NULL) {
        return NULL;
    }
    self->target = target;
    self->ref = (RefObject *)Py_NewRef(state->null_ref);
    self->target_name = PyType_GetQualName(Py_TYPE(target));
    if (self->target_name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static int
is_interpreter_ending(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static void
report_forgotten_invalidate(PyObject *target_name, RefObject *ref)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *pending = PyErr_GetRaisedException();
#else
    PyObject *pending_type, *pending_value, *pending_traceback;
    PyErr_Fetch(&pending_type, &pending_value, &pending_traceback);
#endif
    PyErr_Format(PyExc_ReferenceError,
                 "a %U that somebody refers to died without rawref.invalidate(); its ref is dead from now on. "
                 "Call rawref.invalidate(self) where the class lets go: in close() and in __del__",
                 target_name);
    PyErr_WriteUnraisable((PyObject *)ref);
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(pending);
#else
    PyErr_Restore(pending_type, pending_value, pending_traceback);
#endif
}

static void
guard_dealloc(GuardObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    RefObject *ref = self->ref;
    PyObject *target_name = self->target_name;
    int was_forgotten = ref->target != NULL;
    cut(ref);
    type->tp_free(self);
    Py_DECREF(type);
    /* Last, because a hook may run any code; not while the interpreter ends: a correct __del__ may be past working. */
    if (was_forgotten && !is_interpreter_ending()) {
        report_forgotten_invalidate(target_name, ref);
    }
    Py_DECREF(ref);
    Py_XDECREF(target_name);
}

static PyObject *
guard_invalidate(GuardObject *self, PyObject *Py_UNUSED(ignored))
{
    cut(self->ref);
    Py_RETURN_NONE;
}

static PyMethodDef guard_methods[] = {
    {"invalidate", (PyCFunction)guard_invalidate, METH_NOARGS, "Cut the ref of this guard's target."},
    {NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_methods, guard_methods},
    {Py_tp_doc, "What a target keeps in its " ATTRIBUTE " attribute; dies with it, and cuts its ref."},
    {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "rawref._Guard",
    .basicsize = sizeof(GuardObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = guard_slots,
};

/* -- the attribute in which a target keeps its guard ------------------------------------------------------------ */

/* What `__rawref__` means for a class: 1, *found (a new reference) and *owner (borrowed), or 0 if the MRO lacks it. */
static int
find_attribute(PyTypeObject *type, PyObject *name, PyObject **found, PyTypeObject **owner)
{
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
#if PY_VERSION_HEX >= 0x030C0000
        PyObject *dict = PyType_GetDict(base);
        PyObject *value = PyDict_GetItemWithError(dict, name);
        Py_DECREF(dict);  /* the class keeps it */
#else
        PyObject *value = PyDict_GetItemWithError(base->tp_dict, name);
#endif
        if (value != NULL) {
            *found = Py_NewRef(value);
            *owner = base;
            return 1;
        }
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* The guard that `target` holds, as a new reference, or NULL; NULL with an exception if something else sits there. */
static GuardObject *
load_guard(ModuleState *state, PyObject *inner, PyObject *target)
{
    PyObject *value = Py_TYPE(inner)->tp_descr_get(inner, target, (PyObject *)Py_TYPE(target));
    if (value == NULL) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();  /* declared, never assigned */
        }
        return NULL;
    }
    if (Py_IS_TYPE(value, state->guard_type)) {
        return (GuardObject *)value;
    }
    if (value != Py_None && !Py_IS_TYPE(value, state->ref_type)) {
        PyErr_Format(PyExc_TypeError, "the attribute " ATTRIBUTE " of a %s belongs to rawref, but holds a %s",
                     Py_TYPE(target)->tp_name, Py_TYPE(value)->tp_name);
    }
    Py_DECREF(value);
    return NULL;
}

static ModuleState *
state_of(PyTypeObject *type)
{
    ModuleState *state = PyType_GetModuleState(type);
    if (state != NULL && state->null_ref == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the module rawref is gone");
        return NULL;
    }
    return state;
}

static PyObject *
hidden_slot_get(HiddenSlotObject *self, PyObject *target, PyObject *Py_UNUSED(type))
{
    if (target == NULL || target == Py_None) {
        return Py_NewRef(self);
    }
    ModuleState *state = state_of(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    GuardObject *guard = load_guard(state, self->inner, target);
    if (guard == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(self->null_ref);
    }
    PyObject *ref = Py_NewRef(guard->ref);
    Py_DECREF(guard);
    return ref;
}

static int
hidden_slot_set(HiddenSlotObject *self, PyObject *target, PyObject *value)
{
    ModuleState *state = state_of(Py_TYPE(self));
    if (state == NULL) {
        return -1;
    }
    if (value != NULL && value != Py_None) {
        if (!Py_IS_TYPE(value, state->ref_type)) {
            PyErr_Format(PyExc_TypeError,
                         "the attribute " ATTRIBUTE " belongs to rawref: assign rawref.NULL or None, not a %s",
                         Py_TYPE(value)->tp_name);
            return -1;
        }
        if (((RefObject *)value)->target == target) {
            return 0;  /* its own ref, which the guard holds already */
        }
    }
    /* A guard that sat here dies now, and reports if its ref was still valid. A ref to something else (copy.copy does
     * that) means nothing here. */
    return Py_TYPE(self->inner)->tp_descr_set(self->inner, target, Py_None);
}

static int
hidden_slot_traverse(HiddenSlotObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->inner);
    Py_VISIT(self->null_ref);
    return 0;
}

static void
hidden_slot_dealloc(HiddenSlotObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(self->inner);
    Py_DECREF(self->null_ref);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot hidden_slot_slots[] = {
    {Py_tp_dealloc, hidden_slot_dealloc},
    {Py_tp_traverse, hidden_slot_traverse},
    {Py_tp_descr_get, hidden_slot_get},
    {Py_tp_descr_set, hidden_slot_set},
    {Py_tp_doc, "Stands in front of a class's own " ATTRIBUTE " and hands out the ref instead of the guard."},
    {0, NULL},
};

static PyType_Spec hidden_slot_spec = {
    .name = "rawref._HiddenSlot",
    .basicsize = sizeof(HiddenSlotObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = hidden_slot_slots,
};

/* Put a HiddenSlot in the place of `inner` in `owner`, once per class. */
static HiddenSlotObject *
hide_slot(ModuleState *state, PyTypeObject *owner, PyObject *inner)
{
    HiddenSlotObject *slot = PyObject_GC_New(HiddenSlotObject, state->hidden_slot_type);
    if (slot == NULL) {
        return NULL;
    }
    slot->inner = Py_NewRef(inner);
    slot->null_ref = (RefObject *)Py_NewRef(state->null_ref);
    PyObject_GC_Track(slot);
    /* type's own setattr, so that no metaclass gets a say; it refuses classes that cannot change. */
    int failed = PyType_Type.tp_setattro((PyObject *)owner, state->attribute_name, (PyObject *)slot);
    if (failed) {
        Py_CLEAR(slot);
    }
    return slot;
}

/* -- making refs ------------------------------------------------------------------------------------------------ */

static PyObject *
ref_of_guarded(ModuleState *state, HiddenSlotObject *slot, PyObject *target)
{
    /* Allocate first, look afterwards: an allocation can run the garbage collector, and that any code. */
    GuardObject *spare_guard = NULL;
    RefObject *ref = new_dead_ref(state);
    if (ref == NULL) {
        return NULL;
    }
    GuardObject *guard = load_guard(state, slot->inner, target);
    if (guard == NULL && !PyErr_Occurred()) {
        spare_guard = new_guard(state, target);
        guard = spare_guard != NULL ? load_guard(state, slot->inner, target) : NULL;
    }
    if (PyErr_Occurred()) {
        goto fail;
    }
    if (guard == NULL) {
        guard = (GuardObject *)Py_NewRef(spare_guard);
        if (Py_TYPE(slot->inner)->tp_descr_set(slot->inner, target, (PyObject *)guard) < 0) {
            goto fail;
        }
    }
    Py_CLEAR(spare_guard);
    if (guard->target != target || Py_REFCNT(guard) != 2) {
        cut_and_raise_shared_guard(guard);
        goto fail;
    }
    if (guard->ref->target == NULL) {
        ref->target = target;
        ref->guard = guard;
        Py_SETREF(guard->ref, (RefObject *)Py_NewRef(ref));
    }
    Py_SETREF(ref, (RefObject *)Py_NewRef(guard->ref));
    Py_DECREF(guard);
    return (PyObject *)ref;

fail:
    Py_XDECREF(spare_guard);
    Py_XDECREF(guard);
    Py_DECREF(ref);
    return NULL;
}

static PyObject *
raise_unfit_target(PyObject *target)
{
    PyErr_Format(PyExc_TypeError,
                 "a %s cannot be the target of a rawref.ref: declare the attribute " ATTRIBUTE " in its class "
                 "(in __slots__, and with an annotation if mypyc compiles it), or let it have __dict__ and __weakref__",
                 Py_TYPE(target)->tp_name);
    return NULL;
}

static PyObject *
ref_of_plain(ModuleState *state, PyObject *target)
{
    PyTypeObject *type = Py_TYPE(target);
    /* Only classes that Python itself deallocates: a mypyc class over a base with __weakref__ never clears weakrefs. */
    if (!PyType_SUPPORTS_WEAKREFS(type) || type->tp_dealloc != state->python_class_dealloc) {
        return raise_unfit_target(target);
    }
    PyObject *known = PyObject_GenericGetAttr(target, state->attribute_name);
    if (known == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return NULL;
        }
        PyErr_Clear();
    }
    else {
        if (Py_IS_TYPE(known, state->ref_type) && ((RefObject *)known)->target == target) {
            return known;
        }
        Py_DECREF(known);
    }
    RefObject *ref = new_dead_ref(state);
    if (ref == NULL) {
        return NULL;
    }
    ref->weak = PyWeakref_NewRef(target, NULL);
    if (ref->weak == NULL) {
        Py_DECREF(ref);
        return NULL;
    }
    ref->target = target;
    if (PyObject_GenericSetAttr(target, state->attribute_name, (PyObject *)ref) < 0) {
        Py_DECREF(ref);
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            return raise_unfit_target(target);
        }
        return NULL;
    }
    return (PyObject *)ref;
}

static PyObject *
ref_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) != 1 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "ref(target) takes one positional argument");
        return NULL;
    }
    PyObject *target = PyTuple_GET_ITEM(args, 0);
    ModuleState *state = state_of(type);
    if (state == NULL) {
        return NULL;
    }
    PyObject *attribute = NULL;
    PyTypeObject *owner = NULL;
    int found = find_attribute(Py_TYPE(target), state->attribute_name, &attribute, &owner);
    if (found < 0) {
        return NULL;
    }
    if (found && (Py_IS_TYPE(attribute, &PyMemberDescr_Type) || Py_IS_TYPE(attribute, &PyGetSetDescr_Type))) {
        Py_SETREF(attribute, (PyObject *)hide_slot(state, owner, attribute));
        if (attribute == NULL) {
            return NULL;
        }
    }
    PyObject *ref;
    if (found && Py_IS_TYPE(attribute, state->hidden_slot_type)) {
        ref = ref_of_guarded(state, (HiddenSlotObject *)attribute, target);
    }
    else {
        ref = ref_of_plain(state, target);
    }
    Py_XDECREF(attribute);
    return ref;
}

/* -- the rest of ref's type ------------------------------------------------------------------------------------- */

static PyObject *
ref_invalidate(RefObject *self, PyObject *Py_UNUSED(ignored))
{
    cut(self);
    Py_RETURN_NONE;
}

static PyObject *
ref_get_is_valid(RefObject *self, void *Py_UNUSED(closure))
{
    PyObject *target = follow(self);
    if (target == NULL) {
        return NULL;
    }
    PyObject *is_valid = target != Py_None ? Py_True : Py_False;
    Py_DECREF(target);
    return Py_NewRef(is_valid);
}

static PyObject *
ref_repr(RefObject *self)
{
    PyObject *target = follow(self);
    if (target == NULL) {
        PyErr_Clear();
        return PyUnicode_FromFormat("<rawref.ref at %p, guard held twice>", self);
    }
    PyObject *text;
    if (target == Py_None) {
        text = PyUnicode_FromFormat("<rawref.ref at %p, dead>", self);
    }
    else {
        text = PyUnicode_FromFormat("<rawref.ref at %p to a %s at %p>", self, Py_TYPE(target)->tp_name, target);
    }
    Py_DECREF(target);
    return text;
}

static PyMethodDef ref_methods[] = {
    {"invalidate", (PyCFunction)ref_invalidate, METH_NOARGS, "From now on the ref is dead. Twice is fine."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL},
};

static PyGetSetDef ref_getset[] = {
    {"is_valid", (getter)ref_get_is_valid, NULL, "Whether a call would return the target.", NULL},
    {NULL},
};

static PyMemberDef ref_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RefObject, vectorcall), READONLY, NULL},
    {NULL},
};

static PyType_Slot ref_slots[] = {
    {Py_tp_new, ref_new},
    {Py_tp_dealloc, ref_dealloc},
    {Py_tp_traverse, ref_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, ref_repr},
    {Py_tp_methods, ref_methods},
    {Py_tp_getset, ref_getset},
    {Py_tp_members, ref_members},
    {Py_tp_doc, "ref(target): the reference to target that does not own it. Call it: the target, or None once dead."},
    {0, NULL},
};

static PyType_Spec ref_spec = {
    .name = "rawref.ref",
    .basicsize = sizeof(RefObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ref_slots,
};

/* -- the module ------------------------------------------------------------------------------------------------- */

static PyObject *
module_invalidate(PyObject *module, PyObject *target)
{
    ModuleState *state = PyModule_GetState(module);
    PyObject *attribute = NULL;
    PyTypeObject *owner = NULL;
    int found = find_attribute(Py_TYPE(target), state->attribute_name, &attribute, &owner);
    if (found < 0) {
        return NULL;
    }
    if (found && Py_IS_TYPE(attribute, state->hidden_slot_type)) {
        GuardObject *guard = load_guard(state, ((HiddenSlotObject *)attribute)->inner, target);
        Py_DECREF(attribute);
        if (guard == NULL && PyErr_Occurred()) {
            return NULL;
        }
        if (guard != NULL) {
            cut(guard->ref);
            Py_DECREF(guard);
        }
        Py_RETURN_NONE;
    }
    Py_XDECREF(attribute);
    PyObject *value = PyObject_GenericGetAttr(target, state->attribute_name);
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return NULL;
        }
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (Py_IS_TYPE(value, state->ref_type) && ((RefObject *)value)->target == target) {
        cut((RefObject *)value);
    }
    Py_DECREF(value);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"invalidate", module_invalidate, METH_O,
     "Cut the ref of target, if it has one. For its class to call where it lets go: in close() and in __del__."},
    {NULL},
};

static int
module_exec(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->attribute_name = PyUnicode_InternFromString(ATTRIBUTE);
    if (state->attribute_name == NULL) {
        return -1;
    }
    state->ref_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ref_spec, NULL);
    state->guard_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &guard_spec, NULL);
    state->hidden_slot_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &hidden_slot_spec, NULL);
    if (state->ref_type == NULL || state->guard_type == NULL || state->hidden_slot_type == NULL) {
        return -1;
    }
    state->null_ref = new_dead_ref(state);
    if (state->null_ref == NULL) {
        return -1;
    }
    PyObject *plain_class = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){}", "plain_class");
    if (plain_class == NULL) {
        return -1;
    }
    state->python_class_dealloc = ((PyTypeObject *)plain_class)->tp_dealloc;
    Py_DECREF(plain_class);
    if (PyModule_AddType(module, state->ref_type) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "NULL", (PyObject *)state->null_ref);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->ref_type);
    Py_VISIT(state->guard_type);
    Py_VISIT(state->hidden_slot_type);
    Py_VISIT(state->null_ref);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->ref_type);
    Py_CLEAR(state->guard_type);
    Py_CLEAR(state->hidden_slot_type);
    Py_CLEAR(state->null_ref);
    Py_CLEAR(state->attribute_name);
    return 0;
}

static void
module_free(void *module)
{
    module_clear((PyObject *)module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rawref._rawref",
    .m_doc = "References that do not own their target; see the package's docstring.",
    .m_size = sizeof(ModuleState),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__rawref(void)
{
    return PyModuleDef_Init(&module_def);
}
